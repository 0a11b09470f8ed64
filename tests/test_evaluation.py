"""`mba eval`: every kind of pose file against every other, and what it says about bad ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pycolmap
import pytest
from scipy.spatial.transform import Rotation

from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.evaluation.protocols import PROTOCOLS
from mbasfm.evaluation.score_files import score_files

NUM_FRAMES = 7
KINDS = ("colmap", "text", "tum", "kitti", "nerfstudio", "json")


def make_model(seed: int) -> pycolmap.Reconstruction:
    pycolmap.set_random_seed(seed)
    options = pycolmap.SyntheticDatasetOptions(
        num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=NUM_FRAMES, num_points3D=20
    )
    model = pycolmap.synthesize_dataset(options)
    for number, image_id in enumerate(sorted(model.images)):
        model.images[image_id].name = f"{number:03d}.jpg"
    return model


def write_kinds(model: pycolmap.Reconstruction, folder: Path) -> dict[str, Path]:
    """The same poses in every format."""
    files = {kind: folder / kind for kind in ("colmap", "text")}
    for path in files.values():
        path.mkdir(parents=True)
    model.write_binary(files["colmap"])
    model.write_text(files["text"])
    images = sorted(model.images.values(), key=lambda image: image.name)
    poses = {image.name: image.cam_from_world().matrix() for image in images}
    world_from_cam = {name: np.linalg.inv(np.vstack([pose, [0, 0, 0, 1]])) for name, pose in poses.items()}
    files["tum"], files["kitti"] = folder / "poses.tum", folder / "poses.txt"
    lines = []
    for number, pose in enumerate(world_from_cam.values()):
        lines.append(
            " ".join(map(repr, map(float, [number, *pose[:3, 3], *Rotation.from_matrix(pose[:3, :3]).as_quat()])))
        )
    files["tum"].write_text("\n".join(lines))
    files["kitti"].write_text(
        "\n".join(" ".join(map(repr, pose[:3].ravel().tolist())) for pose in world_from_cam.values())
    )
    files["nerfstudio"] = folder / "transforms.json"
    flip = np.diag([1.0, -1.0, -1.0, 1.0])
    frames = [
        {"file_path": f"images/{name}", "transform_matrix": (pose @ flip).tolist()}
        for name, pose in world_from_cam.items()
    ]
    files["nerfstudio"].write_text(json.dumps({"frames": frames}))
    files["json"] = folder / "gt.json"
    rows = {name: {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()} for name, pose in poses.items()}
    files["json"].write_text(json.dumps({"images": rows}))
    return files


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_kinds(make_model(0), tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def estimates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    model, random = make_model(0), np.random.default_rng(1)
    for frame in model.frames.values():
        noise = pycolmap.Rigid3d(pycolmap.Rotation3d(0.03 * random.normal(size=3)), 0.05 * random.normal(size=3))
        frame.rig_from_world = noise * frame.rig_from_world
    model.transform(pycolmap.Sim3d(2.5, pycolmap.Rotation3d(np.array([0.3, 1.0, -0.2])), np.array([3.0, -1.0, 8.0])))
    return write_kinds(model, tmp_path_factory.mktemp("estimate"))


@pytest.mark.parametrize("truth_kind", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_formats_give_the_same_score(kind, truth_kind, estimates, truths):
    expected = score_files(estimates["colmap"], truths["colmap"], PROTOCOLS["default"])
    found = score_files(estimates[kind], truths[truth_kind], PROTOCOLS["default"])
    assert found.measures == pytest.approx(expected.measures, abs=1e-6)
    assert found.num_registered == NUM_FRAMES and found.num_strangers == 0
    assert 0.1 < expected.measures["AUC@10"] < 0.95
    assert found.curve == pytest.approx(expected.curve)


def test_missing_images_are_wrong_and_strangers_are_told(truths, tmp_path, capsys):
    content = json.loads(truths["json"].read_text())
    del content["images"]["001.jpg"]
    content["images"]["else.jpg"] = content["images"]["000.jpg"]
    (tmp_path / "some.json").write_text(json.dumps(content))
    score = score_files(tmp_path / "some.json", truths["colmap"], PROTOCOLS["mast3r-sfm"])
    assert score.measures["RRA@5"] == pytest.approx(15 / 21)
    assert main(["eval", str(tmp_path / "some.json"), str(truths["colmap"])]) == 0
    assert "6 of 7 images have a pose; 1 more are not in the truth" in capsys.readouterr().out


def test_pairs_can_be_chosen(truths, estimates, tmp_path):
    (tmp_path / "pairs.txt").write_text("000.jpg 001.jpg\n003.jpg 002.jpg\n")
    some = score_files(estimates["json"], truths["json"], PROTOCOLS["scannet"], tmp_path / "pairs.txt")
    assert some.num_pairs == 2 and some.measures["ACC@10"] in (0, 0.5, 1)
    content = json.loads(truths["json"].read_text())
    del content["images"]["000.jpg"]
    (tmp_path / "other.json").write_text(json.dumps(content))
    fewer = score_files(
        estimates["json"], truths["json"], PROTOCOLS["scannet"], tmp_path / "pairs.txt", tmp_path / "other.json"
    )
    assert fewer.num_pairs == 1
    (tmp_path / "pairs.txt").write_text("000.jpg 001.jpg\n")
    with pytest.raises(InputError, match="other.json: has both poses of none"):
        score_files(
            estimates["json"], truths["json"], PROTOCOLS["scannet"], tmp_path / "pairs.txt", tmp_path / "other.json"
        )


def test_of_several_models_the_largest_is_scored(truths, tmp_path):
    model = make_model(0)
    for image in list(model.images.values())[3:]:
        model.deregister_frame(image.frame_id)
    small = tmp_path / "sparse" / "0"
    small.mkdir(parents=True)
    model.write_binary(small)
    shutil.copytree(truths["colmap"], tmp_path / "sparse" / "1")
    for path in (tmp_path, tmp_path / "sparse"):
        assert score_files(path, truths["json"], PROTOCOLS["default"]).num_registered == NUM_FRAMES
    assert score_files(small, truths["json"], PROTOCOLS["default"]).num_registered == 3


def test_json_has_no_infinities(truths, tmp_path, capsys):
    content = json.loads(truths["json"].read_text())
    content["images"] = {name: content["images"][name] for name in ("000.jpg", "001.jpg")}
    (tmp_path / "two.json").write_text(json.dumps(content))
    assert main(["eval", str(tmp_path / "two.json"), str(truths["json"]), "--protocol", "7scenes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measures"]["median cm"] is None and found["num_registered"] == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-2], "has 5 poses"),
        (lambda lines: [*lines[:2], lines[2] + " 7", *lines[3:]], "line 3"),
        (lambda lines: [lines[0].replace(lines[0].split()[0], "nan", 1), *lines[1:]], "line 1"),
    ],
)
def test_a_bad_trajectory_is_named(change, words, truths, tmp_path, capsys):
    lines = truths["kitti"].read_text().splitlines()
    (tmp_path / "bad.txt").write_text("\n".join(change(lines)))
    assert main(["eval", str(tmp_path / "bad.txt"), str(truths["colmap"])]) == 2
    error = capsys.readouterr().err
    assert words in error and "bad.txt" in error and "Traceback" not in error


def test_no_common_image_and_no_such_protocol_are_explained(truths, tmp_path, capsys):
    content = {"images": {"x.jpg": json.loads(truths["json"].read_text())["images"]["000.jpg"]}}
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert main(["eval", str(tmp_path / "x.json"), str(truths["json"])]) == 2
    assert "x.json" in capsys.readouterr().err
    assert main(["eval", str(truths["json"]), str(truths["json"]), "--protocol", "eth"]) == 2
    assert "there are default" in capsys.readouterr().err
