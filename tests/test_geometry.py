"""Laws of transforms, lenses, projection and alignment."""

import math

import cv2
import numpy as np
import pytest
import torch
from helpers import assert_close
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from mbasfm.geometry.camera import (
    distort,
    distort_jacobian,
    epipolar_lines,
    in_front,
    line_distances,
    project,
    solve_2x2,
    triangulated_inverse_depth,
    undistort,
    unproject,
)
from mbasfm.geometry.rigid import (
    adjoint,
    camera_centers,
    compose,
    exp_se3,
    exp_so3,
    invert,
    orthonormalize,
    rotation_angle,
    rotation_from_6d,
    rotation_to_6d,
    skew,
    transform,
)
from mbasfm.geometry.similarity import Pairs, apply_similarity, fit_similarity
from mbasfm.types.cameras import Intrinsics

LENS = (-0.12, 0.02, 0.001, -0.002)
ZERO = torch.tensor(0)


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(seed: int, *shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(normal(seed, *shape), dim=-1)


def poses(seed: int, *shape: int) -> torch.Tensor:
    return exp_se3(2 * normal(seed, *shape, 6))


def vectors(size: int, limit: float) -> st.SearchStrategy:
    return st.lists(st.floats(-limit, limit), min_size=size, max_size=size).map(double)


def camera(distortion=(0.0, 0.0, 0.0, 0.0)) -> Intrinsics:
    """One 640 x 480 camera whose fx and fy differ."""
    return Intrinsics(
        focal=double([[500, 520]]),
        center=double([[320, 240]]),
        distortion=double([distortion]),
        sizes=torch.tensor([[640, 480]]),
        group=torch.tensor([0]),
    )


TWISTS = vectors(6, 3.0)
# Rays up to the corner of a 75 degree image; radial terms for which all of it lies before the lens turns back.
RAYS = st.tuples(st.floats(-0.6, 0.6), st.floats(-0.45, 0.45)).map(double)
LENSES = st.tuples(st.floats(-0.3, 0.3), st.floats(-0.05, 0.1), st.floats(-0.005, 0.005), st.floats(-0.005, 0.005)).map(
    double
)


# Rigid transforms


@given(TWISTS, vectors(3, 10.0))
def test_skew_is_the_cross_product(xi, v):
    assert_close(skew(xi[:3]) @ v, torch.linalg.cross(xi[:3], v))


@given(TWISTS)
def test_inverse_of_inverse_and_composition_with_inverse(xi):
    pose = exp_se3(xi)
    assert_close(invert(invert(pose)), pose)
    assert_close(compose(pose, invert(pose)), torch.eye(3, 4, dtype=torch.float64))
    assert_close(invert(pose), exp_se3(-xi), atol=1e-11)


@given(TWISTS, TWISTS, TWISTS)
def test_composition_is_associative_and_acts_on_points(xi_1, xi_2, xi_3):
    a, b, c = exp_se3(xi_1), exp_se3(xi_2), exp_se3(xi_3)
    assert_close(compose(a, compose(b, c)), compose(compose(a, b), c))
    points = normal(0, 5, 3)
    assert_close(transform(compose(a, b), points), transform(a, transform(b, points)))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_any_batch_shape(shape):
    a, b = poses(0, *shape), poses(1, *shape)
    combined = compose(a, b)
    assert combined.shape == (*shape, 3, 4) and adjoint(a).shape == (*shape, 6, 6)
    assert rotation_angle(a[..., :3]).shape == shape
    for index in np.ndindex(*shape):
        assert_close(combined[index], compose(a[index], b[index]))
        assert_close(invert(a)[index], invert(a[index]))
        assert_close(adjoint(a)[index], adjoint(a[index]))


def test_one_pose_composes_with_many():
    one, many = poses(0), poses(1, 4)
    for index in range(4):
        assert_close(compose(one, many)[index], compose(one, many[index]))
        assert_close(compose(many, one)[index], compose(many[index], one))


def test_exponential_of_zero_is_the_identity_and_its_derivative_the_generators():
    zero = torch.zeros(6, dtype=torch.float64)
    assert torch.equal(exp_se3(zero), torch.eye(3, 4, dtype=torch.float64))
    derivative = jacobian(exp_se3, zero)
    for axis in range(3):
        e = torch.eye(3, dtype=torch.float64)[axis]
        assert_close(derivative[..., axis], torch.cat([skew(e), torch.zeros(3, 1, dtype=torch.float64)], -1))
        assert_close(derivative[..., 3 + axis], torch.cat([torch.zeros(3, 3, dtype=torch.float64), e[:, None]], -1))


@given(TWISTS)
def test_exponential_is_its_series(xi):
    # exp(M) = sum M^n / n!, with M = ([omega]x, tau; 0, 0). |M| < 11, so that 80 terms are far more than enough.
    twist = torch.zeros(4, 4, dtype=torch.float64)
    twist[:3, :3], twist[:3, 3] = skew(xi[:3]), xi[3:]
    term, total = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    for n in range(1, 80):
        term = term @ twist / n
        total = total + term
    assert_close(exp_se3(xi), total[:3], atol=1e-10)
    assert_close(exp_so3(xi[:3]), total[:3, :3], atol=1e-10)


def test_quarter_turn_about_z():
    turn = exp_so3(double([0, 0, math.pi / 2]))
    assert_close(turn @ double([1, 0, 0]), double([0, 1, 0]))
    # A screw: the point on the axis goes straight on, by tau.
    screw = exp_se3(double([0, 0, math.pi / 2, 0, 0, 3]))
    assert_close(transform(screw, double([[0, 0, 1], [1, 0, 0]])), double([[0, 0, 4], [0, 1, 3]]))


@given(TWISTS, TWISTS)
def test_adjoint_moves_a_twist_through_a_pose(xi_pose, xi):
    pose = exp_se3(xi_pose)
    assert_close(compose(pose, exp_se3(xi)), compose(exp_se3(adjoint(pose) @ xi), pose), atol=1e-9)


@given(TWISTS, TWISTS)
def test_adjoint_is_a_homomorphism(xi_1, xi_2):
    a, b = exp_se3(xi_1), exp_se3(xi_2)
    assert_close(adjoint(compose(a, b)), adjoint(a) @ adjoint(b), atol=1e-10)


def test_camera_centers_are_at_the_origin_of_their_cameras():
    cam_from_world = poses(0, 7)
    at_camera = transform(cam_from_world, camera_centers(cam_from_world)[:, None])
    assert_close(at_camera, torch.zeros_like(at_camera))


# Rotations


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-8, 1e-4, 1.0, math.pi / 2, 3.0, math.pi - 1e-4, math.pi - 1e-8])
def test_rotation_angle_is_exact_also_near_zero_and_pi(angle):
    # The arc cosine of the trace is off by 1e-8 at both ends: cos is flat there.
    axis = unit(0, 20, 3)
    measured = rotation_angle(exp_so3(angle * axis))
    assert_close(measured, torch.full_like(measured, angle), atol=1e-15 if angle < 1e-6 else 1e-14, rtol=1e-7)


