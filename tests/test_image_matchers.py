"""Networks that match images: tiny untrained ones of the same classes, and stand-ins for packages that are not here."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers import photograph_room

from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.models.base import CLONES_VARIABLE, VARIABLE, ImageMatcher, load_model
from mbasfm.models.matchers import loftr, network_matcher, roma, transformers_matchers
from mbasfm.models.matchers.loftr import LoftrMatcher
from mbasfm.models.matchers.mast3r import Mast3rMatcher
from mbasfm.models.matchers.roma import BACKBONE, VARIANTS, RomaMatcher
from mbasfm.models.matchers.transformers_matchers import EfficientLoftrMatcher, SuperPointMatcher

NETWORKS = {"loftr": LoftrMatcher, "efficientloftr": EfficientLoftrMatcher, "superpoint": SuperPointMatcher}


# ----------------------------------------------------------------------------------------------------------------
# Tiny networks


def tiny_loftr(folder: Path) -> None:
    from kornia.feature import LoFTR
    from kornia.feature.loftr import loftr as code

    torch.save({"state_dict": LoFTR(None, code.default_cfg).state_dict()}, folder / "loftr_outdoor.ckpt")


def tiny_efficientloftr(folder: Path) -> None:
    from transformers import EfficientLoFTRConfig, EfficientLoFTRForKeypointMatching

    small = {"stage_num_blocks": [1, 1, 1, 1], "out_features": [16, 16, 32, 64], "hidden_size": 64}
    config = EfficientLoFTRConfig(**small, num_attention_layers=1, coarse_matching_threshold=0.0)
    EfficientLoFTRForKeypointMatching(config).save_pretrained(folder)


def tiny_superpoint(folder: Path) -> None:
    from transformers import LightGlueConfig, LightGlueForKeypointMatching, SuperPointConfig

    detector = SuperPointConfig(
        encoder_hidden_sizes=[8, 8, 8, 8],
        decoder_hidden_size=8,
        descriptor_decoder_dim=16,
        keypoint_threshold=0.0,
        max_keypoints=200,
    )
    config = LightGlueConfig(
        keypoint_detector_config=detector.to_dict(),
        descriptor_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        filter_threshold=0.0,
    )
    LightGlueForKeypointMatching(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """Folders with untrained networks; LoFTR's sizes are no part of its file, so they are small as long as we test."""
    pytest.importorskip("kornia")
    pytest.importorskip("transformers")
    from kornia.feature.loftr import loftr as code

    torch.manual_seed(0)
    whole, folders = code.default_cfg, {}
    code.default_cfg = whole | {
        "resnetfpn": {"initial_dim": 8, "block_dims": [8, 12, 16]},
        "coarse": whole["coarse"] | {"d_model": 16, "d_ffn": 16, "nhead": 2, "layer_names": ["self", "cross"]},
        "fine": whole["fine"] | {"d_model": 8, "d_ffn": 8, "nhead": 2},
        "match_coarse": whole["match_coarse"] | {"thr": 0.0},
    }
    for name, make in {
        "loftr": tiny_loftr,
        "efficientloftr": tiny_efficientloftr,
        "superpoint": tiny_superpoint,
    }.items():
        folders[name] = tmp_path_factory.mktemp(name)
        make(folders[name])
    yield folders
    code.default_cfg = whole


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three small photographs."""
    return photograph_room(tmp_path_factory.mktemp("photos"), 3, (192, 128))


def drawing(width: int, height: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).random((height, width, 3)).astype(np.float32)
    return (255 * cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), None, 0, 1, cv2.NORM_MINMAX)).astype(np.uint8)


@pytest.mark.parametrize("name", NETWORKS)
def test_pixels_lie_in_their_images_and_the_same_pair_gives_the_same(saved, name):
    """Also for a tall image beside a wide one, and for one that is larger than the network takes."""
    model = load_model("matcher", f"{name}:{saved[name]}")
    assert isinstance(model, ImageMatcher) and model.licence and model.download and model.memory
    for sizes in (((160, 128), (160, 128)), ((160, 96), (96, 160)), ((1100, 64), (128, 64))):
        first, second = (drawing(*size, seed) for seed, size in enumerate(sizes))
        found, again = model.match_images(first, second), model.match_images(first, second)
        assert len(found.pixels_i) == len(found.pixels_j) == len(found.confidence)
        assert len(found.pixels_i) or sizes[0] != sizes[1]  # untrained, it may match what an image is filled up with
        for pixels, (width, height) in zip((found.pixels_i, found.pixels_j), sizes, strict=True):
            assert ((pixels > 0) & (pixels < [width, height])).all()
        assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
        np.testing.assert_array_equal(found.pixels_j, again.pixels_j)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_command_runs_and_matches_every_pair_once(saved, photos, tmp_path, monkeypatch, name):
    command = [
        "sfm",
        str(photos),
        "--matcher",
        f"{name}:{saved[name]}",
        "--depth",
        "flat",
        "--cache",
        str(tmp_path / "c"),
    ]
    calls, match = [], network_matcher.ImageNetwork.match_images
    monkeypatch.setattr(network_matcher.ImageNetwork, "match_images", lambda *item: calls.append(1) or match(*item))
    for number in range(2):  # untrained: it may place nothing
        assert main([*command, "--output", str(tmp_path / str(number)), "--quiet"]) in (0, 3)
    assert len(calls) == 3


# ----------------------------------------------------------------------------------------------------------------
# Pixels


def standing_in(kind, network):
    model = object.__new__(kind)
    model._device, model._network = torch.device("cpu"), network
    return model


def with_dot(width: int, height: int, column: int, row: int, enlarge: int) -> np.ndarray:
    image = np.zeros((height * enlarge, width * enlarge, 3), np.uint8)
    image[row * enlarge : (row + 1) * enlarge, column * enlarge : (column + 1) * enlarge] = 255
    return image


def dots(images):
    """Column and row of the brightest pixel."""
    return [
        torch.tensor([[int(image.argmax()) % image.shape[-1], int(image.argmax()) // image.shape[-1]]])
        for image in images
    ]


class DotLoftr:
    """Says where the dot is as LoFTR was taught to: the first pixel's centre is at one half."""

    def __call__(self, data):
        places = dots([data["image0"][0, 0], data["image1"][0, 0]])
        return {"keypoints0": places[0] + 0.5, "keypoints1": places[1] + 0.5, "confidence": torch.ones(1)}


