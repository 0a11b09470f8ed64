"""Soft priors of poses: their derivative, what they change, what they must not change, and their files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import assert_close
from made_up import all_views, keypoints_with, make_lens, orbit, photograph, relief, true_cameras
from PIL import Image
from test_given import centers, perturbed, with_gps, write_poses
from test_pipeline import FOCAL, settings, write_scene

from mbasfm import Config, reconstruct
from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.pose_priors import PosePriors, anchor
from mbasfm.adjust.stage import SPLIT_STAGES
from mbasfm.errors import ConfigError, InputError
from mbasfm.geometry.rigid import camera_centers, compose, exp_se3, exp_so3
from mbasfm.geometry.similarity import Similarity
from mbasfm.io.images import find_photos
from mbasfm.polish.colmap_mapper import HELD, Mapper, build_model, read_back
from mbasfm.sfm.inputs import UserFiles, read_given
from mbasfm.sfm.samples import draw_samples

MOVE = Similarity.build(
    3.0,
    exp_so3(torch.tensor([0.2, 1.0, -0.4], dtype=torch.float64)),
    torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64),
)


def priors_of(poses: torch.Tensor, sigma: float, sigma_deg: float = float("inf")) -> PosePriors:
    count = len(poses)
    turn = torch.full((count,), sigma_deg, dtype=torch.float64).deg2rad()
    return PosePriors(torch.arange(count), poses, torch.full((count,), sigma, dtype=torch.float64), turn)


@pytest.mark.parametrize("sigma_deg", [float("inf"), 2.0])
def test_the_gradient_is_that_of_the_loss(sigma_deg):
    """Although the similarity is fitted anew each time: at its minimum its own motion makes no difference."""
    truth = torch.from_numpy(orbit(6))
    rough = torch.from_numpy(perturbed(orbit(6), 1.0, 0.1))
    priors = priors_of(MOVE.poses(truth), 0.2, sigma_deg)
    _, gradient, diagonal = priors.evaluate(rough)
    step = 1e-5
    for frame, slot in [(0, 0), (1, 2), (2, 3), (3, 4), (5, 5)]:
        losses = []
        for sign in (1, -1):
            xi = torch.zeros(6, dtype=torch.float64)
            xi[slot] = sign * step
            moved = rough.clone()
            moved[frame] = compose(exp_se3(xi), rough[frame])
            losses.append(priors.evaluate(moved)[0])
        numeric = (losses[0] - losses[1]) / (2 * step)
        assert float(gradient[frame, slot]) == pytest.approx(numeric, rel=2e-3, abs=2e-3 * float(gradient.abs().max()))
    assert (diagonal >= 0).all() and float(diagonal[:, 3:].min()) > 0
    assert float(priors.evaluate(truth)[0]) == pytest.approx(0, abs=1e-12)


def test_a_few_wrong_priors_are_told_apart():
    truth = torch.from_numpy(orbit(9))
    poses = MOVE.poses(truth)
    poses[2, :, 3] += 20
    poses[6, :, 3] -= 35
    found, weight = priors_of(poses, 0.05).similarity(truth)
    assert_close(found.rigid, MOVE.rigid, atol=0.01, rtol=0.01)
    assert (weight[[2, 6]] < 0.01).all() and float(weight.sort().values[2]) > 0.9


@pytest.fixture(scope="module")
def chain():
    """A long chain, neighbours only, whose matches are few and noisy: it drifts."""
    made = photograph(relief(80, 0) * [3, 1, 1], walk(10), make_lens(FOCAL), 0, noise_px=4.0)
    views = [view for view in all_views(made) if view.j - view.i == 1]
    keypoints = keypoints_with(made, [np.full_like(depth, np.median(depth)) for depth in made.depth])
    samples = draw_samples(views, keypoints, 60, 0)
    start = replace(true_cameras(made), cam_from_world=torch.from_numpy(perturbed(made.cam_from_world, 0.5, 0.05)))
    return made, views, keypoints, samples, start, adjust(start, samples, SPLIT_STAGES)


def walk(count: int) -> np.ndarray:
    """cam_from_world of cameras on a bent path past the scene, all looking ahead."""
    along = np.linspace(-3, 3, count)
    positions = np.column_stack([along, 0.2 * along**2, -4 + 0.1 * np.sin(3 * along)])
    return np.concatenate([np.tile(np.eye(3), (count, 1, 1)), -positions[..., None]], -1)


def shape_error(cameras, made, priors) -> float:
    """Median distance of centres from the truth in the priors' world."""
    cameras, _ = anchor(cameras, torch.zeros(made.num_frames, dtype=torch.long), priors)
    truth = camera_centers(MOVE.poses(torch.from_numpy(made.cam_from_world)))
    return float((camera_centers(cameras.cam_from_world) - truth).norm(dim=-1).median())