@given(vectors(3, 3.0), vectors(3, 3.0))
def test_rotation_angle_is_a_metric(omega_1, omega_2):
    a, b = exp_so3(omega_1), exp_so3(omega_2)
    apart = rotation_angle(a @ b.mT)
    assert_close(apart, rotation_angle(b @ a.mT), atol=1e-7)
    assert apart <= rotation_angle(a) + rotation_angle(b) + 1e-7
    if omega_1.norm() < math.pi:
        assert_close(rotation_angle(a), omega_1.norm(), atol=1e-12, rtol=1e-7)


@given(vectors(6, 2.0))
def test_six_numbers_give_a_rotation(columns):
    assume(torch.linalg.cross(columns[:3], columns[3:]).norm() > 1e-3)
    rotation = rotation_from_6d(columns)
    assert_close(rotation.mT @ rotation, torch.eye(3, dtype=torch.float64))
    assert_close(torch.linalg.det(rotation), double(1))
    assert_close(rotation[:, 0] * columns[:3].norm(), columns[:3])
    assert (rotation[:, 1] * columns[3:]).sum() > 0


def test_six_numbers_round_trip():
    rotation = poses(0, 50)[..., :3]
    assert_close(rotation_from_6d(rotation_to_6d(rotation)), rotation)


def test_orthonormalize_keeps_rotations():
    rotation = poses(0, 50)[..., :3]
    assert_close(orthonormalize(rotation), rotation)


