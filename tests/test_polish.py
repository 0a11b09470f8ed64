"""Classical bundle adjustment: better cameras or the old ones, and files that COLMAP reads."""

import struct
from dataclasses import replace
from itertools import combinations

import numpy as np
import pycolmap
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up import (
    all_views,
    compose,
    keypoints_with,
    make_lens,
    make_pose,
    orbit,
    photograph,
    pose_errors_deg,
    relief,
    true_cameras,
)
from scipy.spatial.transform import Rotation
from scipy.stats import norm

from mbasfm.polish.colmap_mapper import (
    HELD,
    ROUGH_TOLERANCE,
    Freedom,
    Mapper,
    believed_difference,
    build_model,
    camera_of,
    read_back,
    shrink_camera,
)
from mbasfm.polish.polish import MIN_POINTS, PolishSettings, polish, triangulate
from mbasfm.polish.tracks import (
    HELD_OUT_SHARE,
    MAX_HELD_OUT_SHARE,
    MIN_HELD_OUT,
    PER_FRAME,
    Transfers,
    connect,
    first_of_each,
    hold_out,
    is_doubled,
    longest,
    match_ends,
    transfer_errors_px,
)
from mbasfm.synthetic.cameras import perturb
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Keypoints, TwoView
from mbasfm.types.outcome import NotPolished

DISTANCE = 4.0


def make_scene(num_frames=6, count=400, seed=0, lens=None, step_deg=8.0):
    return photograph(relief(count, seed), orbit(num_frames, step_deg), lens or make_lens(), seed, noise_px=0.3)


def inputs(made, frames=None):
    """Names, frames, and what polish needs besides cameras and settings."""
    frames = list(range(made.num_frames)) if frames is None else frames
    return [f"{frame}.jpg" for frame in range(made.num_frames)], frames, keypoints_with(made, made.depth)


def run(made, cameras, freedom=HELD, frames=None, views=None):
    names, frames, keypoints = inputs(made, frames)
    views = all_views(made) if views is None else views
    held = hold_out(views, keypoints, 0)
    return polish(names, frames, cameras, views, keypoints, PolishSettings(freedom, held))


def disturbed(made, rotation_deg=1.0, translation=0.01 * DISTANCE):
    return perturb(true_cameras(made), 3, rotation_deg, translation)


def mean_errors_deg(cameras, made):
    return np.array([errors.mean() for errors in pose_errors_deg(cameras.cam_from_world.numpy(), made)])


def without_lens(cameras, focal_factor=1.0):
    """The cameras as one would start: principal point in the middle, no distortion."""
    old = cameras.intrinsics
    return replace(cameras, intrinsics=Intrinsics.pinhole(old.focal[:, 0] * focal_factor, old.sizes, old.group))


# ----------------------------------------------------------------------------------------------------------------
# What polish does to cameras


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(1024, 768), (3072, 2304)])
def test_disturbed_cameras_get_at_least_five_times_better(seed, size):
    lens = make_lens(900.0 * size[0] / 1024, size)
    made = make_scene(seed=seed, lens=lens)
    start = disturbed(made)
    result = run(made, start)
    assert result.used and result.reason is None
    assert (mean_errors_deg(result.cameras, made) < mean_errors_deg(start, made) / 5).all()
    assert result.held_out_px[1] < 0.2 * result.held_out_px[0] and result.held_out_px[1] < 0.6
    assert torch.equal(result.cameras.intrinsics.focal, start.intrinsics.focal)


def test_mismatches_are_filtered_and_do_not_spoil_the_cameras():
    made = make_scene(seed=4)
    generator = np.random.default_rng(0)
    views = []
    for view in all_views(made):
        is_wrong = generator.random(view.num_inliers) < 0.1
        matches = view.matches.copy()
        matches[is_wrong, 1] = generator.permutation(matches[is_wrong, 1])
        views.append(replace(view, matches=matches))
    result = run(made, disturbed(made, 0.5, 0.02), views=views)
    assert result.used
    assert (mean_errors_deg(result.cameras, made) < 0.15).all()
    assert 250 < result.model.num_points3D() and result.model.compute_mean_reprojection_error() < 1.0