def test_priors_pull_a_chain_that_drifts_and_endless_sigmas_do_nothing(chain):
    made, _, _, samples, start, free = chain
    exact = MOVE.poses(torch.from_numpy(made.cam_from_world))
    vague = adjust(start, samples, SPLIT_STAGES, pose_priors=priors_of(exact, 1e7))
    # Where the data is weak, rounding alone leads to ends a little apart.
    assert_close(vague.cameras.cam_from_world, free.cameras.cam_from_world, atol=5e-3, rtol=0)
    tight = priors_of(exact, 0.01)
    held = adjust(start, samples, SPLIT_STAGES, pose_priors=tight)
    drift, left = shape_error(free.cameras, made, tight), shape_error(held.cameras, made, tight)
    assert left < 0.02 and drift > 0.1
    _, growth = anchor(held.cameras, torch.zeros(made.num_frames, dtype=torch.long), tight)
    depth = held.cameras.depth_scale * growth  # maps have the true median: in the priors' world it is thrice as large
    assert float(depth.median()) == pytest.approx(3, rel=0.05)


def test_noisy_priors_with_a_liar_still_help(chain):
    made, _, _, samples, start, free = chain
    noisy = MOVE.poses(torch.from_numpy(made.cam_from_world))
    noise = torch.randn(made.num_frames, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noisy[..., 3] += 0.05 * noise
    noisy[4, :, 3] += 30
    priors = priors_of(noisy, 0.05)
    pulled = adjust(start, samples, SPLIT_STAGES, pose_priors=priors)
    assert shape_error(pulled.cameras, made, priors) < 0.5 * shape_error(free.cameras, made, priors)


def test_priors_pull_in_polish_too(chain):
    made, views, keypoints, _, _, free = chain
    exact = priors_of(MOVE.poses(torch.from_numpy(made.cam_from_world)), 0.01)
    drifted, _ = anchor(free.cameras, torch.zeros(made.num_frames, dtype=torch.long), exact)
    frames, matches = range(made.num_frames), [view.matches for view in views]
    errors = []
    for priors in (None, exact):
        model = build_model([f"{n}.jpg" for n in frames], frames, drifted, keypoints, HELD)
        mapper = Mapper(model, views, matches, priors=priors)
        mapper.triangulate()
        mapper.settle(HELD, 1.0)
        errors.append(shape_error(read_back(model, drifted), made, exact))
    assert errors[1] < 0.02 and errors[0] > 0.1


def test_positions_in_a_table_make_the_world_metric(tmp_path):
    made = write_scene(tmp_path)[0]
    place = 10 * centers(made.cam_from_world) @ exp_so3(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)).numpy().T
    rows = [f"0_{n}.png, {x}, {y}, {z}, {0.1 if n else 2.0}" for n, (x, y, z) in enumerate(place)]
    (tmp_path / "gps.csv").write_text("\n".join(["name, x, y, z, sigma_m", *rows]))
    config = settings(tmp_path, focal=FOCAL, priors=str(tmp_path / "gps.csv"))
    result = reconstruct(tmp_path / "images", None, config)
    assert centers(result.cameras.cam_from_world) == pytest.approx(place, abs=0.3)
    world = result.report.world
    assert world["frame"] == "priors" and world["components"][0]["agreeing"] == 6
    depth = np.load(tmp_path / "depth" / "0_2.npy").mean() * result.cameras.depth_scale + result.cameras.depth_shift
    assert depth.numpy() == pytest.approx(40, abs=10)


def photos_in(folder):
    folder.mkdir(exist_ok=True)
    for number in range(4):
        Image.new("RGB", (80, 80), (number, 0, 0)).save(folder / f"{number}.png")
    return folder


