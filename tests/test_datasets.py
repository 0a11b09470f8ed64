"""Tiny folders in each published layout, read back; and what each loader says about a broken one."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from mbasfm.datasets import imc2021
from mbasfm.datasets.pair_lists import PairList
from mbasfm.datasets.plain import Plain
from mbasfm.datasets.registry import DATASETS, open_dataset
from mbasfm.datasets.seven_scenes import COLOR_FROM_DEPTH
from mbasfm.errors import ConfigError, InputError, MissingExtraError

POSES = [
    np.column_stack([Rotation.from_euler("xyz", [10 * k, 5, -k], degrees=True).as_matrix(), [0.1 * k, 0.2, 1.0]])
    for k in range(4)
]
"""cam_from_world."""


def image(path: Path, width: int = 64, height: int = 48) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)


def text(path: Path, content) -> None:
    """A text file, of words or of the rows of a matrix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = content if isinstance(content, str) else "\n".join(" ".join(f"{x:.17g}" for x in row) for row in content)
    path.write_text(rows + "\n")


def world_from_cam(pose: np.ndarray) -> np.ndarray:
    return np.linalg.inv(np.vstack([pose, [0, 0, 0, 1]]))


def colmap(folder: Path, names: list[str]) -> None:
    lines = []
    for number, (name, pose) in enumerate(zip(names, POSES, strict=False), 1):
        x, y, z, w = Rotation.from_matrix(pose[:, :3]).as_quat()
        numbers = " ".join(f"{value:.17g}" for value in (w, x, y, z, *pose[:, 3]))
        lines += [f"{number} {numbers} 1 {name}", ""]
    text(folder / "images.txt", "# IMAGE_ID QW ...\n" + "\n".join(lines))
    text(folder / "cameras.txt", "1 PINHOLE 64 48 60 61 32.5 24.5")
    text(folder / "points3D.txt", "")


