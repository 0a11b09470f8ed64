"""Laws and closed forms of the made-up scenes."""

import math
from dataclasses import replace

import cv2
import pytest
import torch
from helpers import EXACT_DEPTH, EXACT_MATCH
from margins import assert_below

from mbasfm.errors import ConfigError, InputError
from mbasfm.geometry.camera import project, unproject
from mbasfm.geometry.rigid import camera_centers, exp_so3, invert, rotation_angle, transform
from mbasfm.synthetic import cameras as cameras_module
from mbasfm.synthetic import depth_errors
from mbasfm.synthetic import problem as problem_module
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import MatchError, Settings
from mbasfm.synthetic.solids import MISS, RAYS_PER_CHUNK, Scene, cast, clearance, hash_unit, make_scene
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import PoseGraph

KINDS = ("room", "place", "object")
LENS = (-0.08, 0.01, 0.001, -0.002)


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def bare_scene(boxes=(), spheres=(), hollow=None, ground=False) -> Scene:
    """Boxes are (center, half size, yaw), spheres (center, radius)."""
    boxes = [*boxes, *([hollow] if hollow else [])]
    poses = [torch.cat([exp_so3(double([0, 0, yaw])), double(center)[:, None]], -1) for center, _, yaw in boxes]
    return Scene(
        kind="room",
        world_from_box=torch.stack(poses) if boxes else torch.zeros(0, 3, 4, dtype=torch.float64),
        half_size=double([half for _, half, _ in boxes]).reshape(-1, 3),
        is_hollow=(False,) * (len(boxes) - bool(hollow)) + (True,) * bool(hollow),
        sphere_center=double([center for center, _ in spheres]).reshape(-1, 3),
        sphere_radius=double([radius for _, radius in spheres]),
        has_ground=ground,
        tile_size=1.0,
        seed=0,
    )


def cameras_at(cam_from_world: torch.Tensor) -> Cameras:
    cameras = cameras_module.make_cameras(make_scene("room", 0), len(cam_from_world), 0)
    return replace(cameras, cam_from_world=cam_from_world)


def residuals(cameras: Cameras, samples) -> torch.Tensor:
    """Distance in pixels between each sample's match and its reprojection, in float64."""
    i, j = samples.edges.unbind(-1)
    raw = samples.data[..., 4].double()
    corrected = cameras.depth_scale[i, None] * raw + cameras.depth_shift[i, None]
    depth = torch.where(cameras.is_disparity[i, None], 1 / corrected, corrected)
    points_i = unproject(samples.data[..., :2].double(), depth, cameras.intrinsics, i[:, None])
    points_world = transform(invert(cameras.cam_from_world[i]), points_i)
    pixels = project(transform(cameras.cam_from_world[j], points_world), cameras.intrinsics, j[:, None])
    return (pixels - samples.data[..., 2:4]).norm(dim=-1)


def small_problem(seed=0, num_frames=6, **changes) -> problem_module.Problem:
    return problem_module.make_problem(num_frames, seed, Settings(**{"samples_per_edge": 60, **changes}))


# Rays


def test_box_from_outside():
    scene = bare_scene(boxes=[((5, 0, 0), (1, 2, 3), 0.0)])
    directions = double([[1, 0, 0], [2, 0, 0], [0, 1, 0], [-1, 0, 0], [1, 0.6, 0]])
    hits = cast(scene, double([0, 0, 0]), directions)
    torch.testing.assert_close(hits.ray_parameter, double([4, 2, math.inf, math.inf, math.inf]))
    assert hits.primitive.tolist() == [0, 0, MISS, MISS, MISS]
    torch.testing.assert_close(hits.normal[0], double([-1, 0, 0]))


