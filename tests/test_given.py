"""What the user knows about poses: a start, and the world that the result shall be in."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch
from made_up import angle_deg, invert
from PIL import ExifTags, Image
from scipy.spatial.transform import Rotation
from test_pipeline import FOCAL, auc_of, settings, write_scene

from mbasfm import Config, reconstruct
from mbasfm.errors import InputError
from mbasfm.io.images import find_photos
from mbasfm.sfm import inputs
from mbasfm.sfm.finish import align_world
from mbasfm.sfm.inputs import UserFiles, World, read_given
from mbasfm.sfm.intrinsics import known_intrinsics
from mbasfm.types.outcome import FocalSource


def write_poses(path: Path, poses: dict[str, np.ndarray], focal: float | None = None) -> Path:
    camera = {} if focal is None else {"K": [focal, focal, 512, 384], "width": 1024, "height": 768}
    entries = {name: {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()} | camera for name, pose in poses.items()}
    path.write_text(json.dumps({"images": entries}))
    return path


def perturbed(poses: np.ndarray, turn_deg: float, shift: float) -> np.ndarray:
    random = np.random.default_rng(0)
    turns = Rotation.from_rotvec(random.normal(size=(len(poses), 3)) * turn_deg, degrees=True).as_matrix()
    return np.concatenate([turns @ poses[..., :3], poses[..., 3:] + shift * random.normal(size=(len(poses), 3, 1))], -1)


def centers(poses) -> np.ndarray:
    return invert(np.asarray(poses))[..., 3]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    made = write_scene(folder)[0]
    return folder, made, {f"0_{n}.png": pose for n, pose in enumerate(made.cam_from_world)}


@pytest.fixture(scope="module")
def plain(scene):
    """A result in the world of its root."""
    return reconstruct(scene[0] / "images", None, settings(scene[0], focal=FOCAL))


def aligned(plain, photos, align):
    return align_world(plain, read_given(photos, Config(align=str(align)).part(UserFiles)).world)


def test_a_rough_start_ends_at_the_truth_in_its_own_world(scene, tmp_path):
    """One photograph is missing in the model, and its intrinsics are a start: 3 % off, but not held."""
    folder, made, truth = scene
    rough = dict(zip(truth, perturbed(made.cam_from_world, 2.0, 0.05), strict=True))
    rough.pop("0_3.png")
    path = write_poses(folder / "rough.json", rough, 1.03 * FOCAL)
    result = reconstruct(folder / "images", tmp_path / "out", settings(folder, init=str(path)))
    assert result.registered.all() and auc_of(result, made) > 0.9
    assert result.report.cameras[0].focal_from is FocalSource.INITIAL_MODEL
    assert result.cameras.intrinsics.focal.numpy() == pytest.approx(FOCAL, rel=0.01)
    assert centers(result.cameras.cam_from_world) == pytest.approx(centers(made.cam_from_world), abs=0.15)
    assert result.report.world["components"][0]["images"] == 5
    written = pycolmap.Reconstruction(tmp_path / "out" / "sparse" / "0")
    assert written.compute_mean_reprojection_error() < 1
    assert np.linalg.norm(np.median([p.xyz for p in written.points3D.values()], axis=0)) < 0.3  # relief around 0
    image = written.find_image_with_name("0_2.png")
    assert image.cam_from_world().matrix() == pytest.approx(result.cameras.cam_from_world[2].numpy(), abs=1e-9)


def start_of(photos, config):
    return known_intrinsics(photos, read_given(photos, config.part(UserFiles)).cameras, config.intrinsics, config.lens)


def test_every_file_is_read_once(scene, tmp_path, monkeypatch):
    folder, _, truth = scene
    path = write_poses(tmp_path / "start.json", truth, FOCAL)
    (tmp_path / "pairs.txt").write_text("".join(f"0_{n}.png 0_{n + 1}.png\n" for n in range(4)))
    photos, _ = find_photos(folder / "images")
    seen = []
    for name in ("read_poses", "read_pairs"):  # as they come
        real = getattr(inputs, name)
        monkeypatch.setattr(inputs, name, lambda file, *rest, real=real: seen.append(file.name) or real(file, *rest))
    given = read_given(photos, Config(init=str(path), pairs=str(tmp_path / "pairs.txt")).part(UserFiles))
    assert sorted(seen) == ["pairs.txt", "start.json"]
    assert len(given.poses) == len(given.cameras.rough) == len(photos) and given.world.frame == "model"
    assert given.pairs.tolist() == [[n, n + 1] for n in range(4)]


def test_a_given_focal_length_wins_over_that_of_the_start(scene):
    folder, _, truth = scene
    path = write_poses(folder / "wrong_focal.json", truth, 2 * FOCAL)
    photos, _ = find_photos(folder / "images")
    start = start_of(photos, Config(init=str(path), focal=FOCAL))
    assert start.is_known.all() and start.intrinsics.focal.numpy() == pytest.approx(FOCAL)
    start = start_of(photos, Config(init=str(path)))
    assert start.is_init.all() and start.intrinsics.focal.numpy() == pytest.approx(2 * FOCAL)


def test_the_result_lies_in_the_world_of_another_model(scene, plain, tmp_path):
    """A COLMAP model of all but one photograph, one of them wrong: poses, points and depth are those of its world."""
    folder, made, truth = scene
    model = pycolmap.Reconstruction()
    camera = pycolmap.Camera(camera_id=1, model="SIMPLE_PINHOLE", width=1024, height=768, params=[FOCAL, 512, 384])
    model.add_camera_with_trivial_rig(camera)
    for number, (name, pose) in enumerate(list(truth.items())[:5], start=1):
        wrong = pose + [[0, 0, 0, 5]] if number == 2 else pose
        image = pycolmap.Image(name=name, camera_id=1, image_id=number)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(wrong))
    model.write_binary(tmp_path)
    result = aligned(plain, find_photos(folder / "images")[0], tmp_path)
    (facts,) = result.report.world["components"]
    assert facts["agreeing"] == 4 and facts["images"] == 5
    assert centers(result.cameras.cam_from_world) == pytest.approx(centers(made.cam_from_world), abs=0.02)
    for pose, expected in zip(result.cameras.cam_from_world.numpy(), made.cam_from_world, strict=True):
        assert angle_deg(pose[:, :3], expected[:, :3]) < 0.5
    before, after = plain.models[0], result.models[0]
    assert after.compute_mean_reprojection_error() == pytest.approx(before.compute_mean_reprojection_error(), abs=1e-6)
    assert np.linalg.norm(np.median([p.xyz for p in after.points3D.values()], axis=0)) < 0.2  # relief around 0
    assert not torch.equal(plain.cameras.cam_from_world, result.cameras.cam_from_world)  # the first stays as it was
    assert after.images[3].cam_from_world().matrix() == pytest.approx(
        result.cameras.cam_from_world[2].numpy(), abs=1e-9
    )
    depth = np.load(folder / "depth" / "0_2.npy").mean() * result.cameras.depth_scale + result.cameras.depth_shift
    assert depth.numpy() == pytest.approx(4, abs=1)
    scaled = [np.array(r.report.images[0].sigma.translation) for r in (plain, result)]
    assert scaled[1] == pytest.approx(scaled[0] * facts["scale"])


def test_z_is_up(scene, plain):
    folder, made, _ = scene
    result = aligned(plain, find_photos(folder / "images")[0], "up")
    up = -result.cameras.cam_from_world[:, 1, :3]
    assert (up[:, 2] > 0.95).all()
    (facts,) = result.report.world["components"]
    assert facts["scale"] == 1 and facts["median_roll_deg"] < 5 and auc_of(result, made) > 0.9


def with_gps(path: Path, latitude: float, longitude: float, altitude: float) -> None:
    """Write a position into the metadata of a picture."""
    tags: dict[int, object] = {ExifTags.GPS.GPSAltitude: altitude}
    for tag, value, reference in ((2, latitude, "NS"), (4, longitude, "EW")):
        minutes = (abs(value) % 1) * 60
        tags[tag] = (float(int(abs(value))), float(int(minutes)), (minutes % 1) * 60)
        tags[tag - 1] = reference[int(value < 0)]
    exif = Image.Exif()
    exif[ExifTags.IFD.GPSInfo] = tags
    with Image.open(path) as image:
        image.save(path, exif=exif)


def test_positions_of_the_metadata_make_the_world_metric(scene, plain):
    """Cameras on the southern half of the earth; what is 1 in the made-up world is 10 m there, with y down."""
    folder, made, _ = scene
    place = centers(made.cam_from_world) @ np.diag([10, -10, 10])[[0, 2, 1]].T  # east, north, up
    latitude = -33 + np.rad2deg(place[:, 1] / 6_357_000)
    longitude = 151 + np.rad2deg(place[:, 0] / (6_384_000 * np.cos(np.deg2rad(33))))
    photos, _ = find_photos(folder / "images")
    gps = zip(latitude.tolist(), longitude.tolist(), (100 + place[:, 2]).tolist(), strict=True)
    result = aligned(plain, [replace(photo, gps=where) for photo, where in zip(photos, gps, strict=True)], "gps")
    found = centers(result.cameras.cam_from_world)
    assert result.report.world["origin"]["latitude"] == pytest.approx(-33, abs=0.01)
    lengths, expected = (np.linalg.norm(np.diff(c, axis=0), axis=1) for c in (found, place))
    assert lengths == pytest.approx(expected, rel=0.03)
    assert found - found[0] == pytest.approx(place - place[0], abs=1.0)
    assert (-result.cameras.cam_from_world[:, 1, 2] > 0.9).all()  # cameras stand upright on the earth


def test_a_component_that_shares_too_little_stays_where_it_is(plain):
    world = World("gps", {0: torch.zeros(3).double(), 1: torch.ones(3).double()}, {}, {})
    result = align_world(plain, world)
    assert result.report.world["components"] == [{"component": 0, "aligned": False}]
    assert torch.equal(result.cameras.cam_from_world, plain.cameras.cam_from_world)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"align": "gps"}, "--align gps: 0 of 6 photographs have a position"),
        ({"align": "nowhere"}, "nowhere does not exist; give a COLMAP model's folder"),
        ({"init": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_computed(scene, changes, message):
    photos, _ = find_photos(scene[0] / "images")
    with pytest.raises(InputError, match=message):
        read_given(photos, Config(**changes).part(UserFiles))