@pytest.mark.parametrize("num_frames", [2, 3, 8])
def test_noise_is_that_of_the_pixels_however_short_the_tracks(num_frames):
    """Two photographs leave a point one of four coordinates to be off by: the bare error would be half the noise."""
    made = photograph(relief(800, 5), orbit(num_frames), make_lens(), 5, noise_px=0.4)
    names, frames, keypoints = inputs(made)
    views = all_views(made)
    model = build_model(names, frames, true_cameras(made), keypoints, HELD)
    mapper = Mapper(model, views, [view.matches for view in views])
    mapper.triangulate()
    assert mapper.noise_px() == pytest.approx(0.4, rel=0.25)


def long_chain(seed, num_frames=40, reach=2):
    """A long lens around an object; every point is matched only in the few frames around its own."""
    made = photograph(relief(15 * num_frames, seed), orbit(num_frames, distance=24.0), make_lens(5300.0), seed, 0.3)
    views = []
    for view in all_views(made):
        own = made.point_of[view.i][view.matches[:, 0]] % num_frames
        is_near = (abs(own - view.i) <= reach) & (abs(own - view.j) <= reach)
        views += [replace(view, matches=view.matches[is_near])] if is_near.sum() >= 8 else []
    return made, views


def bent(made, step_deg):
    """The true cameras, each turned around the object by so much more than the one before."""
    turns = [make_pose([0, step_deg * k, 0.5 * step_deg * k], [0, 0, 0]) for k in range(made.num_frames)]
    return replace(true_cameras(made), cam_from_world=torch.from_numpy(compose(made.cam_from_world, np.stack(turns))))


@pytest.mark.parametrize("seed", range(2))
def test_an_adjustment_ends_where_the_next_one_stays(seed):
    """However far the cameras are from there: cut off on the way, where they stand would hang on rounding."""
    made, views = long_chain(seed)
    names, frames, keypoints = inputs(made)
    start = bent(made, 5.0)
    mapper = Mapper(build_model(names, frames, start, keypoints, HELD), views, [view.matches for view in views])
    mapper.triangulate()
    ends = []
    for tolerance in (ROUGH_TOLERANCE, 1e-12):
        mapper.adjust(HELD, 0.4, tolerance)
        ends.append(read_back(mapper.model, start).cam_from_world.numpy())
    moved = pose_errors_deg(ends[0], replace(made, cam_from_world=ends[1]))[0]
    turned = pose_errors_deg(ends[1], replace(made, cam_from_world=start.cam_from_world.numpy()))[0]
    assert turned.max() > 10 and moved.max() < 0.5


def test_a_ten_thousandth_of_a_pixel_is_not_felt():
    """It is 3000 times less than the noise, and moves cameras by less than 1/300 of what the noise does."""
    made, views = long_chain(0, num_frames=16)
    generator = np.random.default_rng(0)
    wrong = [generator.random(view.num_inliers) < 0.05 for view in views]
    for view, rows in zip(views, wrong, strict=True):
        view.matches[rows, 1] = generator.permutation(view.matches[rows, 1])
    ends = []
    for draw in range(3):
        noise = np.random.default_rng(draw)
        pixels = [rows + 1e-4 * noise.standard_normal(rows.shape) for rows in made.pixels]
        ends.append(run(replace(made, pixels=pixels), bent(made, 1.0), views=views))
    assert all(end.used for end in ends)
    first, *others = [end.cameras.cam_from_world.numpy() for end in ends]
    error = pose_errors_deg(first, made)[0].max()
    moved = [pose_errors_deg(other, replace(made, cam_from_world=first))[0].max() for other in others]
    assert error < 1.0 and max(moved) < error / 300


def test_a_wrong_focal_is_corrected_where_it_may_change_and_kept_where_not():
    made = make_scene(num_frames=8, seed=1)
    start = perturb(true_cameras(made), 3, 0.5, 0.02, focal_factor=1.04)
    free, held = run(made, start, Freedom(focal=True, lens=False)), run(made, start)
    assert free.cameras.intrinsics.focal.numpy() == pytest.approx(np.full((8, 2), 900.0), rel=0.01)
    assert torch.equal(held.cameras.intrinsics.focal, start.intrinsics.focal)
    assert (free.cameras.intrinsics.center == torch.tensor([512.0, 384.0])).all()
    assert (free.cameras.intrinsics.distortion == 0).all()


