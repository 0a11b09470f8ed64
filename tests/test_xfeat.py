"""XFeat and LighterGlue see points where they are: on drawings moved by known amounts and on real photographs."""

import json
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.images import read_upright
from mbasfm.models.base import Matcher, load_model
from mbasfm.models.matchers import xfeat, xfeat_keypoints
from mbasfm.models.matchers.xfeat import XFeatMatcher
from mbasfm.types.observations import Features, Photo

needs_xfeat = pytest.mark.skipif(bool(XFeatMatcher.missing()), reason=f"needs: {XFeatMatcher.missing()}")
FOUNTAIN = Path(__file__).parents[2] / "shared" / "data" / "strecha_fountain11"
SPECS = ("xfeat", "xfeat:lighterglue")
FINE = 8
"""Pixels of the drawing in a pixel of its views."""


@cache
def matcher(spec: str) -> XFeatMatcher:
    return load_model("matcher", spec)


@cache
def drawing() -> np.ndarray:
    """Polygons at random, so fine that its views can be moved by fractions of their pixels."""
    random = np.random.default_rng(0)
    canvas = np.full((FINE * 400, FINE * 540, 3), 128, np.uint8)
    for size in np.geomspace(FINE * 60, FINE * 5, 900):
        centre = random.uniform(0, canvas.shape[1::-1])
        corners = centre + random.uniform(-size, size, (4, 2))
        cv2.fillPoly(canvas, [corners.astype(np.int32)], random.integers(0, 256, 3).tolist())
    return canvas


def view(shift: tuple[float, float] = (0, 0), scale: float = 1.0, size: tuple[int, int] = (500, 370)) -> np.ndarray:
    """The drawing averaged over pixels; ``shift`` is where its upper left corner lies, in pixels at scale 1."""
    left, top = (round(FINE * value) for value in shift)
    width, height = (round(FINE * value / scale) for value in size)
    part = drawing()[top : top + height, left : left + width]
    return cv2.resize(part, size, interpolation=cv2.INTER_AREA)


def describe(spec: str, image: np.ndarray, name: str = "a.jpg") -> Features:
    return matcher(spec).describe(Photo(name, Path(name), image.shape[1], image.shape[0], None, "", ""), image)