def test_box_side_is_met_at_its_own_coordinates():
    # The ray y = 3 - t, x = 5 + 0.25 t meets the side y = 2 at t = 1, a quarter off the middle.
    scene = bare_scene(boxes=[((5, 0, 0), (1, 2, 3), 0.0)])
    hits = cast(scene, double([[5, 3, 0.5]]), double([[0.25, -1, 0]]))
    torch.testing.assert_close(hits.ray_parameter, double([1]))
    assert hits.face.tolist() == [3]
    torch.testing.assert_close(hits.surface, double([[0.5, 0.25]]))  # (z, x) of the box
    torch.testing.assert_close(hits.normal, double([[0, 1, 0]]))


def test_rotated_box():
    # Turned by 45 degrees, a cube of half size 1 shows its edge, at sqrt(2) before its middle.
    scene = bare_scene(boxes=[((5, 0, 0), (1, 1, 1), math.pi / 4)])
    hits = cast(scene, double([0, 1e-9, 0]), double([[1, 0, 0]]))
    torch.testing.assert_close(hits.ray_parameter, double([5 - math.sqrt(2)]), atol=1e-7, rtol=0)
    torch.testing.assert_close(hits.normal, double([[-1, 1, 0]]) / math.sqrt(2))


def test_room_from_inside():
    scene = bare_scene(hollow=((0, 0, 0), (4, 4, 2), 0.0))
    hits = cast(scene, double([1, 0, 0]), double([[1, 0, 0], [-1, 0, 0], [0, 0, 0.5], [1, 1, 0]]))
    torch.testing.assert_close(hits.ray_parameter, double([3, 5, 4, 3]))
    torch.testing.assert_close(hits.normal[:3], double([[-1, 0, 0], [1, 0, 0], [0, 0, -1]]))


def test_sphere():
    scene = bare_scene(spheres=[((0, 0, 10), 2)])
    hits = cast(scene, double([[0, 0, 0], [1, 0, 0], [2.01, 0, 0]]), double([0, 0, 1]))
    torch.testing.assert_close(hits.ray_parameter, double([8, 10 - math.sqrt(3), math.inf]))
    torch.testing.assert_close(hits.normal[:2], double([[0, 0, -1], [0.5, 0, -math.sqrt(3) / 2]]))
    assert hits.primitive.tolist() == [0, 0, MISS]


def test_ground_and_what_stands_on_it():
    scene = bare_scene(boxes=[((3, 0, 1), (1, 1, 1), 0.0)], spheres=[((9, 0, 1), 1)], ground=True)
    directions = double([[0, 0, -1], [1, 0, 0], [1, 0, -0.5], [-1, 0, -0.1], [0, 1, 0], [0, 1, 1]])
    hits = cast(scene, double([0, 0, 1]), directions)
    torch.testing.assert_close(hits.ray_parameter, double([1, 2, 2, 10, math.inf, math.inf]))
    assert hits.primitive.tolist()[:2] == [2, 0] and hits.primitive.tolist()[3:] == [2, MISS, MISS]
    torch.testing.assert_close(hits.normal[0], double([0, 0, 1]))
    torch.testing.assert_close(hits.surface[3], double([-10, 0]))