def test_principal_point_and_radial_term_are_found_by_ten_frames_of_one_camera():
    made = make_scene(num_frames=10, count=600, lens=make_lens(offset=(8.0, -6.0), distortion=(-0.05, 0, 0, 0)))
    result = run(made, perturb(without_lens(true_cameras(made), 1.02), 3, 0.5, 0.02), Freedom(True, True))
    assert result.used
    found = result.cameras.intrinsics
    assert torch.equal(found.center, found.center[:1].expand(10, 2)), "frames of one camera share its intrinsics"
    assert found.center[0].numpy() == pytest.approx([520.0, 378.0], abs=2.5)
    assert found.focal[0].numpy() == pytest.approx([900.0, 900.0], rel=0.005)
    assert found.distortion[0].numpy() == pytest.approx([-0.05, 0, 0, 0], abs=0.005)


def test_two_frames_close_together_leave_the_lens_at_its_prior():
    """They cannot tell an off-centre lens from a turned camera."""
    made = make_scene(num_frames=2, count=300, step_deg=3.0)
    result = run(made, disturbed(made, 0.2, 0.01), Freedom(True, True))
    found = result.cameras.intrinsics
    assert found.center.numpy() == pytest.approx(np.array([[512.0, 384.0]] * 2), abs=1.0)
    assert found.distortion.numpy() == pytest.approx(np.zeros((2, 4)), abs=0.01)


def test_frames_outside_the_component_stay_as_they_are():
    made = make_scene(num_frames=7)
    start = disturbed(made)
    inside, outside = [1, 2, 4, 5, 6], [0, 3]
    result = run(made, start, frames=inside)
    moved = (result.cameras.cam_from_world - start.cam_from_world).abs().amax((1, 2))
    assert (moved[outside] == 0).all() and (moved[inside] > 1e-4).sum() >= 3
    assert sorted(result.model.images) == [frame + 1 for frame in inside]


# ----------------------------------------------------------------------------------------------------------------
# When polish is refused


def test_cameras_are_kept_where_adjustment_makes_held_out_matches_worse(monkeypatch):
    def spoil(self, freedom, px):
        del freedom, px
        for number, image in enumerate(self.model.images.values()):
            turn = pycolmap.Rigid3d(make_pose([0.0, 0.3 * (number % 2), 0.3 * (number % 3)], [0, 0, 0]))
            image.frame.rig_from_world = turn * image.frame.rig_from_world

    made = make_scene()
    start = true_cameras(made)
    monkeypatch.setattr(Mapper, "settle", spoil)
    result = run(made, start)
    assert not result.used and result.reason.kind is NotPolished.HELD_OUT_WORSE
    assert result.held_out_px[1] > 2 * result.held_out_px[0]
    assert result.cameras is start
    assert result.model.num_points3D() > 350
    found = result.model.images[3].cam_from_world().matrix()
    assert found == pytest.approx(start.cam_from_world[2].numpy(), abs=1e-9)


def test_too_few_points_are_said_and_cameras_kept():
    made = make_scene(count=MIN_POINTS - 5)
    start = disturbed(made)
    result = run(made, start)
    assert not result.used and result.cameras is start
    assert result.reason.kind is NotPolished.FEW_POINTS and result.reason.values[1] == MIN_POINTS


def make_narrow(seed, step_deg):
    """Two cameras at one distance from what they look at: they hardly know their focal length."""
    poses = orbit(2)
    poses[1] = poses[0]
    poses[1, :, :3] = make_pose([0, step_deg, 0], [0, 0, 0])[:, :3] @ poses[0, :, :3]
    return photograph(relief(300, seed), poses, make_lens(), seed, noise_px=0.3)


