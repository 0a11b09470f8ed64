"""Models by name, and the adapters that need no download."""

import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from mbasfm.cli import main
from mbasfm.errors import InputError, ModelNotFoundError
from mbasfm.models import base
from mbasfm.models.base import AutoChoice, DepthModel, Matcher, choose_auto, installed, list_models, load_model
from mbasfm.models.depth.onnx import Sidecar
from mbasfm.models.matchers.sift import SiftMatcher
from mbasfm.synthetic.cameras import make_cameras, render
from mbasfm.synthetic.solids import make_room
from mbasfm.types.observations import Photo

SHARED = Path(__file__).parents[2] / "shared"
NETWORK = SHARED / "weights" / "tiefenrausch.onnx"
FOUNTAIN = SHARED / "data" / "strecha_fountain11" / "images"


def photo(name: str = "a/1.jpg", width: int = 96, height: int = 64) -> Photo:
    return Photo(name, Path(name), width, height, None, "", "0")


def blank(item: Photo) -> np.ndarray:
    return np.zeros((item.height, item.width, 3), np.uint8)


def test_every_installed_model_loads_or_says_what_to_do():
    rows = {(row.kind, row.name): row for row in list_models()}
    assert {("depth", name) for name in ("flat", "files", "onnx")} <= set(rows)
    assert {("matcher", name) for name in ("sift", "files", "xfeat")} <= set(rows)
    assert rows["depth", "flat"].missing == "" and rows["depth", "flat"].licence == "Apache-2.0"
    assert isinstance(load_model("depth", "flat"), DepthModel)
    assert isinstance(load_model("matcher", "sift"), Matcher)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ModelNotFoundError, match="did you mean 'flat'.*installed: .*files"):
        load_model("depth", "flatt")
    assert "sift" in installed("matcher")


def test_auto_runs_everywhere_and_says_what_would_be_better():
    spec, sentence = choose_auto("depth")
    assert spec in sentence and "--depth onnx:FILE" in sentence
    spec, sentence = choose_auto("matcher")
    assert all(isinstance(load_model("matcher", part), Matcher) for part in spec.split("+"))
    assert spec in sentence and "--matcher sift+xfeat" in sentence


def test_auto_is_the_first_that_can_run_and_names_the_step_before_a_better_one(monkeypatch):
    rows = (AutoChoice("no_such:x", "a", "b", "c"), AutoChoice("flat", "no depth", "better is --depth", "onnx:FILE"))
    monkeypatch.setitem(base.AUTO, "depth", rows)
    monkeypatch.setattr(
        "mbasfm.models.depth.onnx.OnnxDepth.missing", staticmethod(lambda: "pip install 'mbasfm[onnx]'")
    )
    spec, sentence = choose_auto("depth")
    assert spec == "flat"
    assert sentence.endswith("better is --depth onnx:FILE (first: pip install 'mbasfm[onnx]').")


def test_models_command_lists_them(capsys):
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    sift = {"kind": "matcher", "name": "sift", "licence": "Apache-2.0", "missing": "", "download": "", "memory": ""}
    assert sift in rows
    assert all(row["download"] and row["memory"] for row in rows if row["name"] in ("depth-pro", "zoedepth"))


def test_the_model_of_another_package_is_found_through_its_entry_point(tmp_path, monkeypatch, capsys):
    """As an installer leaves it: a module, and a folder of metadata beside it."""
    (tmp_path / "their_depth.py").write_text(
        "import numpy as np\n"
        "from mbasfm.models.base import DepthEstimate, DepthModel\n"
        "class Theirs(DepthModel):\n"
        "    name, licence, download, key = 'theirs', 'MIT', '3 MB', 'theirs-1'\n"
        "    def __init__(self, argument=''):\n"
        "        self.depth_m = float(argument or 1)\n"
        "    def estimate(self, photo, image):\n"
        "        return DepthEstimate(np.full(image.shape[:2], self.depth_m, np.float32), False, True)\n"
    )
    metadata = tmp_path / "their_depth-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-depth\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mbasfm.depth]\ntheirs = their_depth:Theirs\n")
    assert "theirs" not in installed("depth")
    monkeypatch.syspath_prepend(tmp_path)
    model = load_model("depth", "theirs:2.5")
    assert isinstance(model, DepthModel)
    assert float(model.estimate(photo(), blank(photo())).values.max()) == 2.5
    assert main(["models", "--json"]) == 0
    row = next(row for row in json.loads(capsys.readouterr().out) if row["name"] == "theirs")
    assert (row["licence"], row["download"], row["missing"]) == ("MIT", "3 MB", "")


