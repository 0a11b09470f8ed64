"""What `mba sfm` gives whatever the folder holds: an exit code, plain words, and all that could be done."""

import errno
import json
from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch
from made_up import make_lens, photograph, pose_errors_deg, true_matches
from PIL import ExifTags, Image
from scipy.spatial.transform import Rotation
from test_pipeline import FOCAL, write_scene

from mbasfm.cli import main
from mbasfm.evaluation.metrics import pose_auc
from mbasfm.synthetic.cameras import make_cameras, render
from mbasfm.synthetic.solids import make_scene


def run(folder: Path, capsys, *options: str, depth: str | None = None) -> tuple[int, dict, str]:
    """Exit code, summary and what was told; on features and depth in files."""
    models = ["--matcher", f"files:{folder / 'files'}", "--depth", depth or f"files:{folder / 'depth'}"]
    return run_with(folder, capsys, *models, *options)


def run_with(folder: Path, capsys, *options: str) -> tuple[int, dict, str]:
    code = main(["sfm", str(folder / "images"), "--output", str(folder / "scene"), "--json", *options])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, json.loads(told.out) if code in (0, 3) else {}, told.err.replace("\n", " ")


def auc(folder: Path, truth: np.ndarray, threshold: float = 1.0) -> float:
    """Of the largest component, by the poses of its frames."""
    model = pycolmap.Reconstruction(folder / "scene" / "sparse" / "0")
    poses = torch.eye(4, dtype=torch.float64)[:3].repeat(len(truth), 1, 1)
    placed = torch.zeros(len(truth), dtype=torch.bool)
    for image in model.images.values():
        if image.image_id <= len(truth):
            poses[image.image_id - 1] = torch.from_numpy(image.cam_from_world().matrix())
            placed[image.image_id - 1] = True
    return pose_auc(poses, torch.from_numpy(truth), placed, (threshold,))[0]


# ----------------------------------------------------------------------------------------------------------------
# How many photographs, and of what


@pytest.mark.parametrize("count", [2, 3])
def test_two_or_three_photographs_are_enough(tmp_path, capsys, count):
    (scene,) = write_scene(tmp_path, num_frames=count)
    code, summary, _ = run(tmp_path, capsys, "--focal", str(FOCAL))
    assert code == 0 and summary["registered"] == count and summary["missing"] == {}
    assert auc(tmp_path, scene.cam_from_world) > 0.8


@pytest.mark.parametrize("count, words", [(0, "0 usable photographs"), (1, "1 usable photographs")])
def test_fewer_than_two_photographs_are_bad_input(tmp_path, capsys, count, words):
    write_scene(tmp_path, num_frames=2)
    for path in sorted((tmp_path / "images").iterdir())[count:]:
        path.unlink()
    code, _, told = run(tmp_path, capsys)
    assert code == 2 and words in told and "at least 2 are needed" in told