@pytest.mark.parametrize("step_deg", [0.3, 1.6])
def test_polish_that_loses_nearly_all_points_is_refused(step_deg):
    made = make_narrow(0, step_deg)
    result = run(made, disturbed(made, 0.01, 0.0), Freedom(True, True))
    assert not result.used or result.model.num_points3D() >= MIN_POINTS


def test_a_focal_length_that_two_frames_cannot_know_stays_near_its_start():
    for seed in range(3):
        made = make_narrow(seed, 5.0)
        result = run(made, disturbed(made, 0.02, 0.0), Freedom(True, True))
        assert result.cameras.intrinsics.focal[0, 0] == pytest.approx(900.0, rel=0.1)


def test_the_lens_may_be_free_while_the_focal_length_is_held():
    made = make_scene(num_frames=8, lens=make_lens(offset=(8.0, -6.0)))
    result = run(made, without_lens(disturbed(made, 0.5, 0.02)), Freedom(focal=False, lens=True))
    assert result.cameras.intrinsics.center[0].numpy() == pytest.approx([520.0, 378.0], abs=3.0)
    assert (result.cameras.intrinsics.focal == 900.0).all()


def test_held_out_error_is_the_distance_from_the_transferred_point_at_the_reference_size():
    """Points that are moved in the frame that checks, by 3 and 4 of 2048 px, are 2.5 px off; the others are right."""
    made = photograph(relief(200, 0), orbit(3), make_lens(1800.0, (2048, 1536)), 0)
    held = hold_out(all_views(made), keypoints_with(made, made.depth), 0)
    seen, *others = held.transfers.pixels.unbind(1)
    moved = Transfers(held.transfers.frames, torch.stack([seen + torch.tensor([3.0, 4.0]), *others], 1))
    assert transfer_errors_px(true_cameras(made), moved).numpy() == pytest.approx(2.5, abs=1e-2)
    assert replace(held, transfers=moved).error_px(true_cameras(made)) == pytest.approx(2.5, abs=1e-2)
    assert held.error_px(true_cameras(made)) < 1e-2


def test_held_out_tracks_move_no_camera():
    made = make_scene()
    names, frames, keypoints = inputs(made)
    views, start = all_views(made), disturbed(made)
    held = hold_out(views, keypoints, 0)
    with_them, without = (
        polish(names, frames, start, some, keypoints, PolishSettings(HELD, held)) for some in (views, held.used(views))
    )
    assert with_them.used and torch.equal(with_them.cameras.cam_from_world, without.cameras.cam_from_world)
    assert with_them.held_out_px == without.held_out_px
    assert with_them.model.num_points3D() > without.model.num_points3D(), "all tracks are in the result"


def test_what_a_third_view_has_behind_it_is_infinitely_wrong():
    made = photograph(relief(200, 0), orbit(3), make_lens(), 0)
    held = hold_out(all_views(made), keypoints_with(made, made.depth), 0)
    cameras = true_cameras(made)
    pose = cameras.cam_from_world.clone()
    pose[2] = torch.from_numpy(compose(make_pose([0, 180.0, 0], [0, 0, 0]), pose[2:].numpy())[0])
    error = transfer_errors_px(replace(cameras, cam_from_world=pose), held.transfers)
    assert error[held.transfers.frames[:, 0] == 2].isinf().all() and (held.transfers.frames[:, 0] == 2).any()


def test_too_few_held_out_points_say_nothing_and_refuse_nothing():
    made = make_scene(num_frames=3, count=200)
    held = hold_out(all_views(made), keypoints_with(made, made.depth), 0)

    def first(count):
        return replace(held, transfers=Transfers(held.transfers.frames[:count], held.transfers.pixels[:count]))

    assert np.isfinite(first(MIN_HELD_OUT).error_px(true_cameras(made)))
    assert np.isnan(first(MIN_HELD_OUT - 1).error_px(true_cameras(made)))
    pair = make_scene(num_frames=2)
    result = run(pair, disturbed(pair, 0.2, 0.01))
    assert result.used and np.isnan(result.held_out_px).all()


# ----------------------------------------------------------------------------------------------------------------
# Prior of the lens


FREE = Freedom(True, True)


