"""Pairs that see the same, by depth and poses, against overlaps known in closed form."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks.covisible_pairs import covisible_pairs
from mbasfm.bench.tasks.sfm import OF_COLMAPS_PAIRS, _of_colmaps_pairs
from mbasfm.datasets.plain import Plain
from mbasfm.errors import InputError

WIDTH, HEIGHT, FOCAL, WALL = 160, 120, 100.0, 2.0
SHARE_PER_METRE = FOCAL / WALL / WIDTH
"""Of the picture that leaves it when the camera moves sideways before the wall."""
NAMES = ("0.png", "1.png", "2.png", "away.png")


def write(folder: Path, shifts: dict[str, float], behind: str = "away.png") -> None:
    """Cameras before a wall, moved sideways; one looks the other way."""
    rows = {}
    for sub in ("images", "depth"):
        (folder / sub).mkdir(parents=True)
    for number, (name, shift) in enumerate(shifts.items()):
        Image.new("L", (WIDTH, HEIGHT), number).save(folder / "images" / name)
        np.save(folder / "depth" / name.replace("png", "npy"), np.full((60, 80), WALL, np.float32))
        turn = np.diag([-1.0, 1.0, -1.0]) if name == behind else np.eye(3)
        center = np.array([shift, 0.0, 0.0])
        pose = {"R": turn.tolist(), "t": (-turn @ center).tolist()}
        rows[name] = {"K": [FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2], "width": WIDTH, "height": HEIGHT, **pose}
    (folder / "gt.json").write_text(json.dumps({"images": rows}))


def pairs_of(folder: Path) -> set[tuple[int, int]]:
    return {tuple(pair) for pair in covisible_pairs(Plain(folder.parent).load(folder.name)).tolist()}


def test_pairs_overlap_by_fifteen_percent(tmp_path):
    near, far = (1 - 0.2) / SHARE_PER_METRE, (1 - 0.1) / SHARE_PER_METRE
    write(tmp_path / "a", dict(zip(NAMES, (0.0, near, near + 0.05, 0.0), strict=True)))
    assert pairs_of(tmp_path / "a") == {(0, 1), (0, 2), (1, 2)}
    write(tmp_path / "b", dict(zip(NAMES, (0.0, near, far, 0.0), strict=True)))
    assert pairs_of(tmp_path / "b") == {(0, 1), (1, 2)}


def test_what_stands_in_between_hides(tmp_path):
    write(tmp_path / "a", {"0.png": 0.0, "1.png": 0.1})
    assert pairs_of(tmp_path / "a") == {(0, 1)}
    np.save(tmp_path / "a" / "depth" / "1.npy", np.full((60, 80), 1.0, np.float32))  # a door before the second camera
    assert pairs_of(tmp_path / "a") == set()


def test_no_depth_no_answer(tmp_path):
    write(tmp_path / "a", {"0.png": 0.0, "1.png": 0.1})
    (tmp_path / "a" / "depth" / "1.npy").unlink()
    assert pairs_of(tmp_path / "a") == set()
    scene = replace(Plain(tmp_path).load("a"), depth=None)
    with pytest.raises(InputError, match="sensor depth, which is missing; export it too"):
        covisible_pairs(scene)


def test_pairs_that_colmap_registered_are_counted_apart(tmp_path):
    write(tmp_path / "a", dict(zip(NAMES, (0.0, 0.1, 0.3, 0.0), strict=True)))
    scene = Plain(tmp_path).load("a")
    pairs = covisible_pairs(scene)
    right = dict(zip(scene.names, scene.cam_from_world, strict=True))
    wrong = right | {"1.png": np.column_stack([np.eye(3), [0.4, 0.5, 0.6]])}
    job = Job("sfm", "plain", str(tmp_path), "a", "ours", "x", "unknown", "scannet")
    assert _of_colmaps_pairs(job, scene, wrong, pairs, tmp_path) == {}  # it did not run yet
    theirs = {name: right[name] for name in ("0.png", "2.png", "away.png")}
    colmap = replace(job, method="colmap", variant="y")
    assert _of_colmaps_pairs(colmap, scene, theirs, pairs, tmp_path)[f"ACC@3{OF_COLMAPS_PAIRS}"] == 1
    assert _of_colmaps_pairs(job, scene, wrong, pairs, tmp_path)[f"ACC@3{OF_COLMAPS_PAIRS}"] == 1
    everything = replace(colmap, intrinsics="known")
    assert _of_colmaps_pairs(everything, scene, wrong, pairs, tmp_path)[f"ACC@3{OF_COLMAPS_PAIRS}"] < 1
