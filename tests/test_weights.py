"""Where networks are looked for, what is said if they are not there, and when weights are fetched."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mbasfm.cli import main
from mbasfm.io.files import Cache
from mbasfm.matching.image_matching import match_as_images
from mbasfm.matching.inference import estimate_depths
from mbasfm.matching.observe import warn_if_pairs_are_slow, warn_if_slow
from mbasfm.models import base, weights
from mbasfm.models.base import DepthModel, ImageMatcher, choose_auto, is_online, looking_in
from mbasfm.models.depth import network_depth
from mbasfm.models.depth.depth_anything import DepthAnythingV2
from mbasfm.models.weights import clone_command, fetch_command, find_clone, find_snapshot
from mbasfm.runtime.progress import Progress
from mbasfm.types.observations import DepthEstimate, Photo, PixelMatches

SMALL = "depth-anything/Depth-Anything-V2-Small-hf"


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch, tmp_path):
    """What the machine happens to have must not decide."""
    for variable in (base.VARIABLE, base.CLONES_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    if network_depth.find_snapshot(SMALL) is not None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def make_snapshot(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in weights.NEEDED:
        (folder / name).write_text("{}")
    return folder


def test_the_option_goes_before_the_variable(monkeypatch, tmp_path):
    by_variable = make_snapshot(tmp_path / "variable" / SMALL)
    by_option = make_snapshot(tmp_path / "option" / SMALL.partition("/")[2])
    assert find_snapshot(SMALL) is None
    monkeypatch.setenv(base.VARIABLE, str(tmp_path / "variable"))
    assert find_snapshot(SMALL) == by_variable
    with looking_in(str(tmp_path / "option")):
        assert find_snapshot(SMALL) == by_option
        assert fetch_command(SMALL).endswith(f"--local-dir {tmp_path / 'option' / SMALL}")
    assert find_snapshot(SMALL) == by_variable


def test_commands_look_where_they_are_told_to(tmp_path, capsys):
    pytest.importorskip("transformers", reason="needs: pip install 'mbasfm[transformers]'")
    make_snapshot(tmp_path / SMALL)
    images = [tmp_path / "photos" / name for name in ("0.png", "1.png")]
    images[0].parent.mkdir()
    for image in images:
        write_image(image)
    asked = ["--depth", "depth-anything-v2", "--matcher", "sift"]
    sfm = ["sfm", str(images[0].parent), "--output", str(tmp_path / "scene"), *asked]
    pair = ["pair", *map(str, images), *asked]
    for command in (sfm, pair):
        for options, words in (
            ([], f"get them: hf download {SMALL}"),
            (["--weights", str(tmp_path)], "preprocessor_config.json: must have size"),  # found, but empty
            (["--weights", str(tmp_path / "nowhere")], "nowhere: there is no such folder"),
            (["--models-path", str(tmp_path / "nowhere")], "nowhere: there is no such folder"),
        ):
            assert main([*command, *options]) == 2
            assert words in capsys.readouterr().err
    assert main(["models", "--json", "--weights", str(tmp_path)]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out) if row["kind"] == "depth"}
    assert rows["depth-anything-v2"]["missing"] == "" and rows["zoedepth"]["missing"].startswith("hf download")


def write_image(path: Path) -> None:
    Image.fromarray(np.random.default_rng(list(path.name.encode())).integers(0, 255, (72, 96, 3), np.uint8)).save(path)


@pytest.mark.parametrize("place", ["dust3r", "naver/dust3r", "naver_dust3r_main", "DUSt3R"])
def test_clones_are_found_under_the_names_that_people_and_torch_hub_give_them(monkeypatch, tmp_path, place):
    assert find_clone("naver/dust3r") is None
    command = f"git clone --recursive https://github.com/naver/dust3r {tmp_path / 'hub' / 'dust3r'}"
    assert clone_command("naver/dust3r", "--recursive ") == command
    (tmp_path / "a" / place).mkdir(parents=True)
    (tmp_path / "a" / "naver_dust3r2").mkdir()
    monkeypatch.setenv(base.CLONES_VARIABLE, str(tmp_path / "a"))
    assert find_clone("naver/dust3r") == tmp_path / "a" / place
    assert clone_command("naver/dust3r").endswith(str(tmp_path / "a" / "dust3r"))
    (tmp_path / "b" / "dust3r").mkdir(parents=True)
    with looking_in(models_path=str(tmp_path / "b")):
        assert find_clone("naver/dust3r") == tmp_path / "b" / "dust3r"


def test_whether_the_hub_answers(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert is_online()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not is_online()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert not is_online()
    monkeypatch.setenv("HF_ENDPOINT", "no address")
    assert not is_online()


def test_auto_fetches_the_small_network_if_it_can_and_says_so(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason="needs: pip install 'mbasfm[transformers]'")
    said: list[str] = []
    assert choose_auto("depth", said.append)[0] == "flat" and not said  # offline
    monkeypatch.setattr(base, "is_online", lambda: True)
    monkeypatch.setattr(network_depth, "fetch_snapshot", lambda *wanted: "the disk is full")
    assert choose_auto("depth", said.append)[0] == "flat"
    assert "Fetching" in said[0] and "100 MB" in said[0] and f"(the disk is full); to get them later: {GET}" in said[1]
    with looking_in(str(tmp_path)):
        monkeypatch.setattr(network_depth, "fetch_snapshot", lambda name, needed: make_snapshot(tmp_path / name) and "")
        spec, sentence = choose_auto("depth", said.append)
        assert (spec, DepthAnythingV2.missing()) == ("depth-anything-v2", "") and "Took depth model" in sentence
        assert choose_auto("depth", said.append)[0] == "depth-anything-v2"
    assert len(said) == 3  # what is there is not fetched again


GET = f"hf download {SMALL}"


def test_what_the_hub_says_becomes_a_sentence(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")

    def refuse(*args, **options):
        raise OSError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    assert weights.fetch_snapshot(SMALL) == "no route"
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, local_dir, **rest: make_snapshot(local_dir))
    with looking_in(str(tmp_path)):
        assert weights.fetch_snapshot(SMALL) == "" and find_snapshot(SMALL) == tmp_path / SMALL


class Unsure(DepthModel):
    """Half of the image is seen well."""

    name, licence, key, cpu_seconds = "unsure", "MIT", "unsure-1", 100.0

    def estimate(self, photo, image):
        sure = np.tile(np.float32([0.2, 0.8]), (3, 2))
        return DepthEstimate(np.ones((3, 4), np.float32), False, True, 50.0, sure)


def test_depth_of_which_a_model_is_not_sure_is_left_out_if_asked_for(tmp_path):
    write_image(tmp_path / "a.png")
    photo = Photo("a.png", tmp_path / "a.png", 96, 72, None, "", "0")
    cache = Cache(tmp_path / "cache")
    for min_confidence, share in ((0.0, 1.0), (0.5, 0.5), (0.0, 1.0)):  # the cache holds what the model said
        with cache.active():
            (found,) = estimate_depths([photo], Unsure(), min_confidence)
        assert isinstance(found, DepthEstimate) and found.confidence is not None
        assert np.isfinite(found.values).mean() == share and found.focal_px == 50.0


def test_a_slow_network_is_announced_with_the_time_it_will_take(tmp_path):
    photos = [Photo(f"{n}.png", tmp_path / f"{n}.png", 96, 72, None, "", str(n)) for n in range(6)]
    write_image(photos[0].path)
    cache, progress = Cache(tmp_path / "cache"), Progress()
    with cache.active(), progress.active():
        assert len(list(estimate_depths(photos[:1], Unsure()))) == 1
        warn_if_slow(photos, Unsure())
        assert "unsure takes about 8 min for 5 photographs on the CPU (100 s each" in progress.notes[0]
        warn_if_slow(photos[:2], Unsure())
    assert len(progress.notes) == 1


class Slow(ImageMatcher):
    """A matcher of images."""

    name, licence, key, cpu_seconds = "slow", "none", "slow-1", 50.0

    def match_images(self, first, second):
        return PixelMatches(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32), np.zeros(0, np.float32))


def test_pairs_that_take_long_are_announced_unless_they_are_done(tmp_path):
    photos = [Photo(f"{n}.png", tmp_path / f"{n}.png", 96, 72, None, "", str(n)) for n in range(4)]
    for photo in photos:
        write_image(photo.path)
    pairs = np.array([(i, j) for i in range(4) for j in range(i)])
    cache, progress = Cache(tmp_path / "cache"), Progress()
    with cache.active(), progress.active():
        warn_if_pairs_are_slow(pairs, photos, Slow())
        assert "Matching by slow takes about 5 min for 6 pairs on the CPU (50 s each" in progress.notes[0]
        match_as_images(pairs[:3], photos, Slow())
        warn_if_pairs_are_slow(pairs, photos, Slow())
        assert "for 3 pairs" in progress.notes[1]
        match_as_images(pairs, photos, Slow())
        warn_if_pairs_are_slow(pairs, photos, Slow())
    assert len(progress.notes) == 2


def test_commands_that_get_models_are_printed_as_a_whole(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["models", "--weights", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("depth-anything-v2" in line for line in lines)
    assert any(line.startswith("roma: ") and line.endswith(("romatch", ".pth")) for line in lines)