def radial_camera(center=(520.0, 380.0), radial=0.05):
    return pycolmap.Camera(model="SIMPLE_RADIAL", width=1024, height=768, params=[900.0, *center, radial], camera_id=1)


def test_a_lens_shrinks_to_its_prior_as_far_as_the_data_leaves_it_open():
    """With no spread all is kept; with an enormous or unknown one nothing."""
    for spread, share in (
        (np.zeros((4, 4)), 1.0),
        (1e12 * np.eye(4), 0.0),
        (None, 0.0),
        (np.full((4, 4), np.nan), 0.0),
    ):
        camera = radial_camera()
        shrink_camera(camera, 900.0, FREE, spread)
        expected = [900.0, 512 + 8 * share, 384 - 4 * share, 0.05 * share]
        assert list(camera.params) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("found", [0.0, 0.5, 2.0, 3.0, 10.0])
def test_a_kind_of_parameter_is_believed_by_the_odds_that_it_is_not_nominal(found):
    """One radial term, prior 0.1, measured with a spread of 0.01: the two densities by scipy."""
    value, spread, sigma = 0.01 * found, 0.01, 0.1
    usual, bent = (norm.pdf(value, 0.0, np.hypot(spread, width)) for width in (0.0, sigma))
    expected = bent / (usual + bent) * value * sigma**2 / (sigma**2 + spread**2)
    (believed,) = believed_difference(np.array([value]), np.array([[spread**2]]), np.array([sigma]), np.array([2]))
    assert believed == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_focal_length_follows_where_a_lens_is_taken_as_nominal():
    """Distortion of one sigma is not believed; what it had drawn along with it comes back."""
    spread = np.array([[4.0, 0.018], [0.018, 1e-4]])  # correlation 0.9
    focal, radial = believed_difference(np.array([1.8, 0.01]), spread, np.array([180.0, 0.1]), np.array([0, 2]))
    assert radial < 0.002
    assert abs(focal) < 0.4


# ----------------------------------------------------------------------------------------------------------------
# The model and its files


def read_images(path):
    """images.bin by COLMAP's documented layout: id, quaternion (w, x, y, z), translation, camera, name, points."""
    data, place, found = path.read_bytes(), 8, {}
    for _ in range(struct.unpack_from("<Q", data)[0]):
        number, *pose, camera = struct.unpack_from("<I7dI", data, place)
        end = data.index(b"\0", place + 64)
        name, place = data[place + 64 : end].decode(), end + 9
        (count,) = struct.unpack_from("<Q", data, end + 1)
        table = np.frombuffer(data, np.dtype([("xy", "<f8", 2), ("point", "<i8")]), count, place)
        place += 24 * count
        found[name] = (number, np.array(pose), camera, table)
    return found


def test_the_model_on_disk_has_the_same_poses_and_tracks(tmp_path):
    made = make_scene(num_frames=5)
    result = run(made, disturbed(made))
    result.model.write_binary(tmp_path)
    images = read_images(tmp_path / "images.bin")
    assert sorted(images) == [f"{frame}.jpg" for frame in range(5)]
    for frame in range(5):
        number, pose, camera, table = images[f"{frame}.jpg"]
        expected = result.cameras.cam_from_world[frame].numpy()
        assert (number, camera) == (frame + 1, 1)
        assert Rotation.from_quat(pose[:4], scalar_first=True).as_matrix() == pytest.approx(expected[:, :3], abs=1e-9)
        assert pose[4:] == pytest.approx(expected[:, 3], abs=1e-12)
        assert table["xy"] == pytest.approx(made.pixels[frame], abs=1e-3)
        assert (table["point"] >= 0).mean() > 0.95
    again = pycolmap.Reconstruction(tmp_path)
    assert sorted(again.points3D) == sorted(result.model.points3D)
    for number, point in again.points3D.items():
        track = [(element.image_id, element.point2D_idx) for element in point.track.elements]
        assert len({made.point_of[image - 1][index] for image, index in track}) == 1, "a track is one point"
        assert len(track) == result.model.points3D[number].track.length() >= 2
        assert all(images[f"{image - 1}.jpg"][3]["point"][index] == number for image, index in track)
    assert again.cameras[1].model_name == "SIMPLE_PINHOLE"
    back = read_back(again, true_cameras(made))
    assert back.cam_from_world.numpy() == pytest.approx(result.cameras.cam_from_world.numpy(), abs=1e-9)


