"""Poses of other programs: every kind of file says the same, finds its photographs, or says what is wrong with it."""

import json
from pathlib import Path

import numpy as np
import pycolmap
import pytest
from scipy.spatial.transform import Rotation

from mbasfm.errors import InputError
from mbasfm.io.poses import PoseFile, read_poses
from mbasfm.scene.formats import Companions, transforms, tum_text
from mbasfm.types.outcome import View

FOUNTAIN = Path(__file__).parents[2] / "shared" / "data" / "strecha_fountain11" / "gt.json"
NAMES = ("a/1.jpg", "b/1.jpg", "b/2.jpg")
FOCAL, CENTER, SIZE = (500.0, 510.0), (320.0, 240.0), (640, 480)


def make_poses(count: int = len(NAMES)) -> np.ndarray:
    random = np.random.default_rng(0)
    rotation = Rotation.random(count, random_state=0).as_matrix()
    return np.concatenate([rotation, random.normal(size=(count, 3, 1))], -1)


POSES = make_poses()


def views() -> list[View]:
    rows = zip(NAMES, POSES, strict=True)
    return [View(name, n, pose, np.array(FOCAL), np.array(CENTER), SIZE, 1) for n, (name, pose) in enumerate(rows)]


def write_colmap(folder: Path, form: str, lens: str = "PINHOLE", params: tuple[float, ...] = (*FOCAL, *CENTER)) -> Path:
    model = pycolmap.Reconstruction()
    camera = pycolmap.Camera(camera_id=1, model=lens, width=SIZE[0], height=SIZE[1], params=list(params))
    model.add_camera_with_trivial_rig(camera)
    for number, (name, pose) in enumerate(zip(NAMES, POSES, strict=True), start=1):
        image = pycolmap.Image(name=name, camera_id=1, image_id=number, keypoints=np.ones((number - 1, 2)))
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pose))
    folder.mkdir(parents=True, exist_ok=True)
    (model.write_text if form == "txt" else model.write_binary)(str(folder))
    return folder


def write_transforms(folder: Path) -> Path:
    content = transforms(views(), Companions([f"images/{name}" for name in NAMES]))
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder / "transforms.json"