class DotLightGlue:
    """Pixels are relative to the canvas, counted from their centres, as SuperPoint gives them."""

    def __call__(self, canvas):
        size = torch.tensor(canvas.shape[:-3:-1])
        keypoints = torch.stack([place / size for place in dots(canvas[0, :, 0])])[None]
        zero, one = torch.zeros(1, 2, 1, dtype=torch.int64), torch.ones(1, 2, 1)
        return SimpleNamespace(keypoints=keypoints, matches=zero, matching_scores=one, mask=one)


class DotEfficientLoftr(DotLightGlue):
    """As it was taught to, the first pixel's centre is at one half."""

    def __call__(self, canvas):
        found = super().__call__(canvas)
        found.keypoints = found.keypoints + 0.5 / torch.tensor(canvas.shape[:-3:-1])
        return found


@pytest.mark.parametrize(
    "kind, network",
    [
        (LoftrMatcher, DotLoftr()),
        (SuperPointMatcher, DotLightGlue()),
        (EfficientLoftrMatcher, DotEfficientLoftr()),
    ],
)
@pytest.mark.parametrize("enlarge", [1, 4])
def test_the_first_pixel_has_its_centre_at_one_half(monkeypatch, kind, network, enlarge):
    """Large images are shrunk before; the second one is smaller and filled up."""
    monkeypatch.setattr(kind, "long_side_px", 128)
    first, second = with_dot(128, 96, 70, 40, enlarge), with_dot(128, 64, 30, 20, enlarge)
    found = standing_in(kind, network).match_images(first, second)
    np.testing.assert_allclose(found.pixels_i, [[70.5 * enlarge, 40.5 * enlarge]], rtol=1e-6)
    np.testing.assert_allclose(found.pixels_j, [[30.5 * enlarge, 20.5 * enlarge]], rtol=1e-6)


def test_corners_of_what_fills_an_image_up_are_no_features():
    first, second = with_dot(128, 96, 70, 40, 1), with_dot(128, 64, 30, 62, 1)
    assert len(standing_in(SuperPointMatcher, DotLightGlue()).match_images(first, second).pixels_i) == 0