@pytest.mark.parametrize("freedom", [HELD, Freedom(True, True)])
def test_the_same_input_gives_the_same_bytes(tmp_path, freedom):
    made = make_scene(num_frames=5, seed=2)
    files = []
    for attempt in ("one", "two"):
        (tmp_path / attempt).mkdir()
        run(made, disturbed(made), freedom).model.write_binary(tmp_path / attempt)
        files.append({path.name: path.read_bytes() for path in (tmp_path / attempt).iterdir()})
    assert files[0] == files[1] and {"cameras.bin", "images.bin", "points3D.bin"} <= set(files[0])


def test_triangulation_alone_leaves_cameras_and_finds_the_points():
    made = make_scene()
    names, frames, keypoints = inputs(made)
    model = triangulate(names, frames, true_cameras(made), all_views(made), keypoints)
    assert model.num_points3D() > 390
    for point in model.points3D.values():
        element = point.track.elements[0]
        truth = made.points[made.point_of[element.image_id - 1][element.point2D_idx]]
        assert np.linalg.norm(point.xyz - truth) < 0.05
        assert 0 <= point.error < 2
    for frame in frames:
        assert model.images[frame + 1].cam_from_world().matrix() == pytest.approx(made.cam_from_world[frame], abs=1e-9)


@pytest.mark.parametrize(
    "focal, distortion, lens, model",
    [
        ((900.0, 900.0), (0, 0, 0, 0), False, "SIMPLE_PINHOLE"),
        ((900.0, 880.0), (0, 0, 0, 0), False, "PINHOLE"),
        ((900.0, 900.0), (0, 0, 0, 0), True, "SIMPLE_RADIAL"),
        ((900.0, 900.0), (0.1, 0, 0, 0), False, "SIMPLE_RADIAL"),
        ((900.0, 880.0), (0.1, 0, 0, 0), False, "OPENCV"),
        ((900.0, 880.0), (0.1, 0.02, 0.001, -0.002), True, "OPENCV"),
        ((900.0, 900.0), (0.1, 0.02, 0, 0), False, "RADIAL"),
    ],
)
def test_intrinsics_survive_the_way_to_colmap_and_back(focal, distortion, lens, model):
    made = make_scene(num_frames=3, count=20)
    cameras = true_cameras(made)
    rows = [torch.tensor([values] * 3, dtype=torch.float64) for values in (focal, (500.0, 390.0), distortion)]
    given = replace(cameras.intrinsics, **dict(zip(("focal", "center", "distortion"), rows, strict=True)))
    cameras = replace(cameras, intrinsics=given)
    assert camera_of(cameras.intrinsics, 0, 7, Freedom(False, lens)).model_name == model
    names, frames, keypoints = inputs(made)
    back = read_back(build_model(names, frames, cameras, keypoints, Freedom(False, lens)), true_cameras(made))
    for name in ("focal", "center", "distortion"):
        assert torch.equal(getattr(back.intrinsics, name), getattr(given, name))
    assert back.cam_from_world.numpy() == pytest.approx(cameras.cam_from_world.numpy(), abs=1e-12)


def test_frames_of_one_group_share_a_camera_and_others_do_not():
    lenses = [make_lens(), make_lens(800.0)]
    made = photograph(relief(50, 0), orbit(4), [lenses[0], lenses[1], lenses[0], lenses[1]], 0)
    names, frames, keypoints = inputs(made)
    model = build_model(names, frames, true_cameras(made), keypoints, HELD)
    ids = [model.images[frame + 1].camera_id for frame in frames]
    assert ids[0] == ids[2] != ids[1] == ids[3] and model.num_cameras() == 2
    assert model.cameras[ids[1]].focal_length == 800.0


# ----------------------------------------------------------------------------------------------------------------
# Tracks