def write_plain(root: Path) -> None:
    rows = {}
    for number, pose in enumerate(POSES):
        image(root / "fountain" / "images" / f"{number}.jpg")
        camera = {"K": [60, 61, 32.5, 24.5], "width": 64, "height": 48}
        rows[f"{number}.jpg"] = camera | {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
    text(root / "fountain" / "gt.json", json.dumps({"images": rows}))
    text(root / "fountain" / "reloc.json", json.dumps({"map": ["0.jpg", "1.jpg"], "query": ["2.jpg"]}))


def test_positions_alone_are_a_truth_and_photographs_without_one_are_left_out(tmp_path):
    write_plain(tmp_path)
    path = tmp_path / "fountain" / "gt.json"
    rows = {"0.jpg": {"position": [1, 2, 3]}, "1.jpg": {"position": [4.5, 5, 6]}, "2.jpg": {"width": 64, "height": 48}}
    text(path, json.dumps({"images": rows}))
    (tmp_path / "fountain" / "reloc.json").unlink()
    scene = Plain(tmp_path).load("fountain")
    assert scene.names == ("0.jpg", "1.jpg") and not scene.has_rotations and "2.jpg" in scene.left_out
    centres = [-pose[:, :3].T @ pose[:, 3] for pose in scene.cam_from_world]
    assert np.allclose(centres, [[1, 2, 3], [4.5, 5, 6]])
    text(path, json.dumps({"images": rows | {"0.jpg": {"position": [1, None, 3]}}}, indent=1))
    with pytest.raises(InputError, match=r"gt.json, line 3, 0.jpg: position must be 3 finite numbers"):
        Plain(tmp_path).load("fountain")


def test_poses_of_some_photographs_are_used(tmp_path):
    write_plain(tmp_path)
    path = tmp_path / "fountain" / "gt.json"
    rows = json.loads(path.read_text())["images"]
    text(path, json.dumps({"images": rows | {"1.jpg": {"width": 64, "height": 48}}}))
    (tmp_path / "fountain" / "reloc.json").unlink()
    scene = Plain(tmp_path).load("fountain")
    assert scene.has_rotations and "1.jpg" not in scene.names and scene.left_out == ("1.jpg",)


def write_eth3d(root: Path) -> None:
    names = [f"dslr_images_undistorted/DSC_{number}.JPG" for number in range(4)]
    for name in names:
        image(root / "relief_2" / "images" / name)
    colmap(root / "relief_2" / "dslr_calibration_undistorted", names)


def write_scannet(root: Path) -> None:
    folder = root / "scene0707_00"
    for number, pose in enumerate([*POSES, None]):
        image(folder / "color" / f"{number}.jpg")
        text(folder / "pose" / f"{number}.txt", np.full((4, 4), -np.inf) if pose is None else world_from_cam(pose))
    text(folder / "intrinsic" / "intrinsic_color.txt", [[60, 0, 32, 0], [0, 61, 24, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    (folder / "depth").mkdir()


def write_tanks(root: Path) -> None:
    for number in range(4):
        image(root / "training" / "Barn" / f"{number:06d}.jpg")
    colmap(root / "colmap_raw" / "training__Barn" / "0", [f"{number:06d}.jpg" for number in range(4)])


def write_seven_scenes(root: Path) -> None:
    folder, inverse = root / "chess", np.linalg.inv(np.vstack([COLOR_FROM_DEPTH, [0, 0, 0, 1]]))
    text(folder / "TrainSplit.txt", "sequence1\nsequence2")
    text(folder / "TestSplit.txt", "sequence3")
    for number, (sequence, pose) in enumerate(zip(("seq-01", "seq-02", "seq-02", "seq-03"), POSES, strict=True)):
        stem = folder / sequence / f"frame-{number:06d}"
        image(stem.with_name(stem.name + ".color.png"))
        depth_from_world = (inverse @ np.vstack([pose, [0, 0, 0, 1]]))[:3]
        text(stem.with_name(stem.name + ".pose.txt"), world_from_cam(depth_from_world))


def write_wayspots(root: Path) -> None:
    for number, (split, pose) in enumerate(zip(("train", "train", "test", "test"), POSES, strict=True)):
        folder = root / "wayspots_bears" / split
        image(folder / "rgb" / f"{number:05d}.jpg")
        text(folder / "poses" / f"{number:05d}.txt", world_from_cam(pose))
        text(folder / "calibration" / f"{number:05d}.txt", "60" if number else "60 0 32\n0 60 24\n0 0 1")


def write_fastmap(root: Path) -> None:
    for scene in ("mipnerf360/garden", "mill19/rubble"):
        for number in range(4):
            image(root / "images" / scene / f"{number}.jpg")
    colmap(root / "ground_truths" / "mipnerf360" / "garden", [f"{number}.jpg" for number in range(4)])
    entries = [{"fname": f"{number}.jpg", "c2w": world_from_cam(pose).tolist()} for number, pose in enumerate(POSES)]
    text(root / "ground_truths" / "mill19" / "rubble.json", json.dumps(entries))


def write_imc(root: Path) -> None:
    folder = root / "british_museum" / "set_100"
    for number in range(4):
        image(folder / "images" / f"{number}_a.jpg")
        text(folder / "calibration" / f"calibration_{number}_a.h5", str(number))
    text(folder / "sub_set" / "3bag_000.txt", "images/0_a.jpg\nimages/2_a.jpg\nimages/3_a.jpg")
    text(folder / "sub_set" / "10bag_001.txt", "1_a.jpg")


WRITERS = {
    "plain": (write_plain, "fountain"),
    "eth3d": (write_eth3d, "relief_2"),
    "imc2021": (write_imc, "british_museum"),
    "scannet": (write_scannet, "scene0707_00"),
    "tanks-and-temples": (write_tanks, "training/Barn"),
    "7scenes": (write_seven_scenes, "chess"),
    "wayspots": (write_wayspots, "wayspots_bears"),
    "fastmap": (write_fastmap, "mipnerf360/garden"),
}
HAS_INTRINSICS = set(WRITERS)


@pytest.fixture(autouse=True)
def fake_h5(monkeypatch):
    """Text stands for HDF5, which needs an extra; the real reader has a test of its own."""
    intrinsics = np.array([[60.0, 0, 32], [0, 61, 24], [0, 0, 1]])

    def read(path: Path):
        pose = POSES[int(path.read_text())]
        return {"K": intrinsics, "R": pose[:, :3], "T": pose[:, 3]}

    monkeypatch.setattr(imc2021, "read_h5", read)


def test_every_dataset_has_a_layout():
    assert [*WRITERS, "pairs"] == list(DATASETS)  # lists of pairs have tests of their own


@pytest.mark.parametrize("name", WRITERS)
def test_a_scene_comes_back(name, tmp_path):
    write, scene = WRITERS[name]
    write(tmp_path)
    dataset = open_dataset(name, tmp_path)
    assert scene in dataset.scenes()
    found = dataset.load(scene)
    assert found.name == scene and len(found.names) == 4 and list(found.names) == sorted(found.names)
    assert all((found.images / image).is_file() for image in found.names)
    # One matrix of 7-Scenes is a rotation to four digits only.
    order = [2, 3, 0, 1] if name == "wayspots" else [0, 1, 2, 3]  # test before train
    assert found.cam_from_world == pytest.approx(np.stack(POSES)[order], abs=2e-4 if name == "7scenes" else 1e-12)
    focal = {"7scenes": 525.0}.get(name, 60.0)
    assert all(camera.focal[0] == pytest.approx(focal) for camera in found.cameras)
    some = found.only([found.names[2], found.names[0]])
    assert some.names == (found.names[0], found.names[2])
    assert some.cam_from_world == pytest.approx(found.cam_from_world[[0, 2]])


def test_splits(tmp_path):
    splits = {}
    for name in ("plain", "7scenes", "wayspots", "imc2021"):
        write, scene = WRITERS[name]
        write(tmp_path / name)
        splits[name] = {
            key: len(names) for key, names in open_dataset(name, tmp_path / name).load(scene).splits.items()
        }
    assert splits["plain"] == {"map": 2, "query": 1}
    assert splits["7scenes"] == {"map": 3, "query": 1}
    assert splits["wayspots"] == {"map": 2, "query": 2}
    assert splits["imc2021"] == {"3bag_000": 3, "10bag_001": 1}


def test_poses_of_7_scenes_are_those_of_the_colour_camera(tmp_path):
    write_seven_scenes(tmp_path)
    found = open_dataset("7scenes", tmp_path).load("chess")
    rotation = found.cam_from_world[0, :, :3]
    assert rotation @ rotation.T == pytest.approx(np.eye(3), abs=1e-12)
    depth_from_world = np.linalg.inv(np.loadtxt(tmp_path / "chess" / "seq-01" / "frame-000000.pose.txt"))[:3]
    baseline = found.cam_from_world[0, :, 3] - depth_from_world[:, 3]
    assert 0.01 < np.linalg.norm(baseline) < 0.06


def test_depth_of_7_scenes_is_seen_by_the_colour_camera(tmp_path):
    write_seven_scenes(tmp_path)
    path = tmp_path / "chess" / "seq-01" / "frame-000000.depth.png"
    raw = np.full((480, 640), 2000, np.uint16)  # a wall two metres in front of the depth camera
    raw[:100, :100], raw[200:210, 300:310] = 65535, 0
    Image.fromarray(raw).save(path)
    found = open_dataset("7scenes", tmp_path).load("chess").read_depth("seq-01/frame-000000.color.png")
    normal = COLOR_FROM_DEPTH[:, 2]
    row, column = np.mgrid[:480, :640]
    rays = np.stack([(column - 320) / 525, (row - 240) / 525, np.ones((480, 640))], -1)
    wall = (2 + normal @ COLOR_FROM_DEPTH[:, 3]) / (rays @ normal)
    assert np.isnan(found[60:80, 40:60]).all() and np.isnan(found[:20]).all()
    known = np.isfinite(found)
    assert known[150:350, 150:500].mean() > 0.99
    np.testing.assert_allclose(found[known], wall[known], atol=2e-3)
    path.write_text("no picture")
    with pytest.raises(InputError, match="frame-000000.depth.png: not a 16-bit depth map"):
        open_dataset("7scenes", tmp_path).load("chess").read_depth("seq-01/frame-000000.color.png")


def test_the_other_truth_of_fastmap(tmp_path):
    write_fastmap(tmp_path)
    dataset = open_dataset("fastmap", tmp_path)
    assert dataset.scenes() == ("mill19/rubble", "mipnerf360/garden")
    assert dataset.load("mill19/rubble").cam_from_world == pytest.approx(np.stack(POSES))


# ----------------------------------------------------------------------------------------------------------------
# Broken folders. Each: file, what happens to it (None: removed), words of the message.

NAN_POSE = "nan 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1"
WRONG_COLUMNS = "1 0 0 0\n0 1 0\n0 0 1 0\n0 0 0 1"
NO_ROTATION = "2 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1"
COLMAP_NAN = "1 nan 0 0 0 0 0 0 1 a.jpg\n\n"
COLMAP_COLUMNS = "# x\n1 1 0 0 0 0 0\n\n"
COLMAP_UNKNOWN = "1 1 0 0 0 0 0 0 1 not_there.jpg\n\n"
ETH = "relief_2/dslr_calibration_undistorted/images.txt"
BARN = "colmap_raw/training__Barn/0/images.txt"
GARDEN = "ground_truths/mipnerf360/garden/images.txt"
BROKEN = [
    ("plain", "fountain/gt.json", '{"images": {"0.jpg": {"R": [[1, 0]], "t": [0, 0, 0]}}}', ["line 1, 0.jpg", "3 x 3"]),
    ("plain", "fountain/gt.json", '{"images": {"0.jpg": {"R": [[NaN, 0]], "t": [0, 0, 0]}}}', ["line 1", "NaN"]),
    ("plain", "fountain/gt.json", '{"images": {\n"0.jpg": {"t": [0, 0, 0]}}}', ["gt.json, line 2, 0.jpg", "needs"]),
    ("plain", "fountain/gt.json", None, ["gt.json is missing"]),
    ("plain", "fountain/images/2.jpg", None, ["gt.json, line 1, lists 2.jpg", "is missing"]),
    ("plain", "fountain/reloc.json", '{"map": ["9.jpg"], "query": []}', ["reloc.json, line 1", "named 9.jpg"]),
    ("plain", "fountain/reloc.json", '{"map": ["0.jpg"]}', ["reloc.json", '"map" and "query"']),
    ("plain", "fountain/reloc.json", '{"map_dir": "../x", "map": [], "query": []}', ["x/gt.json is missing"]),
    ("eth3d", ETH, None, ["images.txt is missing", "eth3d.net"]),
    ("eth3d", ETH, COLMAP_NAN, ["images.txt, line 1", "finite"]),
    ("eth3d", ETH, COLMAP_COLUMNS, ["images.txt, line 2"]),
    ("eth3d", ETH, COLMAP_UNKNOWN, ["images.txt, line 1,", "not_there.jpg is missing", "eth3d.net"]),
    ("imc2021", "british_museum/set_100/calibration/calibration_1_a.h5", None, ["1_a.h5 is missing", "ubc"]),
    ("imc2021", "british_museum/set_100/sub_set/3bag_000.txt", "0_a.jpg\nx.jpg", ["3bag_000.txt, line 2", "x.jpg"]),
    ("scannet", "scene0707_00/pose/2.txt", None, ["2.txt is missing", "ScanNet"]),
    ("scannet", "scene0707_00/pose/2.txt", NAN_POSE, ["2.txt, line 1", "NaN"]),
    ("scannet", "scene0707_00/pose/2.txt", WRONG_COLUMNS, ["2.txt, line 2: 3 columns instead of 4"]),
    ("scannet", "scene0707_00/pose/2.txt", NO_ROTATION, ["2.txt, line 1: not a rotation"]),
    ("scannet", "scene0707_00/pose/2.txt", "1 0 0 0", ["2.txt: 1 lines instead of 4"]),
    ("scannet", "scene0707_00/intrinsic/intrinsic_color.txt", WRONG_COLUMNS, ["intrinsic_color.txt, line 2"]),
    ("tanks-and-temples", BARN, None, ["0: no images.bin"]),
    ("tanks-and-temples", BARN, COLMAP_NAN, ["images.txt, line 1"]),
    ("tanks-and-temples", BARN, COLMAP_COLUMNS, ["images.txt, line 2"]),
    ("tanks-and-temples", BARN, COLMAP_UNKNOWN, ["images.txt, line 1,", "not_there.jpg is missing", "temples.org"]),
    ("7scenes", "chess/TestSplit.txt", None, ["TestSplit.txt is missing", "microsoft.com"]),
    ("7scenes", "chess/TestSplit.txt", "sequence3\nseq-04", ["TestSplit.txt, line 2"]),
    ("7scenes", "chess/TestSplit.txt", "sequence3\nsequence9", ["TestSplit.txt, line 2", "seq-09 is missing"]),
    ("7scenes", "chess/seq-02/frame-000001.pose.txt", NO_ROTATION, ["frame-000001.pose.txt, line 1: not a rotation"]),
    ("7scenes", "chess/seq-02/frame-000001.pose.txt", None, ["frame-000001.pose.txt is missing"]),
    ("7scenes", "chess/seq-02/frame-000001.pose.txt", NAN_POSE, ["frame-000001.pose.txt, line 1"]),
    ("7scenes", "chess/seq-02/frame-000001.pose.txt", WRONG_COLUMNS, ["frame-000001.pose.txt, line 2"]),
    ("wayspots", "wayspots_bears/test/poses/00002.txt", None, ["00002.txt is missing", "wayspots.html"]),
    ("wayspots", "wayspots_bears/test/poses/00002.txt", NAN_POSE, ["00002.txt, line 1"]),
    ("wayspots", "wayspots_bears/test/poses/00002.txt", WRONG_COLUMNS, ["00002.txt, line 2"]),
    ("wayspots", "wayspots_bears/test/calibration/00002.txt", "60 61", ["00002.txt, line 1: 2 columns"]),
    ("wayspots", "wayspots_bears/test/calibration/00002.txt", "-60", ["00002.txt, line 1", "positive focal"]),
    ("fastmap", GARDEN, None, ["garden: no images.bin"]),
    ("fastmap", GARDEN, COLMAP_NAN, ["images.txt, line 1"]),
    ("fastmap", GARDEN, COLMAP_COLUMNS, ["images.txt, line 2"]),
    ("fastmap", GARDEN, COLMAP_UNKNOWN, ["images.txt, line 1,", "not_there.jpg is missing", "huggingface.co"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "content", "words"), BROKEN, ids=lambda value: str(value)[:40])
def test_a_broken_folder_is_explained(name, file, content, words, tmp_path):
    write, scene = WRITERS[name]
    write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError) as caught:
        open_dataset(name, tmp_path).load(scene)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[\n{"fname": "a.jpg", "c2w": [[1, 0]]}]', ["line 2, entry 0 (a.jpg)", "3 x 4 or 4 x 4"]),
        ('[{"fname": "a.jpg"}]', ["rubble.json", "fname, c2w"]),
        ('[{"fname": "a.jpg",\n"c2w": [[NaN]]}]', ["rubble.json, line 2", "NaN"]),
        (
            '[\n\n{"fname": "x.jpg", "c2w": [[1,0,0,0],[0,1,0,0],[0,0,1,0]]}]',
            ["json, line 3", "x.jpg is missing"],
        ),
        ('[{"fname": "a.jpg", "c2w": [[2,0,0,0],[0,1,0,0],[0,0,1,0]]}]', ["line 1, entry 0", "not a rotation"]),
    ],
)
def test_a_broken_list_of_fastmap_is_explained(content, words, tmp_path):
    write_fastmap(tmp_path)
    (tmp_path / "ground_truths" / "mill19" / "rubble.json").write_text(content)
    with pytest.raises(InputError) as caught:
        open_dataset("fastmap", tmp_path).load("mill19/rubble")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("name", WRITERS)
def test_an_empty_folder_says_where_the_dataset_is_published(name, tmp_path):
    with pytest.raises(InputError, match="published|docs/evaluation"):
        open_dataset(name, tmp_path).scenes()
    with pytest.raises(InputError, match="missing"):
        open_dataset(name, tmp_path / "nowhere").load(WRITERS[name][1])


def test_an_unknown_dataset_is_explained(tmp_path):
    with pytest.raises(ConfigError, match="there are plain, eth3d"):
        open_dataset("eth", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"K": np.eye(3), "R": np.eye(3)},
        {"K": np.eye(2), "R": np.eye(3), "T": np.zeros(3)},
        {"K": np.eye(3), "R": np.eye(3), "T": np.array([0, np.nan, 0])},
    ],
)
def test_calibration_that_is_not_complete(content, tmp_path, monkeypatch):
    write_imc(tmp_path)
    monkeypatch.setattr(imc2021, "read_h5", lambda path: content)
    with pytest.raises(InputError, match=r"calibration_0_a.h5: needs [KT]"):
        open_dataset("imc2021", tmp_path).load("british_museum")


