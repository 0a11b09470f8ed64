"""Depth networks through transformers: tiny ones of the same classes, and a stand-in that shows where pixels go."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import photograph_room

from mbasfm.cli import main
from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos
from mbasfm.matching.inference import estimate_depths
from mbasfm.models import base
from mbasfm.models.base import DepthModel, choose_auto, load_model
from mbasfm.models.depth import network_depth, transformers_depth
from mbasfm.models.depth.transformers_depth import network_size
from mbasfm.types.observations import Photo

transformers = pytest.importorskip("transformers", reason="needs: pip install 'mbasfm[transformers]'")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # importing ZoeDepth's network
NAMES = ("depth-anything-v2", "depth-pro", "zoedepth")
DPT = {"size": {"height": 56, "width": 56}, "keep_aspect_ratio": True, "ensure_multiple_of": 14, "resample": 3}
SQUARE = {"size": {"height": 64, "width": 64}, "resample": 2}
PADDED = {"size": {"height": 48, "width": 64}, "keep_aspect_ratio": True, "ensure_multiple_of": 16, "resample": 2}
COLOURS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def tiny_anything(kind: str = "relative"):
    backbone = transformers.Dinov2Config(
        image_size=56,
        patch_size=14,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        out_indices=[1, 2, 3, 4],
        reshape_hidden_states=False,
    )
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=16,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=4,
        depth_estimation_type=kind,
        max_depth=20,
    )
    return transformers.DepthAnythingForDepthEstimation(config), DPT


def tiny_pro():
    vit = {"model_type": "dinov2", "image_size": 32, "patch_size": 8, "hidden_size": 16, "num_attention_heads": 2}
    parts = {f"{part}_model_config": vit | {"num_hidden_layers": 2} for part in ("image", "patch", "fov")}
    config = transformers.DepthProConfig(
        patch_size=32,
        fusion_hidden_size=16,
        intermediate_hook_ids=[1, 0],
        intermediate_feature_dims=[8, 8],
        scaled_images_ratios=[0.5, 1.0],
        scaled_images_overlap_ratios=[0.0, 0.2],
        scaled_images_feature_dims=[12, 12],
        use_fov_model=True,
        **parts,
    )
    network_depth = transformers.DepthProForDepthEstimation(config)
    network_depth.fov_model.head.layers[-1].bias.data[:] = 60.0  # untrained, it would see no angle at all
    return network_depth, SQUARE


def tiny_zoe():
    backbone = transformers.BeitConfig(
        image_size=64,
        patch_size=16,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        use_relative_position_bias=True,
        reshape_hidden_states=False,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.ZoeDepthConfig(
        backbone_config=backbone,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        num_relative_features=4,
        bottleneck_features=8,
        bin_embedding_dim=8,
    )
    return transformers.ZoeDepthForDepthEstimation(config), PADDED


MAKERS = {
    "depth-anything-v2": tiny_anything,
    "depth-pro": tiny_pro,
    "zoedepth": tiny_zoe,
    "metric": lambda: tiny_anything("metric"),
}


def save(folder: Path, name: str) -> Path:
    torch.manual_seed(0)
    network_depth, settings = MAKERS[name]()
    for parameter in network_depth.parameters():
        if parameter.dim() > 1:  # as they start, such networks hardly look at the image
            torch.nn.init.kaiming_normal_(parameter)
    network_depth.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | COLOURS))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    return {name: save(tmp_path_factory.mktemp(name), name) for name in MAKERS}


@pytest.fixture(autouse=True)
def empty_hub(monkeypatch, tmp_path):
    """What the machine happens to have must not decide."""
    monkeypatch.delenv(base.VARIABLE, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def photo(width: int, height: int) -> Photo:
    return Photo("a.jpg", Path("a.jpg"), width, height, None, "", "0")


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "name, spec, is_disparity, is_metric",
    [
        ("depth-anything-v2", "depth-anything-v2", True, False),
        ("metric", "depth-anything-v2", False, True),
        ("depth-pro", "depth-pro", False, True),
        ("zoedepth", "zoedepth", False, True),
    ],
)
def test_shape_and_unit(saved, name, spec, is_disparity, is_metric):
    model = load_model("depth", f"{spec}:{saved[name]}")
    estimate = model.estimate(photo(160, 120), noise(160, 120))
    assert isinstance(model, DepthModel) and model.licence == "that of the weights"
    assert (estimate.is_disparity, estimate.is_metric) == (is_disparity, is_metric)
    assert estimate.values.dtype == np.float32 and np.isfinite(estimate.values).all() and estimate.values.min() >= 0
    assert (estimate.focal_px is not None) == (spec == "depth-pro")


def assert_same_depth(found, expected):
    """Up to rounding. Networks give depth or its inverse, and what is small in one is large in the other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = [np.abs(a - b) / np.max(b[np.isfinite(b)]) for a, b in ((found, expected), (1 / found, 1 / expected))]
    assert np.fmin(*shares).max() < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_gives_what_single_images_give(saved, name):
    model = load_model("depth", f"{name}:{saved[name]}")
    images = [noise(160, 120), noise(120, 160, 1), noise(160, 120, 2) // 4]
    photos = [photo(image.shape[1], image.shape[0]) for image in images]
    together = model.estimate_batch(photos, images)
    for item, image, estimate in zip(photos, images, together, strict=True):
        single = model.estimate(item, image)
        assert_same_depth(estimate.values, single.values)
        assert (estimate.focal_px or 0) == pytest.approx(single.focal_px or 0, rel=1e-5)
    assert (
        np.abs(together[0].values - together[2].values).max() > 1e-2 * together[0].values.max()
    )  # they are not all the same


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_near_to_single_and_cached_apart(monkeypatch, saved, name):
    """As on a GPU: eight at a time; the CPU stands in for it."""
    images = [noise(160, 120, seed) for seed in range(2)]
    exact = load_model("depth", f"{name}:{saved[name]}")
    monkeypatch.setattr(base, "is_fast", lambda device: True)
    monkeypatch.setattr(network_depth, "is_fast", lambda device: True)
    model = load_model("depth", f"{name}:{saved[name]}")
    assert model.key != exact.key and model.batch_size == 8 and not model.cpu_seconds
    assert next(model._network.parameters()).dtype == torch.float16
    photos = [photo(160, 120)] * 2
    for half, single in zip(model.estimate_batch(photos, images), exact.estimate_batch(photos, images), strict=True):
        assert half.values.dtype == np.float32
        assert np.median(np.abs(half.values - single.values) / single.values.clip(1e-6)) < 0.02


class SeesRed(torch.nn.Module):
    """Gives back the red of its input, 0 to 1, and an angle of view of 90 degrees."""

    config = SimpleNamespace(depth_estimation_type="relative")

    def forward(self, pixels):
        red = pixels[:, 0] * COLOURS["image_std"][0] + COLOURS["image_mean"][0]
        return SimpleNamespace(predicted_depth=red, field_of_view=torch.full((len(red),), 90.0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(210, 150), (150, 211)])
def test_the_map_has_its_values_where_the_image_has_them(saved, name, size):
    """A ramp whose value is the place [px], with the first centre at (0.5, 0.5), comes back as the place."""
    width, height = size
    model = load_model("depth", f"{name}:{saved[name]}")
    model._network = SeesRed()
    for axis, side in ((1, width), (0, height)):
        ramp = np.arange(side) + 0.5
        place = np.broadcast_to(ramp if axis else ramp[:, None], (height, width))
        image = np.repeat(place[..., None], 3, -1).astype(np.uint8)  # 0.5 less than the place
        values = model.estimate(photo(*size), image).values.astype(np.float64)
        if name == "depth-pro":  # inverse depth for a focal length of one width; 90 degrees are half a width
            values = 1 / (2 * values)
        found = 255 * values.mean(1 - axis) + 0.5
        expected = (np.arange(values.shape[axis]) + 0.5) / values.shape[axis] * side
        inner = slice(2, -2)  # filters reach over the border
        np.testing.assert_allclose(found[inner], expected[inner], atol=0.3)


def test_depth_pro_gives_metres_and_the_focal_length(saved):
    model = load_model("depth", f"depth-pro:{saved['depth-pro']}")
    model._network = SeesRed()
    estimate = model.estimate(photo(200, 100), np.full((100, 200, 3), 51, np.uint8))
    assert estimate.focal_px == pytest.approx(100.0, rel=1e-5)  # half the width at 90 degrees
    np.testing.assert_allclose(estimate.values, 2.5, rtol=1e-4)  # 1 / (0.2 * 200 / 100)


def test_sizes_are_those_of_the_published_preparation():
    """Worked out by hand: the side whose scale is nearer to one is fitted, then both are rounded."""
    settings = DPT | {"size": {"height": 518, "width": 518}}
    assert network_size(640, 480, settings) == (518, 686)
    assert network_size(480, 640, settings) == (686, 518)
    assert network_size(1024, 683, settings) == (518, 770)
    assert network_size(300, 4000, SQUARE) == (64, 64)


def test_weights_are_found_below_the_folder_and_their_absence_says_how_to_get_them(monkeypatch, tmp_path):
    command = "hf download depth-anything/Depth-Anything-V2-Small-hf"
    with pytest.raises(InputError, match=f"not on this machine; get them: {command}"):
        load_model("depth", "depth-anything-v2")
    monkeypatch.setenv(base.VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match=f"{command} .*--local-dir {tmp_path}/depth-anything"):
        load_model("depth", "depth-anything-v2:small")
    with pytest.raises(InputError, match="Metric-Indoor-Large-hf"):
        load_model("depth", "depth-anything-v2:metric-indoor-large")
    save(tmp_path / "Depth-Anything-V2-Small-hf", "depth-anything-v2")
    save(tmp_path / "depth-anything" / "Depth-Anything-V2-Base-hf", "depth-anything-v2")
    assert load_model("depth", "depth-anything-v2").licence == "Apache-2.0"
    assert "non-commercial" in load_model("depth", "depth-anything-v2:base").licence


def test_the_cache_of_the_hub_is_found(tmp_path):
    cached = tmp_path / "hub" / "models--Intel--zoedepth-nyu-kitti"
    save(cached / "snapshots" / "0123", "zoedepth")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    assert load_model("depth", "zoedepth").licence == "MIT"
    spec, sentence = choose_auto("depth")
    assert spec == "zoedepth" and "first: hf download depth-anything/Depth-Anything-V2-Small-hf" in sentence


def test_auto_takes_the_permissive_one_that_is_there_and_says_so(monkeypatch, tmp_path):
    spec, sentence = choose_auto("depth")
    assert spec == "flat" and "--depth depth-anything-v2 (first: hf download" in sentence
    monkeypatch.setenv(base.VARIABLE, str(tmp_path))
    save(tmp_path / "DepthPro-hf", "depth-pro")
    assert choose_auto("depth")[0] == "flat"
    save(tmp_path / "zoedepth-nyu-kitti", "zoedepth")
    assert choose_auto("depth")[0] == "zoedepth"
    save(tmp_path / "Depth-Anything-V2-Small-hf", "depth-anything-v2")
    spec, sentence = choose_auto("depth")
    assert spec == "depth-anything-v2" and sentence.startswith("Took depth model depth-anything-v2")
    assert load_model("depth", spec).licence == "Apache-2.0"


def test_what_cannot_be_used_is_said(monkeypatch, saved, tmp_path):
    with pytest.raises(InputError, match="must be a folder with config.json"):
        load_model("depth", f"zoedepth:{tmp_path}")
    with pytest.raises(InputError, match="type 'zoedepth', not one for depth-pro"):
        load_model("depth", f"depth-pro:{saved['zoedepth']}")
    broken = save(tmp_path / "broken", "zoedepth")
    (broken / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be read as zoedepth"):
        load_model("depth", f"zoedepth:{broken}")
    monkeypatch.setattr(transformers_depth, "find_spec", lambda name: None)
    assert base._missing("depth", "depth-pro") == "pip install 'mbasfm[transformers]'"
    with pytest.raises(MissingExtraError, match="mbasfm\\[transformers\\]"):
        load_model("depth", "depth-pro")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three small photographs."""
    return photograph_room(tmp_path_factory.mktemp("photos"), 3, (160, 120))


def test_photographs_go_through_in_batches_and_once(monkeypatch, saved, folder, tmp_path):
    photos, _ = find_photos(folder)
    model, cache = load_model("depth", f"zoedepth:{saved['zoedepth']}"), Cache(tmp_path / "cache")
    single = list(estimate_depths(photos, model))
    model.batch_size = 2
    calls = []
    whole = model.estimate_batch
    monkeypatch.setattr(model, "estimate_batch", lambda *batch: calls.append(len(batch[0])) or whole(*batch))
    for _ in range(2):
        with cache.active():
            again = list(estimate_depths(photos, model))
        for one, other in zip(single, again, strict=True):
            assert_same_depth(other.values, one.values)
    assert calls == [2, 1]


@pytest.mark.parametrize("name", MAKERS)
def test_the_command_runs_with_such_a_network(saved, folder, tmp_path, capsys, name):
    """Untrained, it may place nothing; its depth is used all the same."""
    spec = f"{'depth-anything-v2' if name == 'metric' else name}:{saved[name]}"
    command = ["sfm", str(folder), "--output", str(tmp_path / "scene"), "--matcher", "sift", "--depth", spec]
    assert main([*command, "--no-polish"]) in (0, 3)
    said = capsys.readouterr()
    assert "without depth" not in said.out + said.err and "depth " in said.err
    report = json.loads((tmp_path / "scene" / "report.json").read_text())
    assert all(report["depth_pictures"])  # more than one number everywhere
    assert report["cameras"][0]["focal_from"] == ("depth model" if name == "depth-pro" else "search")