def test_black_photographs_end_in_exit_code_3_and_a_reason_each(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    for number in range(3):  # taken one after the other: only their metadata differ
        exif = Image.Exif()
        exif[ExifTags.Base.DateTime] = f"2026:01:01 00:00:0{number}"
        Image.new("RGB", (160, 120)).save(tmp_path / "images" / f"{number}.jpg", exif=exif)
    code, summary, _ = run_with(tmp_path, capsys, "--matcher", "sift", "--depth", "flat")
    assert code == 3 and summary["registered"] == 0
    assert len(summary["missing"]) == 3 and all("no other photograph" in why for why in summary["missing"].values())
    assert (tmp_path / "scene" / "report.html").is_file()


def test_strangers_are_left_out_and_the_others_do_not_suffer(tmp_path, capsys):
    """Three of ten have features and matches, all of them wrong."""
    (scene,) = write_scene(tmp_path, num_frames=7, alone=3)
    generator, names = np.random.default_rng(0), sorted(path.name for path in (tmp_path / "images").iterdir())
    features = {name: tmp_path / "files" / "features" / f"{name}.npz" for name in names}
    for name in names[7:]:
        np.savez(features[name], pixels=generator.uniform([0, 0], [1024, 768], (400, 2)))
        (tmp_path / "files" / "matches" / name).mkdir()
        for other in names[:7]:
            count = len(np.load(features[other])["pixels"])
            wrong = np.stack([generator.permutation(400)[:80], generator.integers(0, count, 80)], -1)
            np.savez(tmp_path / "files" / "matches" / name / f"{other}.npz", indices=wrong)
    code, summary, told = run(tmp_path, capsys, "--focal", str(FOCAL))
    assert code == 0 and summary["components"] == [7] and set(summary["missing"]) == {*names[7:]}
    assert all(f"not registered: {name}" in told for name in names[7:])
    assert auc(tmp_path, scene.cam_from_world) > 0.9


def test_two_places_become_two_models_and_that_is_said(tmp_path, capsys):
    write_scene(tmp_path, parts=2, num_frames=4)
    code, summary, told = run(tmp_path, capsys, "--focal", str(FOCAL))
    assert code == 0 and summary["components"] == [4, 4] and summary["missing"] == {}
    assert "2 groups that nothing connects" in told
    assert sorted(path.name for path in (tmp_path / "scene" / "sparse").iterdir()) == ["0", "1"]


@pytest.mark.parametrize("depth", ["files", "flat"])
def test_a_camera_that_only_turned_has_right_directions_and_a_word_about_parallax(tmp_path, capsys, depth):
    turns = Rotation.from_euler("y", 8.0 * np.arange(4)[:, None] - 12, degrees=True).as_matrix()
    poses = np.concatenate([turns, turns @ np.array([[0.0], [0.0], [4.0]])], -1)
    points = np.random.default_rng(0).uniform([-8, -3, -2], [8, 3, 6], (800, 3))
    made = photograph(points, poses, make_lens(FOCAL), 0, 0.2)
    write_scene(tmp_path, num_frames=4)
    for i in range(4):
        np.savez(tmp_path / "files" / "features" / f"0_{i}.png.npz", pixels=made.pixels[i])
        np.save(tmp_path / "depth" / f"0_{i}.npy", np.full((24, 32), np.median(made.depth[i])))
        for j in range(i + 1, 4):
            np.savez(tmp_path / "files" / "matches" / f"0_{i}.png" / f"0_{j}.png.npz", indices=true_matches(made, i, j))
    code, summary, told = run(tmp_path, capsys, "--focal", str(FOCAL), depth="flat" if depth == "flat" else None)
    assert code == 0 and summary["registered"] == 4
    assert "no parallax in component 0" in told
    rows = np.loadtxt(tmp_path / "scene" / "trajectory.tum")
    found = Rotation.from_quat(rows[:, 4:]).inv().as_matrix()
    errors, _ = pose_errors_deg(np.concatenate([found, np.zeros((4, 3, 1))], -1), made)
    assert errors.max() < 0.3
    page = (tmp_path / "scene" / "report.html").read_text()
    assert "Camera directions are very likely right" in page and "There is no parallax" in page


# ----------------------------------------------------------------------------------------------------------------
# Files of every kind


def test_pictures_of_every_kind_are_used_together_and_damaged_ones_are_named(tmp_path, capsys):
    scene = make_scene("object", 0)
    truth = make_cameras(scene, 5, 0, size=(320, 240))
    images = tmp_path / "images"
    images.mkdir()
    pictures = [Image.fromarray(render(scene, truth, frame)[0].numpy()) for frame in range(5)]
    grey = np.asarray(pictures[1].convert("L")).astype(np.uint16)
    pictures[0].save(images / "0.png")
    Image.fromarray(grey * 257).save(images / "1_16_bit.png")
    pictures[2].convert("L").save(images / "2_grey.jpg", quality=95)
    pictures[3].convert("CMYK").save(images / "3_cmyk.jpg", quality=95)
    pictures[4].convert("P").save(images / "4_palette.png")
    whole = (images / "2_grey.jpg").read_bytes()
    (images / "8_cut.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "9_empty.jpg").write_bytes(b"")
    focal = str(float(truth.intrinsics.focal[0, 0]))
    code, summary, told = run_with(tmp_path, capsys, "--matcher", "sift", "--depth", "flat", "--focal", focal)
    assert code == 0 and summary["photographs"] == summary["registered"] == 5, summary
    assert "skipped 8_cut.jpg: cannot be decoded" in told and "skipped 9_empty.jpg: cannot be decoded" in told
    assert auc(tmp_path, truth.cam_from_world.numpy(), 5.0) > 0.8


@pytest.mark.parametrize("fault", ["missing", "nan", "damaged"])
def test_a_photograph_without_usable_depth_goes_on_and_is_named(tmp_path, capsys, fault):
    (scene,) = write_scene(tmp_path, num_frames=4)
    path = tmp_path / "depth" / "0_2.npy"
    if fault == "missing":
        path.unlink()
    elif fault == "nan":
        np.save(path, np.full((24, 32), np.nan))
    else:
        path.write_bytes(path.read_bytes()[:50])
    code, summary, told = run(tmp_path, capsys, "--focal", str(FOCAL))
    assert code == 0 and summary["registered"] == 4
    assert "0_2.png: continuing without depth" in told and "0_1.png: continuing" not in told
    assert any(
        "0_2.png: continuing" in note for note in json.loads((tmp_path / "scene" / "report.json").read_text())["notes"]
    )
    assert auc(tmp_path, scene.cam_from_world) > 0.9


# ----------------------------------------------------------------------------------------------------------------
# Bad input is said before any work


def no_depth_at_all(folder: Path) -> list[str]:
    for path in (folder / "depth").iterdir():
        path.unlink()
    return []


def wrong_mask(folder: Path) -> list[str]:
    (folder / "masks").mkdir()
    Image.new("L", (50, 50), 255).save(folder / "masks" / "0_1.png.png")
    return ["--masks", str(folder / "masks")]


def wrong_cameras(folder: Path) -> list[str]:
    (folder / "cameras.txt").write_text("1 PINHOLE 1024 768 900\n")
    return ["--cameras", str(folder / "cameras.txt")]


def wrong_pairs(folder: Path) -> list[str]:
    (folder / "pairs.txt").write_text("0_0.png 0_9.png\n")
    return ["--pairs", str(folder / "pairs.txt")]


def unwritable(folder: Path) -> list[str]:
    del folder
    return ["--output", "/proc/no/such/place"]


@pytest.mark.parametrize(
    "fault, words",
    [
        (no_depth_at_all, "no depth map in"),
        (wrong_mask, "0_1.png.png: the mask is 50 x 50 px"),
        (wrong_cameras, "cameras.txt, line 1: PINHOLE has 4 parameters"),
        (wrong_pairs, "pairs.txt, line 1: no photograph is named 0_9.png"),
        (unwritable, "cannot be written"),
    ],
)
def test_bad_input_is_exit_code_2_before_any_photograph_is_described(tmp_path, capsys, monkeypatch, fault, words):
    def never(*_):
        raise AssertionError("work was done")

    write_scene(tmp_path, num_frames=2)
    monkeypatch.setattr("mbasfm.matching.inference._describe", never)
    code, _, told = run(tmp_path, capsys, *fault(tmp_path))
    assert code == 2 and words in told


# ----------------------------------------------------------------------------------------------------------------
# Trouble on the way


@pytest.mark.parametrize("trouble, code", [(KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, "No space left"), 2)])
def test_what_was_computed_before_an_interruption_or_a_full_disk_is_kept(tmp_path, capsys, monkeypatch, trouble, code):
    def fail(*_):
        raise trouble

    write_scene(tmp_path, num_frames=3)
    with monkeypatch.context() as patch:
        patch.setattr("mbasfm.sfm.pairs.edges.propose", fail)
        assert run(tmp_path, capsys, "--focal", str(FOCAL))[0] == code
    cache = tmp_path / "scene" / "cache"
    stamps = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npz")}
    assert len(stamps) == 3 + 3 + 3  # features, depth, pairs
    code, summary, _ = run_with(tmp_path, capsys, "--resume")
    assert code == 0 and summary["registered"] == 3
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