def write_plain(folder: Path) -> Path:
    entries = {
        name: {"K": [*FOCAL, *CENTER], "width": 640, "height": 480, "R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
        for name, pose in zip(NAMES, POSES, strict=True)
    }
    (folder / "gt.json").write_text(json.dumps({"images": entries}))
    return folder / "gt.json"


def write_tum(folder: Path) -> Path:
    (folder / "trajectory.tum").write_text(tum_text(views(), {}))
    return folder / "trajectory.tum"


def write_named_tum(folder: Path) -> Path:
    lines = tum_text(views(), {}).splitlines()[1:]
    lines = [" ".join([name, *line.split()[1:]]) for name, line in zip(NAMES, lines, strict=True)]
    (folder / "named.txt").write_text("\n".join(lines))
    return folder / "named.txt"


def write_kitti(folder: Path) -> Path:
    lines = [" ".join(str(number) for number in view.world_from_cam.ravel()) for view in views()]
    (folder / "kitti.txt").write_text("\n".join(lines) + "\n\n")
    return folder / "kitti.txt"


WRITERS = {
    "text": lambda folder: write_colmap(folder, "txt"),
    "binary": lambda folder: write_colmap(folder, "bin"),
    "scene": lambda folder: write_colmap(folder / "sparse" / "0", "bin").parents[1],
    "nerfstudio": write_transforms,
    "plain": write_plain,
    "tum": write_tum,
    "named tum": write_named_tum,
    "kitti": write_kitti,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_says_the_same(tmp_path, kind):
    found = read_poses(WRITERS[kind](tmp_path))
    rows = found.rows_of(NAMES)
    np.testing.assert_allclose(found.cam_from_world[[rows[name] for name in NAMES]], POSES, atol=1e-8)
    for camera in found.cameras:
        if "tum" in kind or kind == "kitti":
            assert camera is None
        else:
            assert camera is not None
            assert (camera.focal, camera.center, camera.size) == (FOCAL, CENTER, SIZE)


def test_a_lens_that_is_not_known_leaves_the_poses(tmp_path):
    found = read_poses(write_colmap(tmp_path, "bin", "FOV", (*FOCAL, *CENTER, 0.1)))
    assert found.cameras == (None,) * 3
    np.testing.assert_allclose(found.cam_from_world, POSES, atol=1e-12)


def test_a_fisheye_is_known(tmp_path):
    lens = (0.1, 0.02, 0.003, 0.0004)
    for form in ("txt", "bin"):
        (camera, *_) = read_poses(
            write_colmap(tmp_path / form, form, "OPENCV_FISHEYE", (*FOCAL, *CENTER, *lens))
        ).cameras
        assert camera is not None and camera.is_fisheye and camera.distortion == lens


def test_old_transforms_give_an_angle_and_no_ending(tmp_path):
    matrix = np.eye(4).tolist()
    content = {"camera_angle_x": np.pi / 2, "w": 800, "h": 600, "frames": [{"file_path": "./train/r_0"}]}
    content["frames"][0]["transform_matrix"] = matrix
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    found = read_poses(tmp_path)
    assert found.cameras[0] is not None and found.cameras[0].focal == pytest.approx((400, 400))
    assert found.rows_of(["train/r_0.png", "train/r_1.png"]) == {"train/r_0.png": 0}
    # OpenGL looks along -z with y up: a point in front and above is at positive depth and negative y.
    above = found.cam_from_world[0] @ [0, 1, -5, 1]
    np.testing.assert_allclose(above, [0, -1, 5])


def named(*names: str) -> PoseFile:
    return PoseFile(Path("file"), names, make_poses(len(names)), (None,) * len(names))


def test_names_are_joined_by_path_then_by_file():
    assert named("b/1.jpg", "a/1.jpg").rows_of(["a/1.jpg", "c/2.jpg"]) == {"a/1.jpg": 1}
    assert named("1.jpg", "2.jpg").rows_of(["x/2.jpg", "3.jpg"]) == {"x/2.jpg": 1}
    assert named("images/a/1.jpg", "images/b/1.jpg").rows_of(["b/1.jpg", "a/1.jpg"]) == {"b/1.jpg": 1, "a/1.jpg": 0}
    assert named("1.png").rows_of(["1.jpg"]) == {"1.jpg": 0}


@pytest.mark.parametrize(
    "entries, photos, message",
    [
        (("1.jpg",), ("a/1.jpg", "b/1.jpg"), r"2 photographs have names that may mean several .*\(a/1.jpg, b/1.jpg\)"),
        (("x/1.jpg", "y/1.jpg"), ("1.jpg",), "1 photographs have names that may mean several"),
        (("3.jpg",), ("1.jpg", "2.jpg"), "none of the photographs is in it; it lists 3.jpg, photographs are 1.jpg"),
    ],
)
def test_names_that_do_not_fit_are_refused(entries, photos, message):
    with pytest.raises(InputError, match=message):
        named(*entries).rows_of(photos)


def timed(*stamps: str) -> PoseFile:
    return PoseFile(Path("file"), stamps, make_poses(len(stamps)), (None,) * len(stamps), "time")


def test_time_stamps_find_the_nearest_photograph():
    times = timed("10.00", "10.05", "10.10")
    assert times.rows_of(["10.049.png", "10.2.png"]) == {"10.049.png": 1}
    assert times.rows_of(["f.png", "g.png"], {"f.png": 10.102, "g.png": 12.0}) == {"f.png": 2}
    assert timed("0", "2").rows_of(["z.jpg", "x.jpg", "y.jpg"]) == {"x.jpg": 0, "z.jpg": 1}
    assert timed("0", "1").rows_of(["0001.jpg", "0002.jpg"]) == {"0001.jpg": 0, "0002.jpg": 1}
    assert timed("1", "2").rows_of(["0001.jpg", "0002.jpg"]) == {"0001.jpg": 0, "0002.jpg": 1}
    with pytest.raises(InputError, match="no time stamp is within 0.02 s of a photograph; it lists 10.00, 10.05"):
        times.rows_of(["a.jpg"])


def test_poses_without_names_must_be_as_many_as_photographs(tmp_path):
    with pytest.raises(InputError, match="3 poses without names for 2 photographs"):
        read_poses(write_kitti(tmp_path)).rows_of(["a", "b"])


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("t.txt", "# time\n1 0 0 0 0 0 0 1\n2 0 0 0 0 0 0\n", "t.txt, line 3: neither TUM's"),
        ("t.txt", "1 0 0 0 0 0 0 0\n", "line 1: .*a quaternion that is not zero"),
        ("t.txt", "1 0 0 nan 0 0 0 1\n", "line 1: neither TUM's"),
        ("t.txt", "1 0 0 0 0 2 0 0 0 0 1 0\n", "line 1: not a rotation"),
        ("t.txt", "1 0 0 0 0 0 0 1\n1 0 0 0 0 0 0 1\n", "1 is in it twice"),
        ("t.txt", "1 0 0 0 0 0 0 1\n1 0 0 0 0 1 0 0 0 0 1 0\n", "some lines are as in TUM's"),
        ("t.txt", "# nothing\n", "no pose in it"),
        ("images.txt", "1 1 0 0 0 0 0 1 1.jpg\n", "images.txt, line 1: not 'IMAGE_ID"),
        ("images.txt", "1 0 0 0 0 0 0 0 1 1.jpg\n", "images.txt, line 1: .*a quaternion that is not zero"),
        ("t.json", "{", "cannot be read as JSON"),
        ("t.json", "[]", 'neither "frames" as in transforms.json nor "images"'),
        ("t.json", '{"frames": [{"file_path": "a"}]}', "line 1, frame 0, transform_matrix: must be 3 x 4 or 4 x 4 "),
        ("t.json", '{"frames": [3]}', 'frame 0: no "file_path"'),
        ("t.json", '{"images": {"a": {"R": [[1, 0, 0], [0, 1, 0], [0, 0, 2]], "t": [0, 0, 0]}}}', "a: not a rotation"),
        ("t.json", '{"images": {"a": {"R": 1}}}', 'a: needs "R"'),
        ("images.bin", "\x05", "images.bin: cut off"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        read_poses(tmp_path / file)


def test_places_without_poses(tmp_path):
    with pytest.raises(InputError, match="no images.bin, images.txt or transforms.json in this folder"):
        read_poses(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_poses(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", ["text", "binary", "nerfstudio", "plain", "tum", "kitti"])
def test_damaged_files_give_poses_or_an_error(tmp_path, kind):
    path = WRITERS[kind](tmp_path)
    file = path / ("images.txt" if kind == "text" else "images.bin") if path.is_dir() else path
    content, random = file.read_bytes(), np.random.default_rng(0)
    outcomes = set()
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 3):
            damaged[place] = random.integers(256)
        file.write_bytes(damaged[: random.integers(1, len(content) + 1)] if random.random() < 0.5 else damaged)
        try:
            poses = read_poses(file).cam_from_world
            np.testing.assert_allclose(
                poses[:, :, :3] @ poses[:, :, :3].swapaxes(1, 2), [np.eye(3)] * len(poses), atol=1e-9
            )
            outcomes.add("read")
        except InputError:
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.skipif(not FOUNTAIN.is_file(), reason="needs the shared photographs")
def test_ground_truth_of_real_photographs_is_a_pose_file():
    entries = json.loads(FOUNTAIN.read_text())["images"]
    found = read_poses(FOUNTAIN)
    assert found.names == tuple(entries)
    for row, entry in enumerate(entries.values()):
        np.testing.assert_allclose(found.cam_from_world[row, :, 3], entry["t"])
        np.testing.assert_allclose(found.cam_from_world[row, :, :3], entry["R"], atol=1e-6)
        camera = found.cameras[row]
        assert camera is not None and camera.focal == tuple(entry["K"][:2])
