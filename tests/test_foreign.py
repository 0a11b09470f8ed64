"""Depth networks of other packages, against stand-ins in the place of clones (test_signatures.py compares them)."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import photograph_room

from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos
from mbasfm.matching.inference import estimate_depths
from mbasfm.models import base
from mbasfm.models.base import DepthModel, choose_auto, list_models, load_model
from mbasfm.models.depth import metric3d
from mbasfm.types.observations import Photo

STANDINS = Path(__file__).parent / "standins"
FOCAL = {"dust3r": 400 / 512, "moge": 0.8, "unidepth": 1.0, "depth-anything-3": 1.0, "metric3d": None}
"""Of the stand-ins, in image widths; of a landscape."""
FILES = {
    "dust3r": ("config.json", "model.safetensors"),
    "moge": ("model.pt",),
    "unidepth": ("config.json", "model.safetensors"),
    "depth-anything-3": ("config.json", "model.safetensors"),
    "metric3d": ("metric_depth_vit_small_800k.pth",),
}
HAS_CONFIDENCE = ("dust3r", "depth-anything-3", "metric3d")
IS_METRIC = ("moge", "unidepth")


@pytest.fixture(autouse=True)
def clones(monkeypatch, tmp_path):
    """Stand-ins are the only clones, and what they let be found is gone afterwards."""
    monkeypatch.setenv(base.CLONES_VARIABLE, str(STANDINS))
    monkeypatch.delenv(base.VARIABLE, raising=False)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(metric3d, "find_spec", lambda name: True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, str]:
    """A folder with weights for each, as far as the stand-ins look at them."""
    folders = {}
    for name, files in FILES.items():
        folder = tmp_path_factory.mktemp(name)
        for file in files:
            (folder / file).write_text("{}")
        folders[name] = f"{name}:{folder}"
    torch.save({"model_state_dict": {"offset": torch.ones(1)}}, Path(folders["metric3d"][9:]) / FILES["metric3d"][0])
    return folders


def photo(width: int, height: int, exif_focal_px: float | None = None) -> Photo:
    return Photo("a.jpg", Path("a.jpg"), width, height, exif_focal_px, "", "0")


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [(210, 150), (150, 211)])
def test_the_map_has_its_values_where_the_image_has_them(saved, name, size):
    """A ramp whose value is the place [px], with the first centre at (0.5, 0.5), comes back as the place."""
    width, height = size
    model = load_model("depth", saved[name])
    assert isinstance(model, DepthModel) and model.licence == "that of the weights"
    for axis, side in ((1, width), (0, height)):
        ramp = np.arange(side) + 0.5
        place = np.broadcast_to(ramp if axis else ramp[:, None], (height, width))
        image = np.repeat(place[..., None], 3, -1).astype(np.uint8)  # 0.5 less than the place
        estimate = model.estimate(photo(*size), image)
        assert estimate.values.dtype == np.float32 and not estimate.is_disparity
        found = 255 * (np.nanmedian(estimate.values.astype(np.float64), 1 - axis) - 1) + 0.5
        expected = (np.arange(estimate.values.shape[axis]) + 0.5) / estimate.values.shape[axis] * side
        inner = np.isfinite(found)
        inner[:2] = inner[-2:] = False  # filters reach over the border
        assert inner.mean() > 0.9
        np.testing.assert_allclose(found[inner], expected[inner], atol=0.3)


@pytest.mark.parametrize("name", FILES)
def test_units_focal_length_and_confidence(saved, name):
    image = np.full((150, 210, 3), 51, np.uint8)
    estimate = load_model("depth", saved[name]).estimate(photo(210, 150), image)
    np.testing.assert_allclose(estimate.values[np.isfinite(estimate.values)], 1.2, rtol=1e-3)
    assert estimate.is_metric == (name in IS_METRIC)
    if FOCAL[name] is None:
        assert estimate.focal_px is None
    else:
        assert estimate.focal_px == pytest.approx(FOCAL[name] * 210, rel=0.02)
    assert (estimate.confidence is not None) == (name in HAS_CONFIDENCE)
    if estimate.confidence is not None:
        assert estimate.confidence.shape == estimate.values.shape
        np.testing.assert_allclose(np.median(estimate.confidence), 0.2 if name == "metric3d" else 1 / 6, atol=1e-3)


@pytest.mark.parametrize("name", FILES)
def test_a_batch_gives_what_single_images_give(saved, name):
    model = load_model("depth", saved[name])
    images = [np.random.default_rng(n).integers(9, 256, shape, dtype=np.uint8) for n, shape in enumerate(SHAPES)]
    photos = [photo(image.shape[1], image.shape[0]) for image in images]
    for item, image, estimate in zip(photos, images, model.estimate_batch(photos, images), strict=True):
        single = model.estimate(item, image)
        np.testing.assert_allclose(estimate.values, single.values, rtol=1e-5)
        assert estimate.focal_px == single.focal_px


SHAPES = [(120, 160, 3), (160, 120, 3), (120, 160, 3)]


def test_dust3r_says_nothing_about_what_it_cuts_off(saved):
    """512 x 366 becomes 512 x 352: seven rows above and below are not seen."""
    estimate = load_model("depth", saved["dust3r"]).estimate(photo(210, 150), np.full((150, 210, 3), 99, np.uint8))
    assert estimate.values.shape == (366, 512)
    assert np.isnan(estimate.values[:7]).all() and np.isnan(estimate.values[-7:]).all()
    assert np.isfinite(estimate.values[7:-7]).all() and (estimate.confidence[:7] == 0).all()


def test_moge_does_not_know_what_its_mask_excludes_and_its_first_version_has_no_metres(saved, monkeypatch, tmp_path):
    image = np.full((60, 80, 3), 51, np.uint8)
    image[:30] = 0
    estimate = load_model("depth", saved["moge"]).estimate(photo(80, 60), image)
    assert np.isnan(estimate.values[:29]).all() and np.isfinite(estimate.values[31:]).all() and estimate.is_metric
    monkeypatch.setenv(base.VARIABLE, str(tmp_path))
    (tmp_path / "moge-vitl").mkdir()
    (tmp_path / "moge-vitl" / "model.pt").write_text("")
    model = load_model("depth", "moge:v1-large")
    assert not model.estimate(photo(80, 60), image).is_metric and model.licence == "MIT"


def test_metric3d_is_metric_if_the_focal_length_is_known(saved):
    """210 px become 862; 1.2 is meant for a focal length of 1000 px at that size."""
    model, image = load_model("depth", saved["metric3d"]), np.full((150, 210, 3), 51, np.uint8)
    estimate = model.estimate(photo(210, 150, exif_focal_px=105.0), image)
    assert estimate.is_metric
    np.testing.assert_allclose(estimate.values, 1.2 * 105 * 862 / 210 / 1000, rtol=1e-3)


def test_licences_are_said_for_every_variant(monkeypatch, tmp_path):
    monkeypatch.setenv(base.VARIABLE, str(tmp_path))
    for folder in ("DA3-BASE", "DA3-LARGE-1.1", "unidepth-v2-vitl14", "DUSt3R_ViTLarge_BaseDecoder_512_dpt"):
        (tmp_path / folder).mkdir()
        for file in FILES["dust3r"]:
            (tmp_path / folder / file).write_text("{}")
    assert load_model("depth", "depth-anything-3").licence == "Apache-2.0"
    for spec in ("depth-anything-3:large", "unidepth", "dust3r"):
        assert "non-commercial" in load_model("depth", spec).licence
    assert choose_auto("depth")[0] == "depth-anything-3"  # the others are not for every use
    (tmp_path / "moge-2-vits-normal").mkdir()
    (tmp_path / "moge-2-vits-normal" / "model.pt").write_text("")
    spec, sentence = choose_auto("depth")
    assert spec == "moge" and "--depth moge:large" in sentence


def test_what_is_missing_is_said_with_the_command_that_gets_it(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="get them: hf download naver/DUSt3R_ViTLarge_BaseDecoder_512_dpt config.json"):
        load_model("depth", "dust3r")
    monkeypatch.setattr(metric3d, "find_spec", lambda name: None)
    assert load_missing("metric3d") == "pip install mmengine timm"
    monkeypatch.setenv(base.CLONES_VARIABLE, str(tmp_path))
    assert load_missing("metric3d") == f"git clone https://github.com/YvanYin/Metric3D {tmp_path / 'Metric3D'}"
    monkeypatch.setattr("mbasfm.models.clones.find_spec", lambda name: None)
    assert load_missing("dust3r").startswith("git clone --recursive https://github.com/naver/dust3r")
    assert load_missing("moge") == "pip install dlr-moge"
    with pytest.raises(InputError, match="its code is not on this machine; get it: pip install depth-anything-3"):
        load_model("depth", "depth-anything-3")


def load_missing(name: str) -> str:
    return next(row.missing for row in list_models() if (row.kind, row.name) == ("depth", name))


def test_a_clone_that_cannot_be_imported_is_named(monkeypatch, tmp_path, saved):
    module = tmp_path / "UniDepth" / "unidepth_broken"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("import no_such_module")
    monkeypatch.setenv(base.CLONES_VARIABLE, str(tmp_path))
    from mbasfm.models.depth.unidepth import UniDepth

    monkeypatch.setattr(UniDepth, "code", UniDepth.code.__class__("x/UniDepth", modules=("unidepth_broken",)))
    with pytest.raises(InputError, match="UniDepth cannot be imported .*no_such_module.*install what it asks for"):
        load_model("depth", saved["unidepth"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three small photographs."""
    return photograph_room(tmp_path_factory.mktemp("photos"), 3, (160, 120))


@pytest.mark.parametrize("name", ["dust3r", "depth-anything-3"])
def test_the_command_runs_with_it_and_takes_its_focal_length(saved, folder, tmp_path, name):
    command = [
        "sfm",
        str(folder),
        "--output",
        str(tmp_path),
        "--matcher",
        "sift",
        "--no-polish",
        "--depth",
        saved[name],
    ]
    assert main([*command, "--models-path", str(STANDINS), "--min-depth-confidence", "0.05"]) in (0, 3)
    report = json.loads((tmp_path / "report.json").read_text())
    (camera,) = report["cameras"]
    assert camera["focal_from"] == "depth model"
    assert camera["start_focal_px"] == pytest.approx(FOCAL[name] * 160, rel=0.02)


def test_photographs_are_kept_by_content_and_precision(saved, folder, tmp_path):
    photos, _ = find_photos(folder)
    model, cache = load_model("depth", saved["dust3r"]), Cache(tmp_path)
    with cache.active():
        first = list(estimate_depths(photos, model))
        model._network = None  # it is not asked again
        again = list(estimate_depths(photos, model))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.confidence, other.confidence)
    assert "float32" in model.key