def test_a_model_that_lacks_something_is_refused_before_any_work(monkeypatch):
    class Silent:
        name, licence, key = "silent", "MIT", "silent-1"

        def __init__(self, argument):
            del argument

    monkeypatch.setattr(base, "installed", lambda _: {"silent": SimpleNamespace(load=lambda: Silent)})
    with pytest.raises(InputError, match=r"depth model silent lacks a part of mbasfm.models.base.DepthModel; derive"):
        load_model("depth", "silent")
    with pytest.raises(InputError, match=r"matcher model silent lacks a part of .*Matcher or ImageMatcher; derive"):
        load_model("matcher", "silent")


def test_flat_depth_is_constant_disparity():
    estimate = load_model("depth", "flat").estimate(photo(), blank(photo()))
    assert estimate.is_disparity and not estimate.is_metric
    assert float(estimate.values.min()) == float(estimate.values.max()) > 0


@pytest.mark.parametrize("form", ["npy", "npz", "png", "exr-like", "long name"])
def test_depth_files_of_every_kind_are_read(tmp_path, form):
    truth = np.linspace(0.5, 4.0, 24, dtype=np.float32).reshape(4, 6)
    (tmp_path / "a").mkdir()
    base = tmp_path / "a" / "1"
    if form == "npy":
        np.save(base.with_suffix(".npy"), truth)
    elif form == "npz":
        np.savez(base.with_suffix(".npz"), depth=truth, other=truth)
    elif form == "png":
        cv2.imwrite(str(base.with_suffix(".png")), np.round(truth * 1000).astype(np.uint16))
    elif form == "exr-like":
        cv2.imwrite(str(base.with_suffix(".tiff")), truth)
    else:
        np.save(tmp_path / "a" / "1.jpg.npy", truth)
    estimate = load_model("depth", f"files:{tmp_path}").estimate(photo(), blank(photo()))
    np.testing.assert_allclose(estimate.values, truth, atol=6e-4)
    assert not estimate.is_disparity and estimate.is_metric


def test_unknown_depth_is_nan_and_disparity_is_said_by_the_file_or_the_user(tmp_path):
    (tmp_path / "a").mkdir()
    values = np.array([[0, 1000], [2000, 3000]], np.uint16)
    cv2.imwrite(str(tmp_path / "a" / "1.png"), values)
    estimate = load_model("depth", f"files:{tmp_path}").estimate(photo(), blank(photo()))
    assert np.isnan(estimate.values[0, 0]) and estimate.values[1, 1] == pytest.approx(3.0)
    assert load_model("depth", f"files:{tmp_path}?disparity").estimate(photo(), blank(photo())).is_disparity
    np.savez(tmp_path / "a" / "2.npz", disparity=np.ones((2, 2)))
    other = photo("a/2.jpg")
    assert load_model("depth", f"files:{tmp_path}").estimate(other, blank(other)).is_disparity


def test_a_point_map_gives_depth_and_focal_length(tmp_path):
    (tmp_path / "a").mkdir()
    one = photo()
    u, v = ((np.arange(size) + 0.5) / size - 0.5 for size in (32, 24))
    x, y = np.meshgrid(u * one.width / 700.0, v * one.height / 700.0)
    depth = np.linspace(1, 3, 24 * 32).reshape(24, 32)
    np.savez(tmp_path / "a" / "1.npz", points=np.stack([x * depth, y * depth, depth], -1).astype(np.float32))
    estimate = load_model("depth", f"files:{tmp_path}").estimate(one, blank(one))
    np.testing.assert_allclose(estimate.values, depth, rtol=1e-6)
    assert estimate.focal_px == pytest.approx(700.0, rel=1e-3) and estimate.is_metric