def test_chunks_do_not_matter():
    scene = make_scene("place", 1)
    directions = torch.randn(RAYS_PER_CHUNK + 7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    origins = double([30, 0, 4]).expand_as(directions)
    whole = cast(scene, origins, directions)
    for part in (slice(0, 5), slice(-9, None)):
        one = cast(scene, origins[part], directions[part])
        assert torch.equal(one.ray_parameter, whole.ray_parameter[part])
        assert torch.equal(one.surface, whole.surface[part])


@pytest.mark.parametrize("kind", KINDS)
def test_rays_of_one_camera_meet_the_same_as_rays_of_many(kind):
    scene = make_scene(kind, 3)
    cameras = cameras_module.make_cameras(scene, 4, 3)
    generator = torch.Generator().manual_seed(0)
    for pose in cameras.cam_from_world:
        for spread in (0.05, 0.4, 3.0):
            rays = double([0, 0, 1]) + spread * torch.randn(1, 3, generator=generator).double()
            directions = (rays + spread * torch.randn(400, 3, generator=generator).double()) @ pose[:, :3]
            center = camera_centers(pose)
            shared, single = cast(scene, center, directions), cast(scene, center.expand(400, 3), directions)
            torch.testing.assert_close(shared.ray_parameter, single.ray_parameter)
            assert torch.equal(shared.primitive, single.primitive)


@pytest.mark.parametrize("kind", KINDS)
def test_hits_lie_on_surfaces(kind):
    scene = make_scene(kind, 2)
    cameras = cameras_module.make_cameras(scene, 3, 2)
    directions = torch.randn(3, 500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    centers = camera_centers(cameras.cam_from_world)[:, None]
    hits = cast(scene, centers, directions)
    is_hit = hits.primitive != MISS
    points = (centers + directions * hits.ray_parameter[..., None])[is_hit]
    distance = (hits.ray_parameter[..., None] * directions).norm(dim=-1)[is_hit]
    assert is_hit.double().mean() > 0.3
    assert_below(clearance(scene, points) / (1 + distance), 1e-9)
    assert ((hits.normal * directions).sum(-1)[is_hit] < 0).all(), "a visible surface faces the ray"


# Cameras


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_cameras_stand_free_and_see_what_their_neighbours_see(kind, seed):
    scene = make_scene(kind, seed)
    cameras = cameras_module.make_cameras(scene, 40, seed)
    assert (clearance(scene, camera_centers(cameras.cam_from_world)) > 0.2).all()
    share = problem_module.covisibility(scene, cameras)
    assert share.diagonal(1).min() > 0.2
    assert share.diagonal(1).median() > 0.4
    forward = cameras.cam_from_world[:, 2, :3]
    assert (forward @ forward.T).min() < -0.5, "together they look all around"
    assert len(cameras.intrinsics.group.unique()) == 1


def test_perturb_moves_by_the_exact_amounts():
    truth = small_problem(depth_error=DepthError()).truth
    start = cameras_module.perturb(truth, 3, rotation_deg=10.0, translation=0.5, focal_factor=1.1)
    turn = start.cam_from_world[:, :, :3] @ truth.cam_from_world[:, :, :3].mT
    step = (camera_centers(start.cam_from_world) - camera_centers(truth.cam_from_world)).norm(dim=-1)
    assert torch.equal(start.cam_from_world[0], truth.cam_from_world[0])
    torch.testing.assert_close(rotation_angle(turn)[1:], double([math.radians(10)] * 5))
    torch.testing.assert_close(step[1:], double([0.5] * 5))
    torch.testing.assert_close(start.intrinsics.focal, 1.1 * truth.intrinsics.focal)
    assert (start.depth_scale == 1).all() and (start.depth_shift == 0).all()
    assert not torch.equal(truth.depth_scale, start.depth_scale)


def test_scene_size_is_that_of_the_scene():
    sizes = {}
    for kind in KINDS:
        scene = make_scene(kind, 0)
        sizes[kind] = cameras_module.scene_size(scene, cameras_module.make_cameras(scene, 20, 0))
    assert 4 < sizes["room"] < 10 and 15 < sizes["place"] < 60 and 1.5 < sizes["object"] < 6


# Images


def test_depth_maps_of_two_frames_agree():
    scene = make_scene("room", 0)
    cameras = cameras_module.make_cameras(scene, 2, 0, size=(160, 120), distortion=LENS)
    (image, depth_0), (_, depth_1) = cameras_module.render(scene, cameras, 0), cameras_module.render(scene, cameras, 1)
    assert image.shape == (120, 160, 3) and depth_0.shape == (120, 160)
    pixels = cameras_module.pixel_centers(cameras.intrinsics, 0)
    assert pixels[3, 7].tolist() == [7.5, 3.5]
    zero, one = torch.tensor(0), torch.tensor(1)
    points = unproject(pixels, depth_0.double(), cameras.intrinsics, zero).reshape(-1, 3)
    points = transform(cameras.cam_from_world[1], transform(invert(cameras.cam_from_world[0]), points))
    landed = project(points, cameras.intrinsics, one)
    is_inside = ((landed > 0) & (landed < double([160, 120]))).all(-1)
    column, row = landed[is_inside].long().unbind(-1)
    relative = points[is_inside, 2] / depth_1[row, column] - 1
    # Half a pixel of rounding and hidden points remain: most agree to a percent or two, and none lies in front.
    assert is_inside.double().mean() > 0.4
    assert (relative.abs() < 0.03).double().mean() > 0.85
    assert relative.median().abs() < 0.003


def test_sky_is_infinitely_far():
    scene = make_scene("place", 0)
    cameras = cameras_module.make_cameras(scene, 2, 0, size=(64, 48))
    _, depth = cameras_module.render(scene, cameras, 0)
    error = DepthError(edge_blur_px=0.0)
    is_sky = depth.isinf()
    assert 0.02 < is_sky.double().mean() < 0.8
    raw = depth_errors.draw_depth_affine(scene, cameras, error, 0)
    assert torch.equal(depth_errors.observe_depth_map(scene, raw, 0, error, 0).isinf(), is_sky)
    raw = depth_errors.draw_depth_affine(scene, cameras, error, 0, disparity=True)
    disparity = depth_errors.observe_depth_map(scene, raw, 0, error, 0)
    corrected = raw.depth_scale[0] * disparity[is_sky] + raw.depth_shift[0]
    assert_below(corrected, 1e-6)
    assert disparity.isfinite().all()


def sift(image: torch.Tensor):
    keypoints, descriptors = cv2.SIFT_create().detectAndCompute(image.numpy(), None)
    return double([point.pt for point in keypoints]) + 0.5, descriptors  # OpenCV's first pixel centre is (0, 0)


@pytest.mark.parametrize("kind", ["room", "place"])
def test_sift_matches_agree_with_the_truth(kind):
    scene = make_scene(kind, 0)
    cameras = cameras_module.make_cameras(scene, 3, 0)
    (pixels_i, descriptors_i), (pixels_j, descriptors_j) = (
        sift(cameras_module.render(scene, cameras, frame)[0]) for frame in (1, 2)
    )
    assert len(pixels_i) >= 300
    forward = cv2.BFMatcher().knnMatch(descriptors_i, descriptors_j, k=2)
    back = {m.queryIdx: m.trainIdx for (m,) in cv2.BFMatcher().knnMatch(descriptors_j, descriptors_i, k=1)}
    pairs = [
        (m.queryIdx, m.trainIdx)
        for m, other in forward
        if m.distance < 0.75 * other.distance and back[m.trainIdx] == m.queryIdx
    ]
    index_i, index_j = torch.tensor(pairs).unbind(-1)
    frame = torch.tensor([1])
    depth = depth_errors.observe_depth(scene, cameras, frame, pixels_i[None, index_i], EXACT_DEPTH, 0)[0]
    points = unproject(pixels_i[index_i], depth, cameras.intrinsics, frame)
    points = transform(cameras.cam_from_world[2], transform(invert(cameras.cam_from_world[1]), points))
    distance = (project(points, cameras.intrinsics, torch.tensor(2)) - pixels_j[index_j]).norm(dim=-1)
    assert len(pairs) > 100
    assert (distance < 2).double().mean() > 0.8
    assert distance[distance < 2].median() < 0.35


# Depth


def observed_ratio(error: DepthError, kind="room", size=(160, 120), num_frames=3) -> torch.Tensor:
    """Logarithm of observed (corrected) by true depth at all pixels of some frames."""
    scene = make_scene(kind, 0)
    cameras = cameras_module.make_cameras(scene, num_frames, 0, size=size)
    cameras = depth_errors.draw_depth_affine(scene, cameras, error, 0)
    frame = torch.arange(num_frames)
    pixels = torch.stack([cameras_module.pixel_centers(cameras.intrinsics, int(f)).reshape(-1, 2) for f in frame])
    plain = replace(cameras, depth_scale=torch.ones(num_frames).double(), depth_shift=torch.zeros(num_frames).double())
    true = depth_errors.observe_depth(scene, plain, frame, pixels, EXACT_DEPTH, 0)
    raw = depth_errors.observe_depth(scene, cameras, frame, pixels, error, 0)
    assert (raw > 0).all()
    return ((cameras.depth_scale[:, None] * raw + cameras.depth_shift[:, None]) / true).log()


def test_truth_undoes_the_affine_error():
    error = replace(EXACT_DEPTH, scale=0.5, shift=0.3)
    assert_below(observed_ratio(error), 1e-12)


@pytest.mark.parametrize("disparity", [False, True])
def test_affine_error_has_the_asked_size(disparity):
    scene = make_scene("room", 0)
    exact = cameras_module.make_cameras(scene, 300, 0)
    pixels = cameras_module.pixel_centers(exact.intrinsics, 0)[::20, ::20].reshape(1, -1, 2).expand(300, -1, -1)
    median = depth_errors.observe_depth(scene, exact, torch.arange(300), pixels, EXACT_DEPTH, 0).median(-1).values
    cameras = depth_errors.draw_depth_affine(scene, exact, DepthError(scale=0.2, shift=0.02), 5, disparity)
    relative = cameras.depth_shift * median if disparity else cameras.depth_shift / median
    assert cameras.depth_scale.log().std() == pytest.approx(0.2, rel=0.15)
    assert relative.std() == pytest.approx(0.02, rel=0.15)


def test_smooth_error_has_the_asked_size_and_is_smooth():
    ratio = observed_ratio(replace(EXACT_DEPTH, smooth=0.05))
    torch.testing.assert_close(ratio.std(-1), double([0.05] * 3), rtol=0.01, atol=0)
    assert ratio.mean(-1).abs().max() < 1e-4
    step = ratio.reshape(3, 120, 160).diff(dim=-1).abs().max()
    assert step < 0.05 * 0.2
    assert (ratio[0] - ratio[1]).std() > 0.03, "each frame errs in its own way"


def test_gross_errors_cover_the_asked_share():
    ratio = observed_ratio(replace(EXACT_DEPTH, outliers=0.2), num_frames=40, size=(64, 48))
    is_gross = ratio.abs() > 0.1
    assert is_gross.double().mean() == pytest.approx(0.2, abs=0.03)
    assert ratio[is_gross].abs().min() > math.log(1.59)
    # Coherent: a neighbour of a gross pixel is gross too, mostly.
    is_gross = is_gross.reshape(-1, 48, 64)
    assert (is_gross[..., 1:] & is_gross[..., :-1]).sum() > 0.85 * is_gross.sum()


def test_noise_has_the_asked_size_and_is_white():
    ratio = observed_ratio(replace(EXACT_DEPTH, noise=0.03))[0].reshape(120, 160)
    assert ratio.std() == pytest.approx(0.03, rel=0.03)
    assert (ratio[:, 1:] * ratio[:, :-1]).mean().abs() < 0.05 * 0.03**2
    assert (ratio[1:] * ratio[:-1]).mean().abs() < 0.05 * 0.03**2


def test_blur_softens_edges_and_leaves_planes_alone():
    ratio = observed_ratio(replace(EXACT_DEPTH, edge_blur_px=1.5)).abs()
    assert (ratio < 1e-3).double().mean() > 0.8
    assert 0.005 < (ratio > 0.05).double().mean() < 0.15


def test_hash_is_uniform():
    values = hash_unit(3, torch.arange(200)[:, None], torch.arange(100))
    assert 0 <= values.min() and values.max() < 1
    assert values.mean() == pytest.approx(0.5, abs=0.01) and values.var() == pytest.approx(1 / 12, abs=0.003)
    assert not torch.equal(values, hash_unit(4, torch.arange(200)[:, None], torch.arange(100)))


# Graph


def test_covisibility_by_hand():
    # Two cameras before a wall at distance 2, moved apart by a quarter of what they see of it; a third looks away.
    scene = bare_scene(hollow=((0, 0, 0), (50, 50, 2), 0.0))
    width_seen = 2 * 640 / 576
    poses = torch.eye(3, 4, dtype=torch.float64).repeat(3, 1, 1)
    poses[1, 0, 3] = -width_seen / 4
    poses[2, :, :3] = torch.diag(double([-1, 1, -1]))
    share = problem_module.covisibility(scene, cameras_at(poses))
    torch.testing.assert_close(share, double([[1, 0.75, 0], [0.75, 1, 0], [0, 0, 1]]))


def test_hidden_points_are_not_covisible():
    # A plate one metre before the second camera hides the wall from it, not from the first camera at its side.
    plate = ((3.0, 0.0, 1.0), (0.9, 0.9, 0.01), 0.0)
    poses = torch.eye(3, 4, dtype=torch.float64).repeat(2, 1, 1)
    poses[1, 0, 3] = -3
    wall = ((0, 0, 0), (50, 50, 10), 0.0)
    free = problem_module.covisibility(bare_scene(hollow=wall), cameras_at(poses))
    hidden = problem_module.covisibility(bare_scene(boxes=[plate], hollow=wall), cameras_at(poses))
    assert free[0, 1] > 0.6 and hidden[0, 1] < 0.05


@pytest.mark.parametrize("max_degree", [None, 4])
def test_graph_is_symmetric_and_bounded(max_degree):
    scene = make_scene("object", 0)
    cameras = cameras_module.make_cameras(scene, 36, 0)
    share = problem_module.covisibility(scene, cameras)
    graph = problem_module.covisibility_graph(scene, cameras, 0.2, max_degree)
    edges = set(map(tuple, graph.edges.tolist()))
    assert edges and all((j, i) in edges and i != j for i, j in edges)
    assert torch.equal(graph.covisibility, share[graph.edges[:, 0], graph.edges[:, 1]])
    assert graph.covisibility.min() >= 0.2
    degree = torch.bincount(graph.edges[:, 0], minlength=36)
    if max_degree is None:
        assert len(edges) == int(((share >= 0.2) & (share.T >= 0.2)).sum()) - 36
    else:
        assert degree.max() == max_degree and degree.min() >= 1
        adjacency = torch.zeros(36, 36).double()
        adjacency[graph.edges[:, 0], graph.edges[:, 1]] = 1
        assert (torch.linalg.matrix_power(adjacency + torch.eye(36), 36) > 0).all(), "in one piece"


# Samples


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("disparity", [False, True])
@pytest.mark.parametrize("distortion", [(0.0, 0.0, 0.0, 0.0), LENS])
def test_exact_samples_reproject_exactly(kind, disparity, distortion):
    affine = replace(EXACT_DEPTH, scale=0.2, shift=0.05)
    problem = small_problem(
        kind=kind, disparity=disparity, distortion=distortion, depth_error=affine, match_error=EXACT_MATCH
    )
    residual = residuals(problem.truth, problem.samples)
    assert residual.max() < 1e-3
    assert problem.inlier.all() and len(problem.graph.edges) >= 10
    wrong = replace(problem.truth, depth_scale=problem.truth.depth_scale * 1.05)
    assert residuals(wrong, problem.samples).nanmedian() > 1


def test_samples_see_the_depth_map_of_their_frame():
    error = DepthError(outliers=0.1, noise=0.02)
    problem = small_problem(seed=4, depth_error=error)
    i = problem.samples.edges[:, 0]
    pixels = problem.samples.data[..., :2].double()
    again = depth_errors.observe_depth(problem.scene, problem.truth, i, pixels, error, 4)
    torch.testing.assert_close(problem.samples.data[..., 4], again.float())
    sizes = problem.truth.intrinsics.sizes[0]
    assert (pixels >= 0).all() and (pixels <= sizes).all()
    assert pixels.mean((0, 1))[0] == pytest.approx(320, rel=0.2)


def test_match_errors_are_as_asked():
    match_error = MatchError(noise_px=1.5, outliers=0.15, repeated=0.1)
    problem = small_problem(depth_error=EXACT_DEPTH, match_error=match_error, samples_per_edge=400, num_frames=8)
    exact = small_problem(depth_error=EXACT_DEPTH, match_error=EXACT_MATCH, samples_per_edge=400, num_frames=8)
    residual = residuals(problem.truth, problem.samples)
    assert problem.inlier.double().mean() == pytest.approx(0.75, abs=0.02)
    # A Rayleigh distribution: the mean square is twice the variance along each axis.
    assert residual[problem.inlier].square().mean() == pytest.approx(2 * 1.5**2, rel=0.05)
    is_shifted = ~problem.inlier & ((residual - 64).abs() < 6)  # a tenth of the width
    assert is_shifted.double().mean() == pytest.approx(0.1, abs=0.03)
    assert residual[~problem.inlier & ~is_shifted].median() > 80
    assert exact.inlier.all()


def test_repeated_structure_has_one_offset_per_edge():
    problem = small_problem(depth_error=EXACT_DEPTH, match_error=MatchError(noise_px=0.0, outliers=0.0, repeated=0.3))
    residual = residuals(problem.truth, problem.samples)
    assert (residual[problem.inlier] < 1e-3).all()
    torch.testing.assert_close(
        residual[~problem.inlier], torch.full_like(residual[~problem.inlier], 64), atol=0.01, rtol=0
    )


def test_same_seed_same_bits():
    one, two, other = small_problem(seed=1), small_problem(seed=1), small_problem(seed=2)
    assert torch.equal(one.samples.data, two.samples.data) and torch.equal(one.inlier, two.inlier)
    assert torch.equal(one.truth.cam_from_world, two.truth.cam_from_world)
    assert not torch.equal(one.truth.cam_from_world, other.truth.cam_from_world)
    assert not torch.equal(one.truth.depth_scale, other.truth.depth_scale)


def test_same_seed_same_image():
    images = []
    for seed in (0, 0, 1):
        scene = make_scene("room", seed)
        images.append(cameras_module.render(scene, cameras_module.make_cameras(scene, 2, seed, size=(64, 48)), 1)[0])
    assert torch.equal(images[0], images[1]) and not torch.equal(images[0], images[2])


def test_few_visible_points_share_their_weight():
    is_seen = torch.zeros(3, 50, dtype=torch.bool)
    is_seen[0, [7, 20, 33]] = True
    is_seen[1, 5:25] = True
    is_seen[2] = True
    choice, weight = problem_module._choose(is_seen, 10)
    torch.testing.assert_close(weight.sum(-1), torch.tensor([3.0, 10, 10]))
    assert is_seen.gather(1, choice).all()
    for point in (7, 20, 33):
        assert float(weight[0][choice[0] == point].sum()) == pytest.approx(1)
    assert len(choice[1].unique()) == 10 and (weight[1:] == 1).all()


def test_edges_without_common_points_are_refused():
    scene = bare_scene(hollow=((0, 0, 0), (50, 50, 2), 0.0))
    poses = torch.eye(3, 4, dtype=torch.float64).repeat(2, 1, 1)
    poses[1, :, :3] = torch.diag(double([-1, 1, -1]))
    graph = PoseGraph(torch.tensor([[0, 1]]), torch.tensor([0.5]))
    exact = Settings(samples_per_edge=10, depth_error=EXACT_DEPTH, match_error=EXACT_MATCH)
    with pytest.raises(InputError, match="frames 0 and 1"):
        problem_module.draw_samples(scene, cameras_at(poses), graph, exact, 0)


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="known: room"):
        small_problem(kind="cave")


def test_global_random_state_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    small_problem(num_frames=3)
    assert torch.equal(before, torch.get_rng_state())