def test_orthonormalize_gives_the_nearest_rotation():
    matrix = poses(0, 30)[..., :3] + 0.3 * normal(1, 30, 3, 3)
    matrix = torch.cat([matrix, -matrix])  # half of them far from any rotation
    nearest = orthonormalize(matrix)
    assert_close(nearest.mT @ nearest, torch.eye(3, dtype=torch.float64).expand(60, 3, 3))
    assert_close(torch.linalg.det(nearest), torch.ones(60, dtype=torch.float64))
    best = (matrix - nearest).square().sum((-2, -1))
    for size in (1e-3, 0.1, 2.0):
        turn = exp_so3(size * unit(2, 40, 1, 3))
        assert ((matrix - turn @ nearest).square().sum((-2, -1)) >= best - 1e-12).all()


# Lens


def test_lens_by_hand():
    # At (0.5, 0): r^2 = 1/4, so x' = 0.5 (1 + k1/4 + k2/16) + p2 (1/4 + 2/4), and y' = p1/4.
    assert_close(distort(double([0.5, 0]), double([0.4, 0.8, 0.08, 0.04])), double([0.5 * 1.15 + 0.03, 0.02]))


@given(RAYS, LENSES)
def test_undistort_inverts_distort(rays, lens):
    assert_close(undistort(distort(rays, lens), lens), rays)
    assert_close(distort(undistort(rays / 2, lens), lens), rays / 2)


def test_undistort_in_single_precision():
    rays = (normal(0, 1000, 2) * 0.2).clamp(-0.5, 0.5).float()
    lens = torch.tensor(LENS)
    back = undistort(distort(rays, lens), lens)
    assert back.dtype == torch.float32
    torch.testing.assert_close(back, rays, atol=1e-6, rtol=0)


@given(RAYS, LENSES)
def test_lens_derivative_by_differentiation_and_differences(rays, lens):
    derivative = distort_jacobian(rays, lens)
    assert_close(derivative, jacobian(lambda r: distort(r, lens), rays))
    step = 1e-6
    columns = [(distort(rays + e, lens) - distort(rays - e, lens)) / (2 * step) for e in step * torch.eye(2).double()]
    assert_close(derivative, torch.stack(columns, -1), atol=1e-9)


def test_solve_2x2_solves():
    matrix, x = normal(0, 50, 2, 2), normal(1, 50, 2)
    assert_close(solve_2x2(matrix, (matrix @ x[..., None])[..., 0]), x, atol=1e-9)


@given(RAYS, LENSES)
def test_undistort_is_differentiable_by_the_implicit_function_theorem(rays, lens):
    # distort(x, k) = d, hence dx/dd = J^-1 and dx/dk = -J^-1 ddistort/dk.
    distorted = distort(rays, lens)
    by_input, by_lens = jacobian(undistort, (distorted, lens))
    inverse = torch.linalg.inv(jacobian(lambda r: distort(r, lens), rays))
    assert_close(by_input, inverse, atol=1e-9)
    assert_close(by_lens, -inverse @ jacobian(lambda k: distort(rays, k), lens), atol=1e-9)


def test_undistort_gradient_by_differences():
    distorted, lens = (0.3 * normal(0, 10, 2)).clamp(-0.5, 0.5).requires_grad_(), double(LENS).requires_grad_()
    assert torch.autograd.gradcheck(undistort, (distorted, lens))


@pytest.mark.parametrize("k1, k2", [(-0.3, 0.0), (-0.1, 0.0), (-0.05, -0.01), (-0.3, 0.02)])
def test_undistort_ends_where_the_lens_turns_back(k1, k2):
    # r + k1 r^3 + k2 r^5 turns where 1 + 3 k1 r^2 + 5 k2 r^4 = 0. Larger distorted radii have no inverse; roots of the
    # polynomial that lie beyond the turn, or at a negative radius (opposite in the image), are none.
    roots = np.roots([5 * k2, 3 * k1, 1]) if k2 else np.array([-1 / (3 * k1)])
    turn = math.sqrt(min(float(root) for root in roots if root > 0))
    limit = turn + k1 * turn**3 + k2 * turn**5
    radius = torch.linspace(0, 4 * limit, 2001, dtype=torch.float64)
    radius = radius[(radius - limit).abs() > 0.01 * limit]
    direction = double([math.cos(0.4), math.sin(0.4)])
    found = undistort(radius[:, None] * direction, double([k1, k2, 0, 0]))
    inside = radius < limit
    assert found[inside].isfinite().all()
    assert (found[inside] @ direction <= turn).all() and (found[inside] @ direction >= 0).all()
    assert found[~inside].isnan().all()