def points_of_matches(made, views):
    """Points of all matches, pair after pair."""
    return [made.point_of[view.i][view.matches[:, 0]] for view in views]


def held_points(made, held):
    return {int(p) for rows, chosen in zip(made.point_of, held.keypoints, strict=True) for p in rows[chosen]}


@pytest.mark.parametrize("count, share", [(2000, HELD_OUT_SHARE), (500, 2 * HELD_OUT_SHARE), (200, MAX_HELD_OUT_SHARE)])
def test_held_tracks_are_about_their_share_and_never_used(count, share):
    """Of fewer tracks a larger share, so that they say something."""
    made = make_scene(count=count)
    views, keypoints = all_views(made), keypoints_with(made, made.depth)
    held = hold_out(views, keypoints, seed=0)
    out, used = held_points(made, held), set(np.concatenate(points_of_matches(made, held.used(views))).tolist())
    assert not out & used and len(out | used) == count
    assert len(out) == pytest.approx(share * count, abs=5 * np.sqrt(count * share))
    for view, left in zip(views, held.used(views), strict=True):
        is_out = np.isin(made.point_of[view.i][view.matches[:, 0]], list(out))
        assert np.array_equal(left.matches, view.matches[~is_out]), "a track is held out in all its pairs or in none"
    again, other = (hold_out(views, keypoints, seed) for seed in (0, 1))
    assert held_points(made, again) == out != held_points(made, other)
    assert torch.equal(again.transfers.frames, held.transfers.frames)


@pytest.mark.parametrize("count", [2000, 8000])
def test_every_held_keypoint_is_checked_once_by_two_others_of_its_track(count):
    made = make_scene(count=count)
    held = hold_out(all_views(made), keypoints_with(made, made.depth), seed=0)
    frames, pixels = held.transfers.frames.numpy(), held.transfers.pixels.numpy()
    index = [{tuple(row): n for n, row in enumerate(p.astype(np.float32).tolist())} for p in made.pixels]
    rows = [
        [(f, index[f][tuple(p)]) for f, p in zip(three, places, strict=True)]
        for three, places in zip(frames.tolist(), pixels.tolist(), strict=True)
    ]
    for triple in rows:
        assert len({f for f, _ in triple}) == 3 and len({made.point_of[f][n] for f, n in triple}) == 1
        assert all(held.keypoints[f][n] for f, n in triple)
    checked = [triple[0] for triple in rows]
    assert len(set(checked)) == len(checked)
    for frame, chosen in enumerate(held.keypoints):
        assert sum(f == frame for f, _ in checked) == min(chosen.sum(), PER_FRAME)
    assert (max(chosen.sum() for chosen in held.keypoints) > PER_FRAME) == (count == 8000)


def test_inside_some_frames_only_they_check_and_the_same_is_held():
    made = make_scene(count=1000)
    held = hold_out(all_views(made), keypoints_with(made, made.depth), seed=0)
    inside = held.inside([0, 1, 3, 4])
    rows = np.isin(held.transfers.frames.numpy(), [0, 1, 3, 4]).all(1)
    assert 0 < rows.sum() < len(rows)
    assert torch.equal(inside.transfers.frames, held.transfers.frames[rows])
    assert torch.equal(inside.transfers.pixels, held.transfers.pixels[rows])
    assert inside.keypoints is held.keypoints


def test_a_match_less_leaves_all_other_tracks_as_they_are():
    made = make_scene(count=2000)
    views, keypoints = all_views(made), keypoints_with(made, made.depth)
    fewer = [replace(views[0], matches=views[0].matches[1:]), *views[1:]]
    one, other = (held_points(made, hold_out(some, keypoints, seed=0)) for some in (views, fewer))
    lost = int(made.point_of[views[0].i][views[0].matches[0, 0]])
    assert one - {lost} == other - {lost}


