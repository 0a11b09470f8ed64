"""Depth in bundle adjustment: exact where it is exact, weighed by how its errors go together, absent where bad."""

import numpy as np
import pytest
import torch
from made_up import all_views, keypoints_with, make_lens, orbit, photograph, pose_errors_deg, relief, true_cameras

from mbasfm.polish.colmap_mapper import HELD, Freedom, Mapper, build_model
from mbasfm.polish.depth import CELLS, VIRTUAL, shared_variance, take_back, weigh_depth, with_depth
from mbasfm.polish.polish import PolishSettings, polish
from mbasfm.polish.tracks import hold_out
from mbasfm.synthetic.cameras import perturb

NAMES = [f"{frame}.jpg" for frame in range(8)]


def make(seed=0, num_frames=5, noise_px=0.5, step_deg=2.0):
    """Photographs with little parallax: what tracks alone know about distance is little."""
    return photograph(relief(600, seed), orbit(num_frames, step_deg), make_lens(), seed, noise_px=noise_px)


def independent(made, error, seed=0):
    generator = np.random.default_rng(seed)
    return [depth * np.exp(error * generator.standard_normal(len(depth))) for depth in made.depth]


def patchy(made, error, seed=0):
    """Every patch of every image is off as a whole."""
    generator = np.random.default_rng(seed)
    found = []
    for pixels, depth, lens in zip(made.pixels, made.depth, made.lenses, strict=True):
        column, row = np.clip((pixels / lens.size * CELLS).astype(int), 0, CELLS - 1).T
        found.append(depth * np.exp(error * generator.standard_normal(CELLS**2)[row * CELLS + column]))
    return found


def mapper_of(made, raw_depth, cameras=None):
    keypoints, views = keypoints_with(made, raw_depth), all_views(made)
    cameras = cameras or true_cameras(made)
    model = build_model(NAMES, range(made.num_frames), cameras, keypoints, HELD)
    mapper = Mapper(model, views, [view.matches for view in views])
    mapper.triangulate()
    return mapper, weigh_depth(mapper.model, cameras, keypoints)


def polished(made, raw_depth, cameras, freedom=HELD):
    keypoints = keypoints_with(made, raw_depth)
    frames, views = list(range(made.num_frames)), all_views(made)
    held = hold_out(views, keypoints, 0)
    return polish(NAMES, frames, cameras, views, keypoints, PolishSettings(freedom, held))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_shared_variance_is_the_share_that_was_put_in(share):
    generator = np.random.default_rng(1)
    cell = generator.integers(0, 400, 8000)
    common, own = generator.standard_normal(400)[cell], generator.standard_normal(8000)
    assert shared_variance(np.sqrt(share) * common + np.sqrt(1 - share) * own, cell) == pytest.approx(share, abs=0.05)


def test_one_cell_or_one_value_each_says_nothing_so_all_may_be_shared():
    values = np.arange(5.0)
    assert shared_variance(values, np.zeros(5, dtype=np.int64)) == 1.0
    assert shared_variance(values, np.arange(5)) == 1.0


def test_exact_depth_and_points_leave_no_residual_in_virtual_images():
    made = make(noise_px=0.0)
    mapper, terms = mapper_of(made, made.depth)
    joint = with_depth(mapper.model, terms, 0.5)
    virtual = [image for number, image in joint.images.items() if number > VIRTUAL]
    assert len(virtual) == made.num_frames and sum(image.num_points3D for image in virtual) > 1000
    for image in virtual:
        for point in image.get_observation_points2D():
            seen = image.project_point(joint.points3D[point.point3D_id].xyz)
            # Depth and pixels of keypoints have single precision; points are triangulated from them.
            assert seen == pytest.approx(point.xy, rel=1e-5, abs=1e-3)


def test_a_depth_off_by_its_error_is_off_by_the_noise_in_pixels():
    made = make()
    mapper, terms = mapper_of(made, independent(made, 0.02))
    joint = with_depth(mapper.model, terms, 0.7)
    off = []
    for number, image in joint.images.items():
        if number > VIRTUAL:
            for point in image.get_observation_points2D():
                seen = image.project_point(joint.points3D[point.point3D_id].xyz)
                off.append((seen - point.xy) * terms.inflation[number - VIRTUAL - 1])
    off = np.array(off)
    assert np.median(np.abs(off[:, 0])) == pytest.approx(0.6745 * 0.7, rel=0.15)
    assert np.abs(off[:, 1]).max() < 0.02


def test_ids_points_and_poses_survive_the_way_there_and_back():
    made = make()
    mapper, terms = mapper_of(made, made.depth)
    joint = with_depth(mapper.model, terms, 0.5)
    assert set(joint.points3D) == set(mapper.model.points3D)
    before = {number: point.xyz.copy() for number, point in mapper.model.points3D.items()}
    poses = {number: image.cam_from_world().matrix() for number, image in mapper.model.images.items()}
    take_back(mapper.model, joint)
    for number, point in mapper.model.points3D.items():
        assert np.array_equal(point.xyz, before[number])
    for number, image in mapper.model.images.items():
        assert image.cam_from_world().matrix() == pytest.approx(poses[number], abs=1e-12)


def test_errors_that_go_together_count_less_and_bad_depth_not_at_all():
    made = make(step_deg=8.0)
    alone, together = (mapper_of(made, kind(made, 0.01))[1] for kind in (independent, patchy))
    assert alone.inflation.max() < 1.5
    assert np.median(together.inflation) > 2
    assert mapper_of(made, patchy(made, 0.3))[1] is None
    assert mapper_of(made, [np.full(len(depth), np.nan) for depth in made.depth])[1] is None


@pytest.mark.parametrize("freedom, share", [(HELD, 0.95), (Freedom(focal=True, lens=True), 0.8)])
def test_good_depth_helps_where_parallax_is_small(freedom, share):
    """The more so where intrinsics are open, too."""
    errors = []
    for seed in range(4):
        made = make(seed, step_deg=0.4)
        start = perturb(true_cameras(made), seed, 0.3, 0.01)
        without = polished(made, [np.full(len(depth), np.nan) for depth in made.depth], start, freedom)
        helped = polished(made, independent(made, 0.001, seed), start, freedom)
        assert without.used and helped.used and helped.used_depth and not without.used_depth
        poses = [result.cameras.cam_from_world.numpy() for result in (without, helped)]
        errors.append([np.concatenate(pose_errors_deg(pose, made)).mean() for pose in poses])
    mean = np.mean(errors, axis=0)
    assert mean[1] < share * mean[0]


def test_unknown_focal_length_is_found_with_depth_too():
    made = make(step_deg=8.0)
    start = perturb(true_cameras(made), 0, 0.3, 0.01)
    result = polished(made, independent(made, 0.01), start, Freedom(focal=True, lens=True))
    assert result.used_depth
    assert torch.allclose(result.cameras.intrinsics.focal, start.intrinsics.focal, rtol=0.01)