def test_pixels_without_inverse_do_not_spoil_the_gradient_of_the_others():
    # 1 + 3 k1 + 5 k2 = 0: the lens' slope is zero at radius 1, where the search for the second pixel starts.
    lens = double([-0.3, -0.02, 0, 0]).requires_grad_()
    alone = double([[0.1, 0.2]]).requires_grad_()
    both = double([[0.1, 0.2], [1.0, 0.0]]).requires_grad_()
    expected = torch.autograd.grad(undistort(alone, lens).sum(), (alone, lens))
    result = undistort(both, lens)
    assert result[1].isnan().all()
    by_input, by_lens = torch.autograd.grad(result[0].sum(), (both, lens))
    assert_close(by_input[:1], expected[0])
    assert_close(by_lens, expected[1])


# Projection


def test_optical_axis_meets_the_middle_of_the_image():
    sizes = torch.tensor([[640, 480]])
    intrinsics = Intrinsics.pinhole(double([500.0]), sizes, torch.tensor([0]))
    assert_close(project(double([[0, 0, 1], [0, 0, 7]]), intrinsics, ZERO), double([[320, 240], [320, 240]]))
    # x to the right, y down: (1, 2, 4) is 500 / 4 to the right of the middle and twice as much below it.
    assert_close(project(double([1, 2, 4]), intrinsics, ZERO), double([445, 490]))


@given(RAYS, LENSES, st.floats(0.1, 100.0))
def test_project_inverts_unproject(rays, lens, depth):
    intrinsics = camera(tuple(lens.tolist()))
    point = torch.cat([rays, double([1])]) * depth
    pixel = project(point, intrinsics, ZERO)
    assert_close(unproject(pixel, double(depth), intrinsics, ZERO), point)
    assert_close(project(unproject(pixel, double(3.0), intrinsics, ZERO), intrinsics, ZERO), pixel, atol=1e-9)


def test_depth_is_along_the_axis_and_not_along_the_ray():
    point = unproject(double([0, 0]), double(2.0), camera(LENS), ZERO)
    assert point[2] == 2 and point.norm() > 2.2


def test_points_behind_the_camera_have_no_pixel():
    points = double([[0.1, 0.2, -1], [0.1, 0.2, 0], [0, 0, -1e-9], [0.1, 0.2, 1]])
    pixels = project(points, camera(LENS), ZERO)
    assert pixels[:3].isnan().all() and pixels[3].isfinite().all()


def test_frames_use_their_own_intrinsics():
    intrinsics = Intrinsics(
        focal=double([[500, 500], [300, 400]]),
        center=double([[320, 240], [100, 50]]),
        distortion=double([LENS, [0.1, 0, 0, 0]]),
        sizes=torch.tensor([[640, 480], [200, 100]]),
        group=torch.tensor([0, 1]),
    )
    points = normal(0, 3, 5, 3) * 0.2 + double([0, 0, 1])
    frame = torch.tensor([1, 0, 1])
    pixels = project(points, intrinsics, frame[:, None])
    for row, number in enumerate(frame):
        assert_close(pixels[row], project(points[row], intrinsics, number))
    assert_close(unproject(pixels, points[..., 2], intrinsics, frame[:, None]), points)