def test_an_incidence_field_beside_disparity_gives_the_focal_length(tmp_path):
    """A share of wrong rays does not matter."""
    (tmp_path / "a").mkdir()
    one = photo()
    u, v = ((np.arange(size) + 0.5) / size - 0.5 for size in (32, 24))
    x, y = np.meshgrid(u * one.width / 300.0, v * one.height / 300.0)
    rays = np.stack([x, y, np.ones_like(x)], -1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    rays[::3] = np.random.default_rng(0).normal(size=(8, 32, 3))
    disparity = np.linspace(1, 2, 24 * 32).reshape(24, 32)
    np.savez(tmp_path / "a" / "1.npz", disparity=disparity, rays=rays)
    estimate = load_model("depth", f"files:{tmp_path}").estimate(one, blank(one))
    assert estimate.is_disparity and estimate.focal_px == pytest.approx(300.0, rel=0.02)
    np.testing.assert_allclose(estimate.values, disparity, rtol=1e-6)
    np.savez(tmp_path / "a" / "1.npz", disparity=disparity, rays=rays[..., 0])
    with pytest.raises(InputError, match="1.npz: rays must be three numbers per pixel"):
        load_model("depth", f"files:{tmp_path}").estimate(one, blank(one))


def test_bad_depth_files_are_refused_by_name(tmp_path):
    (tmp_path / "a").mkdir()
    model = load_model("depth", f"files:{tmp_path}")
    with pytest.raises(InputError, match="a/1.jpg: no depth map"):
        model.estimate(photo(), blank(photo()))
    for content, words in ((b"junk", "cannot be read"), (None, "at least one known value")):
        path = tmp_path / "a" / "1.npy"
        path.write_bytes(content) if content else np.save(path, np.full((3, 3), np.nan))
        with pytest.raises(InputError, match=words):
            model.estimate(photo(), blank(photo()))
    np.save(tmp_path / "a" / "1.npy", np.array([{"evil": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        model.estimate(photo(), blank(photo()))
    with pytest.raises(InputError, match="is not a folder"):
        load_model("depth", f"files:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "JSON"),
        ("[1]", "must be an object"),
        ('{"long_sid": 384}', "keys out of"),
        ('{"output": "inverse"}', "choose one of"),
        ('{"long_side": "big"}', "whole numbers"),
        ('{"std": [1, 0, 1]}', "three numbers"),
        ('{"mean": 3}', "three numbers"),
    ],
)
def test_a_wrong_sidecar_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "net.json"
    path.write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        Sidecar.read(path)
    assert "net.json" in str(caught.value)


@pytest.mark.skipif(not NETWORK.is_file(), reason="needs the shared depth network")
@pytest.mark.skipif(not FOUNTAIN.is_dir(), reason="needs the shared photographs")
def test_a_real_network_sees_that_the_ground_is_near():
    from mbasfm.io.images import find_photos, read_upright

    item = find_photos(FOUNTAIN)[0][0]
    estimate = load_model("depth", f"onnx:{NETWORK}").estimate(item, read_upright(item.path))
    assert estimate.is_disparity and not estimate.is_metric
    assert max(estimate.values.shape) == 384 and np.isfinite(estimate.values).all()
    rows = estimate.values.mean(1)
    assert rows[-20:].mean() > 1.2 * rows[:20].mean()


def test_a_file_that_is_no_network_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a readable ONNX network"):
        load_model("depth", f"onnx:{tmp_path / 'net.onnx'}")
    with pytest.raises(InputError, match="no such file"):
        load_model("depth", "onnx:nowhere.onnx")


def test_sift_pixels_have_the_first_centre_at_one_half():
    """A blob drawn around a known point, far from all borders."""
    y, x = np.mgrid[0:120, 0:160] + 0.5
    image = 40 + 180 * np.exp(-((x - 80.25) ** 2 + (y - 60.75) ** 2) / (2 * 6.0**2))
    features = SiftMatcher().describe(photo(), np.repeat(image[..., None], 3, -1).astype(np.uint8))
    nearest = np.abs(features.pixels - [80.25, 60.75]).max(1).min()
    assert nearest < 0.15


def test_sift_matches_of_rendered_photographs_are_mutual_and_plenty():
    scene = make_room(0)
    cameras = make_cameras(scene, 2, 0)
    matcher = SiftMatcher()
    first, second = (matcher.describe(photo(), render(scene, cameras, frame)[0].numpy()) for frame in (0, 1))
    forward, backward = matcher.match(first, second), matcher.match(second, first)
    assert len(forward.indices) > 200
    assert len(set(forward.indices[:, 0])) == len(set(forward.indices[:, 1])) == len(forward.indices)
    both = {tuple(pair) for pair in forward.indices} & {tuple(pair[::-1]) for pair in backward.indices}
    assert len(both) > 0.8 * len(forward.indices)
    assert 0 <= float(forward.confidence.min()) <= float(forward.confidence.max()) <= 1
    empty = matcher.describe(photo(), blank(photo()))
    assert len(matcher.match(first, empty).indices) == 0