def test_real_hdf5(tmp_path, monkeypatch):
    monkeypatch.undo()
    path = tmp_path / "calibration_0.h5"
    try:
        import h5py
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"mbasfm\[imc\]"):
            imc2021.read_h5(path)
        pytest.skip("h5py is not installed")
    with h5py.File(path, "w") as file:
        file["K"] = np.eye(3)
    assert imc2021.read_h5(path)["K"] == pytest.approx(np.eye(3))
    path.write_text("not HDF5")
    with pytest.raises(InputError, match="calibration_0.h5: cannot be read as HDF5"):
        imc2021.read_h5(path)


# ----------------------------------------------------------------------------------------------------------------
# Pairs

MATRIX = "60 0 32 0 61 24 0 0 1"


def pair_line(kind: str, first: str = "a.jpg", second: str = "s/b.jpg") -> str:
    pose = POSES[1]
    if kind == "superglue":
        return f"{first} {second} 0 3 {MATRIX} {MATRIX} " + " ".join(
            map(repr, np.vstack([pose, [0, 0, 0, 1]]).ravel().tolist())
        )
    numbers = [*pose[:, :3].ravel().tolist(), *pose[:, 3].tolist()]
    return f"{first} {second} {MATRIX} {MATRIX} " + " ".join(map(repr, numbers))