def points_in_view(count: int) -> torch.Tensor:
    depth = 1 + 5 * torch.rand(count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rays = (0.25 * normal(4, count, 2)).clamp(-0.6, 0.6)
    return torch.cat([rays, torch.ones(count, 1).double()], -1) * depth[:, None]


def test_lens_is_that_of_opencv():
    points, intrinsics = points_in_view(50), camera(LENS)
    matrix = np.array([[500, 0, 320], [0, 520, 240], [0, 0, 1.0]])
    expected, _ = cv2.projectPoints(points.numpy(), np.zeros(3), np.zeros(3), matrix, np.array(LENS))
    assert_close(project(points, intrinsics, ZERO), torch.from_numpy(expected[:, 0]), atol=1e-9)


def test_camera_is_that_of_colmap():
    pycolmap = pytest.importorskip("pycolmap")
    points, intrinsics = points_in_view(50), camera(LENS)
    colmap = pycolmap.Camera(model="OPENCV", width=640, height=480, params=[500, 520, 320, 240, *LENS])
    expected = torch.from_numpy(np.asarray(colmap.img_from_cam(points.numpy())))
    assert_close(project(points, intrinsics, ZERO), expected, atol=1e-9)


# Matched rays of two frames


def seen_in_two_frames(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Relative poses, points in front of both frames, and their rays with z = 1 in each."""
    j_from_i = exp_se3(torch.cat([0.2 * normal(0, 8, 3), 0.5 * normal(1, 8, 3)], -1))
    points = points_in_view(count).expand(8, -1, -1) + double([0, 0, 3])
    there = transform(j_from_i, points)
    assert (there[..., 2] > 0.1).all()
    return j_from_i, points, points / points[..., 2:], there / there[..., 2:]


def test_true_matches_lie_on_their_lines_in_front_and_triangulate_to_their_depth():
    j_from_i, points, rays_i, rays_j = seen_in_two_frames(40)
    assert_close(line_distances(j_from_i, rays_i, rays_j), torch.zeros(8, 40).double(), atol=1e-12)
    assert_close(triangulated_inverse_depth(j_from_i, rays_i, rays_j), 1 / points[..., 2], atol=1e-9)
    assert in_front(j_from_i, rays_i, rays_j).all()


def test_a_pose_for_every_match_is_a_row_of_one_ray_each():
    j_from_i, _, rays_i, rays_j = seen_in_two_frames(8)
    rays_i, rays_j = (
        torch.einsum("mmk->mk", rays) + 0.01 * normal(5, 8, 3) * double([1, 1, 0]) for rays in (rays_i, rays_j)
    )
    for measure in (line_distances, triangulated_inverse_depth):
        together = measure(j_from_i, rays_i[:, None], rays_j[:, None])[:, 0]
        alone = [measure(pose, a[None], b[None])[0] for pose, a, b in zip(j_from_i, rays_i, rays_j, strict=True)]
        assert_close(together, torch.stack(alone))


def test_a_match_is_as_far_from_its_line_as_it_was_moved_across_it():
    j_from_i, points, rays_i, rays_j = seen_in_two_frames(40)
    line = epipolar_lines(j_from_i, rays_i)
    across, along = line[..., :2], torch.stack([-line[..., 1], line[..., 0]], -1)
    shift = 0.02 * normal(6, 8, 40)[..., None]
    moved = rays_j.clone()
    moved[..., :2] += shift * across
    assert_close(line_distances(j_from_i, rays_i, moved), shift.abs().squeeze(-1), atol=1e-12)
    # The foot is where it was: depth changes to second order only, along the line to first order.
    change = triangulated_inverse_depth(j_from_i, rays_i, moved) * points[..., 2] - 1
    slid = rays_j.clone()
    slid[..., :2] += shift * along
    assert_close(line_distances(j_from_i, rays_i, slid), torch.zeros(8, 40).double(), atol=1e-12)
    slide = triangulated_inverse_depth(j_from_i, rays_i, slid) * points[..., 2] - 1
    assert change.abs().median() < 0.1 * slide.abs().median()


def test_points_behind_a_camera_are_not_in_front():
    j_from_i, points, rays_i, rays_j = seen_in_two_frames(40)
    backwards = torch.cat([j_from_i[..., :3], -j_from_i[..., 3:]], -1)
    assert not in_front(backwards, rays_i, rays_j).any(), "with the translation reversed, rays meet behind both"
    assert (triangulated_inverse_depth(backwards, rays_i, rays_j) < 0).all()


# Alignment


@given(TWISTS, st.floats(0.01, 100.0), st.integers(3, 10))
def test_alignment_recovers_a_similarity(xi, scale, count):
    pose, source = exp_se3(xi), normal(count, count, 3)
    found_scale, found = fit_similarity(Pairs(source, scale * source @ pose[:, :3].T + pose[:, 3]))
    assert_close(found_scale, double(scale), atol=0, rtol=1e-9)
    assert_close(found, pose, atol=1e-8 * max(scale, 1))


def test_alignment_of_many_triples_at_once_recovers_each_similarity():
    source, rigid = normal(0, 50, 3, 3), poses(1, 50)
    scale = normal(2, 50).exp()
    target = scale[:, None, None] * source @ rigid[..., :3].mT + rigid[:, None, :, 3]
    for symmetric in (False, True):
        found_scale, found = fit_similarity(Pairs(source, target), symmetric=symmetric)
        assert_close(found_scale, scale, atol=0, rtol=1e-9)
        assert_close(found, rigid, atol=1e-8)


def test_the_symmetric_alignment_is_the_inverse_of_the_way_back():
    """Least squares shrinks in both directions where positions have errors; the symmetric scale in neither."""
    source, target = normal(0, 40, 10, 3), normal(1, 40, 10, 3)
    there, back = (Pairs(*both) for both in ((source, target), (target, source)))
    scale, rigid = fit_similarity(there, symmetric=True)
    scale_back, rigid_back = fit_similarity(back, symmetric=True)
    assert_close(scale * scale_back, torch.ones(40, dtype=torch.float64), atol=1e-12)
    assert_close(rigid_back[..., :3], rigid[..., :3].mT, atol=1e-9)
    assert (fit_similarity(there)[0] * fit_similarity(back)[0] < 0.99).all()


def squared_distance(source, target, scale, pose) -> torch.Tensor:
    return (target - (scale * source @ pose[..., :3].mT + pose[..., None, :, 3])).square().sum((-2, -1))


def test_alignment_of_a_mirror_image_is_a_rotation():
    source = normal(0, 20, 3)
    mirrored = source * double([1, 1, -1])
    scale, pose = fit_similarity(Pairs(source, mirrored))
    assert_close(torch.linalg.det(pose[:, :3]), double(1))
    assert 0 < scale < 1, "a mirror image cannot be met; the best fit shrinks"
    everywhere = exp_so3(2 * normal(1, 500, 3))
    no_shift = mirrored.mean(0) - (scale * everywhere @ source.mean(0))
    rivals = torch.cat([everywhere, no_shift[..., None]], -1)
    assert (squared_distance(source, mirrored, scale, rivals) >= squared_distance(source, mirrored, scale, pose)).all()


def test_alignment_minimises_the_distance():
    source, target = normal(0, 15, 3), 2 * normal(1, 15, 3) + double([5, 0, -3])
    target = target + source @ poses(2)[:, :3].T
    scale, pose = fit_similarity(Pairs(source, target))
    best = squared_distance(source, target, scale, pose)
    for size in (1e-4, 1e-2, 0.3):
        for step in size * normal(3, 50, 7):
            rival = torch.cat([exp_so3(step[:3]) @ pose[:, :3], (pose[:, 3] + step[3:6])[:, None]], -1)
            assert squared_distance(source, target, scale * step[6].exp(), rival) > best


def test_similarity_of_the_world_changes_no_image():
    intrinsics, cam_from_world = camera(LENS), poses(0, 4)
    scale, new_from_old = double(2.5), poses(1)
    points = transform(invert(cam_from_world), points_in_view(40).reshape(4, 10, 3))
    moved = scale * points @ new_from_old[:, :3].T + new_from_old[:, 3]
    new_poses = apply_similarity(cam_from_world, scale, new_from_old)
    before = project(transform(cam_from_world, points), intrinsics, ZERO)
    after = project(transform(new_poses, moved), intrinsics, ZERO)
    assert before.isfinite().all()
    assert_close(after, before, atol=1e-9)
    assert_close(new_poses[..., :3].mT @ new_poses[..., :3], torch.eye(3, dtype=torch.float64).expand(4, 3, 3))


def test_alignment_of_centers_undoes_a_similarity_of_the_world():
    cam_from_world = poses(0, 6)
    moved = apply_similarity(cam_from_world, double(0.3), poses(1))
    scale, old_from_new = fit_similarity(Pairs(camera_centers(moved), camera_centers(cam_from_world)))
    assert_close(apply_similarity(moved, scale, old_from_new), cam_from_world, atol=1e-10)
