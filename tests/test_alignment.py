"""Similarities between worlds and the direction of up: closed forms on cameras whose answer is known."""

import pytest
import torch
from helpers import assert_close

from mbasfm.geometry.camera import project
from mbasfm.geometry.rigid import camera_centers, exp_so3, transform
from mbasfm.geometry.similarity import Pairs, Similarity, find_up, is_line, robust_similarity, turn_to_z
from mbasfm.synthetic.problem import Settings, make_problem

TURN = exp_so3(torch.tensor([0.3, -1.1, 0.7], dtype=torch.float64))
MOVE = Similarity.build(2.5, TURN, torch.tensor([4.0, -3.0, 9.0], dtype=torch.float64))


def random_poses(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    omega, translation = torch.randn(2, count, 3, generator=generator, dtype=torch.float64)
    return torch.cat([exp_so3(omega), translation[..., None]], -1)


def assert_same(found: Similarity, expected: Similarity, atol: float = 1e-9) -> None:
    assert_close(found.scale, expected.scale, atol=atol)
    assert_close(found.rigid, expected.rigid, atol=atol)


def test_cameras_stay_with_their_points():
    points, poses = torch.randn(7, 3, dtype=torch.float64), random_poses(5)
    before, after = (
        transform(poses, points.expand(5, 7, 3)),
        transform(MOVE.poses(poses), MOVE.points(points).expand(5, 7, 3)),
    )
    assert_close(after, MOVE.scale * before)


@pytest.mark.parametrize("with_axes", [True, False])
def test_a_similarity_is_found_again(with_axes):
    source = random_poses(8)
    target = MOVE.poses(source)
    pairs = Pairs.of_poses(source, target) if with_axes else Pairs(camera_centers(source), camera_centers(target))
    found, weight = robust_similarity(pairs)
    assert_same(found, MOVE)
    assert (weight > 0.99).all()


def test_a_third_of_lies_changes_nothing():
    source = random_poses(12)
    target = MOVE.poses(source)
    target[:4] = random_poses(4, 1) * 3
    found, weight = robust_similarity(Pairs(camera_centers(source), camera_centers(target)))
    assert_same(found, MOVE, atol=1e-6)
    assert (weight[:4] < 0.01).all() and (weight[4:] > 0.5).all()


def test_cameras_on_a_line_are_aligned_by_their_orientation():
    source = random_poses(6)
    line = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    source[..., 3] = -(source[..., :3] @ line[..., None]).squeeze(-1)
    assert is_line(line) and not is_line(camera_centers(random_poses(6)))
    found, _ = robust_similarity(Pairs.of_poses(source, MOVE.poses(source)))
    assert_same(found, MOVE)
    pair, _ = robust_similarity(Pairs.of_poses(source[:2], MOVE.poses(source[:2])))
    assert_same(pair, MOVE)


def test_projections_and_depth_follow_the_world():
    cameras = make_problem(4, 0, Settings(samples_per_edge=10)).truth
    chosen = torch.tensor([True, True, False, True])
    moved = MOVE.cameras(cameras, chosen)
    points = torch.randn(4, 9, 3, dtype=torch.float64) * 0.2 + camera_centers(cameras.cam_from_world).mean(0)
    frame = torch.arange(4)[:, None]
    before = project(transform(cameras.cam_from_world, points), cameras.intrinsics, frame)
    after = project(transform(moved.cam_from_world, MOVE.points(points)), moved.intrinsics, frame)
    assert_close(after[chosen].nan_to_num(), before[chosen].nan_to_num(), atol=1e-6)
    assert_close(moved.cam_from_world[2], cameras.cam_from_world[2])
    factor = torch.where(cameras.is_disparity, 1 / MOVE.scale, MOVE.scale)
    assert_close(moved.depth_scale[chosen], (cameras.depth_scale * factor)[chosen])
    assert_close(moved.depth_scale[2], cameras.depth_scale[2])


def level_cameras(pitch_deg: list[float], heading_deg: list[float]) -> torch.Tensor:
    """world_from_cam of cameras held level in a world whose z is up."""
    pitch, heading = (torch.tensor(values, dtype=torch.float64).deg2rad() for values in (pitch_deg, heading_deg))
    zero = torch.zeros_like(pitch)
    upright = exp_so3(torch.tensor([-torch.pi / 2, 0.0, 0.0], dtype=torch.float64))  # y down is z up
    about_x, about_z = exp_so3(torch.stack([pitch, zero, zero], -1)), exp_so3(torch.stack([zero, zero, heading], -1))
    return about_z @ upright @ about_x


@pytest.mark.parametrize(
    "pitch, heading",
    [
        ([0, 0, 0], [0, 90, 200]),
        ([30, 30, 30, 30], [0, 100, 190, 280]),
        ([-90, -90, -90, -90], [0, 80, 150, 300]),
        ([0, 5, -5], [10, 10, 10]),
    ],
    ids=["level", "looking up", "looking down", "one direction"],
)
def test_up_is_square_to_all_cameras_that_are_held_level(pitch, heading):
    world_from_cam = TURN @ level_cameras(pitch, heading)
    assert_close(find_up(world_from_cam), TURN[:, 2], atol=0.02)


def test_a_camera_on_its_side_does_not_turn_the_world():
    world_from_cam = level_cameras([0, 10, -5, 0, 5], [0, 60, 120, 200, 300])
    world_from_cam[1] = world_from_cam[1] @ exp_so3(torch.tensor([0.0, 0.0, torch.pi / 2], dtype=torch.float64))
    assert float(find_up(world_from_cam)[2]) > 0.999


def test_the_turn_to_z_is_a_rotation_that_does_it():
    z = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    for up in (TURN[:, 0], z, -z):
        turn = turn_to_z(up)
        assert_close(turn @ up, z)
        assert_close(turn @ turn.T, torch.eye(3, dtype=torch.float64))
        assert float(torch.linalg.det(turn)) == pytest.approx(1)