@pytest.mark.parametrize("turned", [False, True])
def test_efficientloftr_pairs_what_belongs_together(saved, turned):
    """Features are planted: the second image shows the first one's, moved by 16 pixels, or upside down."""
    width, height, shift = 256, 192, 16
    generator = torch.Generator().manual_seed(0)

    def planted(channels, step):
        whole = torch.randn(channels, height // step, (width + shift) // step, generator=generator)
        first = whole[..., shift // step :]
        return torch.stack([first, first.flip(1, 2) if turned else whole[..., : width // step]])

    model = load_model("matcher", f"efficientloftr:{saved['efficientloftr']}")
    coarse, *others = (planted(*shape) for shape in ((64, 8), (16, 2), (16, 2), (32, 4)))
    features = SimpleNamespace(feature_maps=[6 * coarse[None], *others], hidden_states=None, attentions=None)
    model._network.efficientloftr.forward = lambda *_, **__: features
    found = model.match_images(*np.zeros((2, height, width, 3), np.uint8))
    assert len(found.pixels_i) > 300
    if turned:  # to the size of a window: it does not turn with the image
        error = found.pixels_i + found.pixels_j - [width - 8, height - 8]
        assert np.linalg.norm(error, axis=1).max() < 12
    else:
        np.testing.assert_allclose(
            found.pixels_j - found.pixels_i, np.tile([shift, 0.0], (len(found.pixels_i), 1)), atol=1
        )


# ----------------------------------------------------------------------------------------------------------------
# Stand-ins

STANDINS = Path(__file__).parent / "standins"


@pytest.fixture
def romatch(tmp_path, monkeypatch):
    """The package and its weights."""
    monkeypatch.syspath_prepend(STANDINS / "romatch")
    monkeypatch.delitem(sys.modules, "romatch", raising=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for url, content in ((VARIANTS["outdoor"], {"w": 1}), (BACKBONE, {"b": 2})):
        torch.save(content, tmp_path / url.rpartition("/")[2])
    yield tmp_path
    sys.modules.pop("romatch", None)


def test_roma_is_sampled_on_grids_of_both_images(romatch):
    model = load_model("matcher", "roma")
    assert isinstance(model, ImageMatcher) and not RomaMatcher.missing()
    width, height = 480, 240
    found = model.match_images(drawing(width, height), drawing(width, height, 1))
    np.testing.assert_allclose(
        found.pixels_j - found.pixels_i, np.tile([0.25 * width, 0], (len(found.pixels_i), 1)), atol=1e-3
    )
    assert ((found.pixels_i > 0) & (found.pixels_j < [width, height])).all() and np.allclose(found.confidence, 0.9)
    cells = [(pixels / [width / 48, height / 48]) for pixels in (found.pixels_i, found.pixels_j)]
    on_grid = [np.isclose(cell % roma.STEP_PX, roma.STEP_PX // 2 + 0.5, atol=1e-3).all(1) for cell in cells]
    assert (on_grid[0] | on_grid[1]).all() and on_grid[0].any() and on_grid[1].any()


def test_what_roma_lacks_is_said_with_the_command(romatch, monkeypatch):
    (romatch / "roma_outdoor.pth").unlink()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(romatch / "nowhere"))
    with pytest.raises(
        InputError, match=f"curl -L --create-dirs -o {romatch}/roma_outdoor.pth https://.*/roma_outdoor.pth"
    ):
        load_model("matcher", "roma")
    with pytest.raises(InputError, match="choose one of outdoor, indoor"):
        load_model("matcher", "roma:moon")
    monkeypatch.setattr(roma, "find_spec", lambda name: None)
    assert RomaMatcher.missing() == "pip install romatch"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone of the repository, and weights."""
    repository = Mast3rMatcher.variants["512"][0]
    shutil.copytree(STANDINS / "mast3r", tmp_path / "clones/mast3r")
    (tmp_path / repository).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / repository / name).write_text("{}")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(CLONES_VARIABLE, str(tmp_path / "clones"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mast3r"]:
        del sys.modules[name]


@pytest.mark.parametrize("enlarge", [1, 4])
def test_mast3r_matches_pixels_at_their_centres(clone, monkeypatch, enlarge):
    monkeypatch.setattr(Mast3rMatcher, "long_side_px", 96)
    noise = np.random.default_rng(0).integers(0, 256, (64, 112, 3), dtype=np.uint8)
    first, second = (np.kron(part, np.ones((enlarge, enlarge, 1), np.uint8)) for part in (noise[:, 16:], noise[:, :96]))
    model = load_model("matcher", "mast3r")
    found = model.match_images(first, second)
    assert len(found.pixels_i) > 50 and np.allclose(found.confidence, 0.75)
    right = np.abs(found.pixels_j - found.pixels_i - [16 * enlarge, 0]).max(1) < 1e-4
    assert right.mean() > 0.95  # what only one of them shows resembles something, too
    np.testing.assert_allclose(found.pixels_i / enlarge % 1, 0.5, atol=1e-4)


def test_what_mast3r_lacks_is_said_with_the_command(clone, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(clone / "nowhere"))
    monkeypatch.setenv(CLONES_VARIABLE, str(clone / "elsewhere"))
    with pytest.raises(InputError, match="git clone --recursive https://github.com/naver/mast3r"):
        load_model("matcher", "mast3r")
    monkeypatch.setenv(CLONES_VARIABLE, str(clone / "clones"))
    monkeypatch.setenv(VARIABLE, str(clone / "clones"))
    with pytest.raises(InputError, match="hf download naver/MASt3R.* config.json model.safetensors"):
        load_model("matcher", "mast3r")
    (clone / "clones/mast3r/mast3r/fast_nn.py").write_text("import no_such_module")
    monkeypatch.setenv(VARIABLE, str(clone))
    with pytest.raises(InputError, match="cannot be imported .*no_such_module"):
        load_model("matcher", "mast3r")


@pytest.mark.parametrize("name", NETWORKS)
def test_missing_weights_are_named_with_the_command(name, monkeypatch, tmp_path):
    pytest.importorskip("kornia")
    pytest.importorskip("transformers")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(network_matcher, "find_snapshot", lambda *_: None)
    assert NETWORKS[name].missing().startswith("hf download ")
    with pytest.raises(InputError, match="must be a folder with"):
        load_model("matcher", f"{name}:{tmp_path}")
    monkeypatch.setattr(loftr if name == "loftr" else transformers_matchers, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="its code is not on this machine; get it: pip install 'mbasfm"):
        load_model("matcher", name)