def test_sigmas_are_those_of_the_image_else_of_the_file_else_of_the_setting(tmp_path):
    images = photos_in(tmp_path / "images")
    entries = {f"{n}.png": {"x": n, "y": 0, "z": 1} for n in range(3)}
    entries["1.png"]["sigma_m"] = 7.0
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"images": entries}))
    photos, _ = find_photos(images)
    priors = read_given(photos, Config(priors=str(path), prior_sigma_m=0.5).part(UserFiles)).priors
    assert priors is not None and priors.sigma.tolist() == [0.5, 7.0, 0.5] and priors.sigma_turn.isinf().all()
    assert_close(camera_centers(priors.cam_from_world), torch.tensor([[n, 0.0, 1.0] for n in range(3)]).double())
    path.write_text(json.dumps({"sigma_m": 3, "images": entries}))
    assert read_given(photos, Config(priors=str(path)).part(UserFiles)).priors.sigma.tolist() == [3.0, 7.0, 3.0]
    poses = dict(zip([f"{n}.png" for n in range(4)], orbit(4), strict=True))
    priors = read_given(photos, Config(priors=str(write_poses(tmp_path / "poses.json", poses))).part(UserFiles)).priors
    assert priors.sigma.tolist() == [1.0] * 4 and priors.sigma_turn.rad2deg().tolist() == pytest.approx([5.0] * 4)


def test_gps_of_the_metadata_and_of_a_table_are_the_same(tmp_path):
    images = photos_in(tmp_path / "images")
    places = [(48.0 + n * 1e-4, 11.5 - n * n * 1e-4, 500.0 + n) for n in range(4)]
    for number, place in enumerate(places):
        with_gps(images / f"{number}.png", *place)
    lines = [f"{n}.png,{lat},{lon},{alt}" for n, (lat, lon, alt) in enumerate(places)]
    (tmp_path / "gps.csv").write_text("\n".join(["name,latitude,longitude,altitude", *lines]))
    photos, _ = find_photos(images)
    exif, table = (read_given(photos, Config(priors=p).part(UserFiles)) for p in ("exif", str(tmp_path / "gps.csv")))
    assert exif.priors is not None and table.priors is not None and exif.world is not None
    assert_close(exif.priors.cam_from_world, table.priors.cam_from_world, atol=1e-3)
    assert exif.priors.sigma.tolist() == [5.0] * 4 and exif.world.facts["origin"]["latitude"] == pytest.approx(48)
    steps = camera_centers(exif.priors.cam_from_world).diff(dim=0)
    assert float(steps[0, 1]) == pytest.approx(11.12, abs=0.05) and float(steps[0, 2]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("p.csv", "name,x,y,z\n0.png,1,2\n", "line 2: no position"),
        ("p.csv", "name,x,y,z\n0.png,1,2,abc\n", "line 2: not numbers"),
        ("p.csv", "x,y,z\n1,2,3\n", "line 2: no name; give name,x,y,z"),
        ("p.csv", "name,latitude,longitude\n0.png,95,3\n", "line 2: latitude 95 .* no place on the earth"),
        ("p.csv", "name,x,y,z\nother.png,1,2,3\n", "cannot tell which photographs .* it lists other.png"),
        ("p.csv", "name,x,y,z\n0.png,1,2,3\n1.png,1,2,4\n", "covers 2 of 4 photographs; 3 are needed"),
        ("p.csv", "name,x,y,z,sigma_m\n0.png,1,2,3,-1\n", "sigma_m must be a positive number, not -1"),
        ("p.json", '{"images": {"0.png": {"x": 1}}}', "0.png: no position"),
        ("p.json", '{"images": {"0.png": 3}}', "0.png: must be"),
        ("p.json", "{", "cannot be read as JSON"),
    ],
)
def test_what_is_wrong_with_priors(tmp_path, file, content, message):
    photos, _ = find_photos(photos_in(tmp_path / "images"))
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        read_given(photos, Config(priors=str(tmp_path / file)).part(UserFiles))


def test_settings_that_cannot_work():
    with pytest.raises(ConfigError, match="must be positive"):
        Config(prior_sigma_m=-1.0)
    with pytest.raises(ConfigError, match="adam uses no priors"):
        Config(priors="exif", solver="adam")