def matched(spec: str, *images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = (describe(spec, image) for image in images)
    indices = matcher(spec).match(first, second).indices
    return first.pixels[indices[:, 0]], second.pixels[indices[:, 1]]


def check_errors(errors: np.ndarray, at_least: int) -> None:
    """Single points may be wrong, but not all in the same direction."""
    assert len(errors) > at_least
    assert np.median(np.linalg.norm(errors, axis=1)) < 1
    assert np.abs(np.median(errors, axis=0)).max() < 0.1


@needs_xfeat
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shift", [(16, 8), (5.5, 3.25), (11.125, 20.75)])
def test_matches_follow_a_known_shift(spec, shift):
    first, second = matched(spec, view(), view(shift))
    check_errors(second + shift - first, at_least=300)


@needs_xfeat
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("scale, size", [(0.8, (400, 296)), (0.9, (450, 333)), (1.25, (500, 370))])
def test_matches_follow_a_known_scale(spec, scale, size):
    first, second = matched(spec, view(), view(scale=scale, size=size))
    check_errors(second / scale - first, at_least=150)


@needs_xfeat
def test_a_large_image_is_shrunk_and_its_pixels_are_those_of_the_original(monkeypatch):
    monkeypatch.setattr(xfeat, "MAX_SIDE_PX", 512)
    first, second = matched("xfeat", view(), view(scale=2.5, size=(1250, 925)))
    assert second[:, 0].max() > 1200
    check_errors(second / 2.5 - first, at_least=300)


@needs_xfeat
def test_with_one_grid_the_peaks_are_those_of_the_reference(monkeypatch):
    torch, feature = pytest.importorskip("torch"), pytest.importorskip("kornia.feature")
    image = torch.tensor(view(size=(480, 352)).mean(2, dtype=np.float32) / 255)[None, None]
    reference = feature.XFeat(top_k=100_000, detection_threshold=xfeat_keypoints.MIN_HEAT).eval()
    reference.net = matcher("xfeat")._network
    monkeypatch.setattr(xfeat_keypoints, "GRID_STEP_PX", 8)
    with torch.inference_mode():
        found = xfeat_keypoints.find_peaks(xfeat_keypoints.heat_of(reference.net, image)[0, 0])
    expected = reference.detectAndCompute(image)[0]["keypoints"].round().long()
    assert len(found) > 1000
    assert set(map(tuple, found.tolist())) == set(map(tuple, expected.tolist()))


@needs_xfeat
@pytest.mark.parametrize("spec", SPECS)
def test_matches_are_mutual_and_repeatable(spec):
    assert isinstance(matcher(spec), Matcher)
    first, second = describe(spec, view()), describe(spec, view((7, 4), size=(420, 300)))
    assert len(first.pixels) <= xfeat.MAX_FEATURES and first.size == (500, 370)
    np.testing.assert_allclose(np.linalg.norm(first.descriptors, axis=1), 1, atol=1e-5)
    forward, again, backward = (matcher(spec).match(*pair) for pair in [(first, second)] * 2 + [(second, first)])
    np.testing.assert_array_equal(forward.indices, again.indices)
    np.testing.assert_array_equal(forward.confidence, again.confidence)
    assert len(set(forward.indices[:, 0])) == len(set(forward.indices[:, 1])) == len(forward.indices) > 300
    both = {tuple(pair) for pair in forward.indices} & {tuple(pair[::-1]) for pair in backward.indices}
    assert len(both) > 0.99 * len(forward.indices)
    assert 0 < float(forward.confidence.min()) <= float(forward.confidence.max()) <= 1


@needs_xfeat
@pytest.mark.parametrize("spec", SPECS)
def test_a_blank_image_has_no_features_and_no_matches(spec):
    empty = describe(spec, np.full((120, 160, 3), 90, np.uint8))
    assert empty.pixels.shape == (0, 2) and empty.descriptors.shape == (0, 64)
    for pair in [(empty, describe(spec, view())), (empty, empty)]:
        assert matcher(spec).match(*pair).indices.shape == (0, 2)


@needs_xfeat
def test_lighterglue_asks_for_the_size_of_the_image():
    features = describe("xfeat", view())
    with pytest.raises(InputError, match="b.jpg lack the image's size"):
        matcher("xfeat:lighterglue").match(features, Features(features.pixels, features.descriptors, "b.jpg"))


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(InputError, match="choose xfeat or xfeat:lighterglue"):
        load_model("matcher", "xfeat:lightglue")
    assert xfeat._installed_file("no_such_package", "a.py") is None
    assert xfeat._installed_file("mbasfm", "no_such_file.pt") is None
    monkeypatch.setattr(xfeat, "_installed_file", lambda package, path: None)
    assert XFeatMatcher.missing() == "pip install 'mbasfm[xfeat]'"
    with pytest.raises(MissingExtraError, match="mbasfm\\[xfeat\\]"):
        load_model("matcher", "xfeat")


def fundamental(first: dict, second: dict) -> np.ndarray:
    """Of two entries of gt.json: x_second^T F x_first = 0."""
    (fx, fy, cx, cy), (rotation_i, rotation_j) = first["K"], (np.array(entry["R"]) for entry in (first, second))
    inverse = np.linalg.inv([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    j_from_i = rotation_j @ rotation_i.T
    shift = np.array(second["t"]) - j_from_i @ np.array(first["t"])
    return inverse.T @ np.cross(np.eye(3), shift) @ j_from_i @ inverse


@needs_xfeat
@pytest.mark.skipif(not FOUNTAIN.is_dir(), reason="needs the shared photographs")
@pytest.mark.parametrize("spec, share", [("xfeat", 0.85), ("xfeat:lighterglue", 0.9)])
def test_matches_of_photographs_lie_on_the_true_epipolar_lines(spec, share):
    truth = json.loads((FOUNTAIN / "gt.json").read_text())["images"]
    names = sorted(truth)[4:6]
    first, second = matched(spec, *(read_upright(FOUNTAIN / "images" / name) for name in names))
    assert len(first) > 900
    homogeneous_i, homogeneous_j = (np.pad(pixels, ((0, 0), (0, 1)), constant_values=1) for pixels in (first, second))
    lines = homogeneous_i @ fundamental(truth[names[0]], truth[names[1]]).T
    distance = np.abs((homogeneous_j * lines).sum(1)) / np.linalg.norm(lines[:, :2], axis=1)
    assert (distance < 2).mean() > share
    assert np.median(distance) < 0.3


@needs_xfeat
@pytest.mark.skipif(not FOUNTAIN.is_dir(), reason="needs the shared photographs")
def test_a_photograph_and_the_same_shrunk_have_their_points_at_the_same_places():
    image = read_upright(FOUNTAIN / "images" / "0004.jpg")
    small = cv2.resize(image, (819, 546), interpolation=cv2.INTER_AREA)
    first, second = matched("xfeat", image, small)
    check_errors(second * np.array([1024 / 819, 683 / 546]) - first, at_least=1000)
