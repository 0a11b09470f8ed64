"""Queries in a held map: exact data give exact poses, the map does not move, and chance places nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import angle_deg, keypoints_with, make_lens, orbit, photograph, relief, true_cameras, true_matches
from margins import assert_below

from mbasfm.estimators.absolute import Sightings, estimate_focal, pose_from_pair, residuals_px, support_of
from mbasfm.geometry.rigid import camera_centers
from mbasfm.localization.anchors import anchor_matches
from mbasfm.localization.register import Known, Settings, Unknown, register
from mbasfm.types.observations import TwoView
from mbasfm.types.outcome import NoPose, Reason

NUM_MAP, NUM_FRAMES = 5, 7
SETTINGS = Settings(samples_per_edge=60)


def made_up(noise_px=0.0, seed=0, distortion=(0.0, 0.0, 0.0, 0.0)):
    return photograph(relief(250, seed), orbit(NUM_FRAMES), make_lens(distortion=distortion), seed, noise_px)


def known_of(made, depth_error=0.0, seed=0):
    """The first frames are the map; its depth may be off by a share, another one at every keypoint."""
    generator = np.random.default_rng(seed)
    depth = [z * np.exp(depth_error * generator.standard_normal(len(z))) for z in made.depth]
    return Known(true_cameras(made), keypoints_with(made, depth))


def points_of(made, known, frame):
    """What the keypoints of a frame of the map show, if its depth is right."""
    pose, lens = made.cam_from_world[frame], made.lenses[frame]
    assert not lens.distortion.any()
    rays = np.column_stack([(made.pixels[frame] - lens.center) / lens.focal, np.ones(len(made.pixels[frame]))])
    return (rays * known.keypoints[frame].raw_depth[:, None] - pose[:, 3]) @ pose[:, :3]


def unknown_of(made, known, query, wrong=0.0, seed=0, **changes):
    """A query with its matches to all frames of the map, a share of them wrong."""
    generator = np.random.default_rng(seed)
    columns = []
    for frame in range(NUM_MAP):
        matches = true_matches(made, query, frame)
        is_wrong = generator.random(len(matches)) < wrong
        matches[is_wrong, 1] = generator.integers(len(made.pixels[frame]), size=is_wrong.sum())
        own, theirs = matches.T
        points = points_of(made, known, frame)[theirs]
        columns.append((own, np.full(len(own), frame), theirs, made.pixels[query][own], points))
    sightings = Sightings(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return Unknown(made.pixels[query].astype(np.float32), sightings, made.lenses[query], **changes)


def errors(found, made, query):
    """Distance of centres and angle [deg]."""
    poses = torch.from_numpy(np.stack([found.cam_from_world, made.cam_from_world[query]]))
    centers = camera_centers(poses)
    return float((centers[0] - centers[1]).norm()), angle_deg(poses[0, :, :3].numpy(), poses[1, :, :3].numpy())


def test_exact_depth_and_exact_matches_give_the_exact_pose():
    made = made_up()
    known = known_of(made)
    for query in (5, 6):
        (found,) = register(known, [unknown_of(made, known, query)], {}, SETTINGS)
        distance, angle = errors(found, made, query)
        assert distance < 1e-4 and angle < 1e-3
        assert found.support.inlier_share == 1.0 and found.reason is None


def test_the_map_stays_bit_for_bit():
    made = made_up(noise_px=0.5)
    known = known_of(made, depth_error=0.02)
    before = {name: value.clone() for name, value in vars(known.cameras).items() if isinstance(value, torch.Tensor)}
    queries = [unknown_of(made, known, query) for query in (5, 6)]
    register(known, queries, {(0, 1): true_matches(made, 5, 6)}, SETTINGS)
    assert all(torch.equal(getattr(known.cameras, name), value) for name, value in before.items())


@pytest.mark.parametrize("depth_error", [0.01, 0.15])
def test_wrong_matches_and_rough_depth_are_survived(depth_error):
    made = made_up(noise_px=0.5)
    known = known_of(made, depth_error)
    (found,) = register(known, [unknown_of(made, known, 5, wrong=0.4)], {}, SETTINGS)
    distance, angle = errors(found, made, 5)
    assert distance < 0.05 and angle < 0.5  # cameras are about 4 from the scene


def test_all_at_once_and_one_at_a_time_agree():
    made = made_up(noise_px=0.3)
    known = known_of(made, depth_error=0.01)
    queries = [unknown_of(made, known, query, wrong=0.2) for query in (5, 6)]
    joint = register(known, queries, {(0, 1): true_matches(made, 5, 6)}, SETTINGS)
    for query, item, together in zip((5, 6), queries, joint, strict=True):
        (alone,) = register(known, [item], {}, SETTINGS)
        assert np.abs(alone.cam_from_world - together.cam_from_world).max() < 0.02
        assert max(errors(found, made, query)[0] for found in (alone, together)) < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_chance_places_nothing_and_says_why(seed):
    made = made_up(seed=seed)
    known = known_of(made)
    (found,) = register(known, [unknown_of(made, known, 5, wrong=1.0, seed=seed)], {}, SETTINGS)
    assert found.cam_from_world is None and found.reason


def test_a_failing_query_does_not_disturb_the_others():
    made = made_up()
    known = known_of(made)
    good, bad = unknown_of(made, known, 5), unknown_of(made, known, 6, wrong=1.0)
    link = true_matches(made, 6, 5)
    link[:, 1] = np.random.default_rng(0).permutation(link[:, 1])
    found = register(known, [bad, good], {(0, 1): link}, SETTINGS)
    assert found[0].cam_from_world is None
    assert errors(found[1], made, 5)[0] < 1e-4


def test_a_query_that_only_another_query_knows_is_placed_through_it():
    made = made_up(noise_px=0.2)
    known = known_of(made)
    good, lost = unknown_of(made, known, 5), unknown_of(made, known, 6)
    lost = replace(lost, sightings=lost.sightings.take(np.zeros(0, np.int64)))
    for first, second, link in ((good, lost, (5, 6)), (lost, good, (6, 5))):
        found = register(known, [first, second], {(0, 1): true_matches(made, *link)}, SETTINGS)
        place = 1 if second is lost else 0
        distance, angle = errors(found[place], made, 6)
        assert distance < 0.03 and angle < 0.3


def test_a_keypoint_of_a_query_counts_once_however_many_frames_it_was_matched_with():
    made = made_up()
    points = keypoints_with(made, made.depth)
    query = replace(points[5], raw_depth=np.full_like(points[5].raw_depth, np.nan))
    matches = [true_matches(made, frame, 5) for frame in range(NUM_MAP)]
    views = [TwoView.of_matches(frame, 5, pairs) for frame, pairs in enumerate(matches)]
    samples = anchor_matches(views, [*points[:5], query], 10_000, 0)
    matched = np.unique(np.concatenate(matches)[:, 1])
    assert float(samples.weight.sum()) == pytest.approx(len(matched), rel=1e-5)
    from_query = samples.edges[:, 0] == 5
    assert float(samples.weight[from_query].sum()) == pytest.approx(0.5 * len(matched), rel=1e-5)
    assert samples.data[from_query][..., 4].isnan().all() and not samples.data[~from_query][..., 4].isnan().any()
    assert len(samples.anchor[from_query].unique()) == len(matched)


def test_a_query_without_any_match_is_not_localized():
    made = made_up()
    known = known_of(made)
    item = unknown_of(made, known, 5)
    (found,) = register(known, [replace(item, sightings=item.sightings.take(np.zeros(0, np.int64)))], {}, SETTINGS)
    assert found.cam_from_world is None and found.reason == Reason(NoPose.NO_POSE_FITS, (0,))


def test_the_covariance_grows_with_the_noise():
    spread = []
    for noise_px in (0.2, 2.0):
        made = made_up(noise_px)
        known = known_of(made, depth_error=0.005)
        (found,) = register(known, [unknown_of(made, known, 5)], {}, SETTINGS)
        spread.append(np.sqrt(np.trace(found.covariance)))
    assert 3 * spread[0] < spread[1] < 1.0


def test_an_unknown_focal_length_is_found_from_points_and_refined():
    made = made_up(noise_px=0.3)
    known = known_of(made)
    item = unknown_of(made, known, 5, wrong=0.2)
    blind = replace(item.lens, focal=np.full(2, np.nan))
    focal = estimate_focal(item.sightings, blind)
    assert abs(focal / 900 - 1) < 0.02
    rough = replace(item, lens=replace(item.lens, focal=np.full(2, 930.0)), holds_focal=False)
    (found,) = register(known, [rough], {}, SETTINGS)
    assert np.abs(found.focal_px / 900 - 1).max() < 0.01


def test_a_pair_with_depth_gives_the_whole_pose():
    from made_up import true_view

    made = made_up()
    view = true_view(made, 0, 5)
    pose = pose_from_pair(
        view, (made.pixels[0], made.pixels[5]), (made.lenses[0], made.lenses[5]), made.depth[0], made.cam_from_world[0]
    )
    np.testing.assert_allclose(pose, made.cam_from_world[5], atol=1e-9)


def test_residuals_know_the_lens_and_what_is_behind():
    made = made_up(distortion=(-0.1, 0.02, 0.001, -0.001))
    chosen = made.point_of[0]
    count = len(chosen)
    sightings = Sightings(np.arange(count), np.zeros(count, int), chosen, made.pixels[0], made.points[chosen])
    assert_below(residuals_px(made.cam_from_world[0], sightings, made.lenses[0]), 1e-6)
    behind = made.cam_from_world[0] * np.array([[1.0], [-1.0], [-1.0]])  # half a turn about x
    assert np.isinf(residuals_px(behind, sightings, made.lenses[0])).all()


def test_support_counts_keypoints_not_matches():
    made = made_up()
    known = known_of(made)
    item = unknown_of(made, known, 5)
    support = support_of(made.cam_from_world[5], item.sightings, item.lens, 5.0)
    assert support.num_inliers == support.num_keypoints == len(np.unique(item.sightings.own)) < len(item.sightings)
    assert support.log10_false_alarms < -100