@pytest.mark.parametrize(
    ("kind", "file"), [("superglue", "scannet_test_pairs_with_gt.txt"), ("glue", "pairs_calibrated.txt")]
)
def test_pair_lists_come_back(kind, file, tmp_path):
    image(tmp_path / "images" / "a.jpg")
    image(tmp_path / "s" / "b.jpg")
    text(tmp_path / file, pair_line(kind) + "\n" + pair_line(kind, "s/b.jpg", "a.jpg"))
    pairs = PairList(tmp_path).pairs()
    assert len(pairs) == 2 and pairs[0].names == ("a.jpg", "s/b.jpg")
    assert pairs[0].b_from_a == pytest.approx(POSES[1])
    assert pairs[0].cameras[0].focal == (60, 61) and pairs[0].cameras[0].center == (32.5, 24.5)
    assert pairs[0].quarter_turns == ((0, 3) if kind == "superglue" else (0, 0))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (pair_line("glue") + " 1", ["line 2: 31 columns"]),
        (pair_line("glue").replace("60 0 32", "nan 0 32"), ["line 2", "NaN"]),
        (pair_line("glue", "x.jpg"), ["line 2", "x.jpg is missing"]),
        ("a.jpg s/b.jpg", ["line 2: 2 columns"]),
        (pair_line("glue").replace("60 0 32", "six 0 32"), ["line 2: not numbers"]),
    ],
)
def test_a_broken_pair_is_named(line, words, tmp_path):
    image(tmp_path / "images" / "a.jpg")
    image(tmp_path / "images" / "s" / "b.jpg")
    text(tmp_path / "pairs_calibrated.txt", pair_line("glue") + "\n" + line)
    with pytest.raises(InputError) as caught:
        PairList(tmp_path).pairs()
    assert all(word in str(caught.value) for word in ["pairs_calibrated.txt", *words]), caught.value


def test_a_missing_list_says_where_it_is_published(tmp_path):
    with pytest.raises(InputError, match="is missing; MegaDepth-1500 or ScanNet-1500"):
        PairList(tmp_path).pairs()