@pytest.mark.parametrize("seed", range(3))
def test_what_joins_two_places_of_one_photograph_is_never_held_out(seed):
    made = make_scene(count=2000)
    first, *others = all_views(made)
    joined = first.matches[:200]
    swapped = np.column_stack([joined[:, 0], joined[:, 1].reshape(100, 2)[:, ::-1].ravel()])
    views = [replace(first, matches=np.concatenate([first.matches, swapped])), *others]
    held = hold_out(views, keypoints_with(made, made.depth), seed)
    points = set(made.point_of[first.i][joined[:, 0]].tolist())
    assert not points & held_points(made, held) and held_points(made, held)
    assert np.array_equal(held.used(views)[0].matches[-200:], swapped)


def test_tracks_of_two_frames_are_all_used():
    made = make_scene(num_frames=2, count=2000)
    views = all_views(made)
    held = hold_out(views, keypoints_with(made, made.depth), seed=0)
    assert not any(chosen.any() for chosen in held.keypoints) and len(held.transfers.frames) == 0
    assert all(np.array_equal(a.matches, b.matches) for a, b in zip(held.used(views), views, strict=True))


def test_only_the_longest_tracks_of_a_frame_are_used():
    """Half of the points are matched across all four frames, half in two only: the former are used."""
    made = make_scene(num_frames=4, count=1200)
    views = []
    for view in all_views(made):
        points = made.point_of[view.i][view.matches[:, 0]]
        keep = (points < 600) | ((view.i, view.j) in ((0, 1), (2, 3)))
        views.append(replace(view, matches=view.matches[keep]))
    chosen = longest(views, keypoints_with(made, made.depth), 300, seed=0)
    used = [set(made.point_of[v.i][matches[:, 0]]) for v, matches in zip(views, chosen, strict=True)]
    everything = set().union(*used)
    assert max(everything) < 600 and 300 <= len(everything) <= 1200
    assert all(points == everything for points in used), "a track is used in all its pairs or in none"


def test_where_there_are_fewer_tracks_than_wanted_all_are_used():
    made = make_scene(num_frames=3, count=40)
    views = all_views(made)
    chosen = longest(views, keypoints_with(made, made.depth), 1000, seed=0)
    assert all(np.array_equal(matches, view.matches) for matches, view in zip(chosen, views, strict=True))


@given(seed=st.integers(0, 10_000), count=st.integers(0, 8))
def test_the_first_of_each_group_are_those_of_highest_priority(seed, count):
    """The same by its definition, group by group."""
    generator = np.random.default_rng(seed)
    group = generator.integers(0, 5, int(generator.integers(0, 40)))
    priority = generator.random(len(group)) + generator.integers(0, 3, len(group))
    expected = np.zeros(len(group), dtype=bool)
    for number in np.unique(group):
        mine = np.flatnonzero(group == number)
        expected[mine[np.argsort(-priority[mine])[:count]]] = True
    assert np.array_equal(first_of_each(group, priority, count), expected)


@given(seed=st.integers(0, 10_000))
def test_tracks_are_what_matches_connect(seed):
    """The same by its definition: from match to match until nothing changes."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 8, int(generator.integers(2, 5))).tolist()
    keypoints = [Keypoints(np.zeros((n, 2), np.float32), np.ones(n, np.float32)) for n in counts]
    views = [
        TwoView.of_matches(i, j, generator.integers(0, [counts[i], counts[j]], (generator.integers(0, 4), 2)))
        for i, j in combinations(range(len(counts)), 2)
    ]
    frame, track, size = connect(views, keypoints)
    assert np.array_equal(frame, np.repeat(np.arange(len(counts)), counts))
    first = np.concatenate([[0], np.cumsum(counts)])
    ends = [(first[v.i] + a, first[v.j] + b) for v in views for a, b in v.matches.tolist()]
    assert match_ends(views, keypoints).tolist() == [list(pair) for pair in ends]
    label = np.arange(len(frame))
    for _ in range(len(frame)):
        for a, b in ends:
            label[[a, b]] = min(label[a], label[b])
    assert np.array_equal(track[:, None] == track, label[:, None] == label)
    assert np.array_equal(size[track], (label[:, None] == label).sum(1))
    twice = [len(frame[label == own]) > len(set(frame[label == own])) for own in label]
    assert np.array_equal(is_doubled(frame, track)[track], twice)
