"""Made-up streets with houses that look alike: what their pairs miss, and which of them are left out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import (
    compose,
    invert,
    keypoints_with,
    make_lens,
    make_pose,
    make_view,
    photograph,
    true_cameras,
    true_intrinsics,
    true_view,
)

from mbasfm import Config, reconstruct
from mbasfm.evaluation.metrics import pair_errors
from mbasfm.io.poses import read_poses
from mbasfm.sfm.pairs.doubts import Sights, distances_astray, leave_out_lookalikes, missing_shares

SHARED = Path(__file__).parents[2] / "shared"
HOUSE, PERIOD = 150, 6.0
"""Points of a house, and the distance to the next one."""


def street(num_houses=3, seed=0):
    """Equal houses in a row with gardens in front of them, each unlike any other."""
    generator = np.random.default_rng(seed)
    house = generator.uniform([0.0, -2.0, 0.0], [PERIOD, 0.5, 1.0], (HOUSE, 3))
    houses = [house + [PERIOD * number, 0, 0] for number in range(num_houses)]
    gardens = generator.uniform([0.0, 0.5, -1.0], [PERIOD * num_houses, 2.0, 0.0], (HOUSE * num_houses, 3))
    return np.concatenate([*houses, gardens])


def walk(num_frames=12, num_houses=3, seed=0):
    """Photographs along the street, to the side."""
    places = np.linspace(2.0, PERIOD * num_houses - 2.0, num_frames)
    poses = np.stack([make_pose([0, 2 * np.sin(n), 0], [-x, 0.1 * np.cos(n), 6.0]) for n, x in enumerate(places)])
    return photograph(street(num_houses, seed), poses, make_lens(), seed, 0.3)


def neighbours(made, reach=3):
    last = made.num_frames
    return [true_view(made, i, j) for i in range(last) for j in range(i + 1, min(i + reach + 1, last))]


def lookalike(made, i, j):
    """The pair that takes a house for the next one: its matches agree with a pose, but not with the place of j."""
    here = np.flatnonzero(made.point_of[i] < HOUSE)
    wanted = {point: number for number, point in enumerate(made.point_of[j].tolist())}
    twins = [(own, wanted.get(int(made.point_of[i][own]) + HOUSE)) for own in here.tolist()]
    moved = compose(made.cam_from_world[j], make_pose([0, 0, 0], [PERIOD, 0, 0]))
    j_from_i = compose(moved, invert(made.cam_from_world[i]))
    j_from_i[:, 3] /= np.linalg.norm(j_from_i[:, 3])
    return make_view(i, j, [twin for twin in twins if twin[1] is not None], j_from_i=j_from_i)


def sights_of(made, raw=None):
    keypoints = keypoints_with(made, made.depth if raw is None else raw)
    return Sights.of(keypoints, true_intrinsics(made), torch.zeros(made.num_frames).bool())


def ends(views):
    return [(view.i, view.j) for view in views]


def split(views, made, **how):
    return leave_out_lookalikes(views, np.ones(len(views), dtype=bool), sights_of(made, **how))


# ----------------------------------------------------------------------------------------------------------------
# What a pair misses


def test_a_true_pair_misses_nothing_and_a_pair_that_looks_alike_misses_what_is_around():
    made = walk()
    true, wrong = neighbours(made), lookalike(made, 1, 5)
    assert len(wrong.matches) > 50
    *right, last = missing_shares([*true, wrong], sights_of(made)).tolist()
    assert max(right) < 0.05 and last > 0.3


def test_only_what_other_pairs_match_is_expected():
    made = walk()
    alone = missing_shares([lookalike(made, 1, 5)], sights_of(made))
    assert alone.tolist() == [0.0]


def test_it_matters_where_keypoints_are_not_matched_and_not_how_many():
    made = walk()
    views = neighbours(made)
    matches, pose = views[0].matches, views[0].j_from_i
    from_left = matches[np.argsort(made.pixels[0][matches[:, 0], 0])]
    shares = []
    for half in (from_left[::2], from_left[: len(matches) // 2]):
        shares += [missing_shares([make_view(0, 1, half, j_from_i=pose), *views[1:]], sights_of(made))[0]]
    assert shares[0] < 0.3 and shares[1] > 0.4


def test_the_unit_of_depth_does_not_matter_and_unknown_depth_is_the_median():
    made = walk()
    views = [*neighbours(made), lookalike(made, 1, 5)]
    usual = missing_shares(views, sights_of(made))
    scaled = missing_shares(views, sights_of(made, [7 * depth for depth in made.depth]))
    np.testing.assert_allclose(usual, scaled, atol=0.02)
    unknown = missing_shares(views, sights_of(made, [np.full_like(depth, np.nan) for depth in made.depth]))
    assert np.isfinite(unknown).all() and unknown[-1] > 0.3


# ----------------------------------------------------------------------------------------------------------------
# What is left out


def test_true_cameras_put_points_where_true_pairs_find_them():
    made = walk()
    right, wrong = true_view(made, 2, 5), lookalike(made, 1, 5)
    astray = distances_astray([right, wrong], true_cameras(made), sights_of(made))
    assert astray[0] < 0.002 and astray[1] > 0.5
    unknown = sights_of(made, [np.full_like(depth, np.nan) for depth in made.depth])
    assert distances_astray([wrong], true_cameras(made), unknown).tolist() == [0.0]


@pytest.mark.parametrize("seed", range(3))
def test_pairs_that_look_alike_are_left_out_and_no_other(seed):
    made = walk(seed=seed)
    true = neighbours(made)
    wrong = [lookalike(made, 0, 4), lookalike(made, 1, 5), lookalike(made, 1, 6), lookalike(made, 2, 6)]
    kept, left_out = split([*true, *wrong], made)
    assert ends(kept) == ends(true) and ends(left_out) == ends(wrong)


def test_depth_may_be_off_by_a_factor_per_photograph():
    made = walk()
    factor = 1 + 0.5 * np.sin(np.arange(made.num_frames))
    true, wrong = neighbours(made), lookalike(made, 1, 5)
    raw = [f * depth for f, depth in zip(factor, made.depth, strict=True)]
    kept, left_out = split([*true, wrong], made, raw=raw)
    assert ends(kept) == ends(true) and ends(left_out) == [(1, 5)]


def test_where_whole_pairs_connect_nothing_they_say_nothing():
    made = walk()
    near = [view for view in neighbours(made) if (view.i < 4) == (view.j < 4)]
    kept, left_out = split([*near, lookalike(made, 1, 5)], made)
    assert (1, 5) in ends(kept) and not left_out


def test_pairs_in_doubt_condemn_nothing():
    made = walk()
    views = [*neighbours(made), lookalike(made, 1, 5)]
    kept, left_out = leave_out_lookalikes(views, np.zeros(len(views), dtype=bool), sights_of(made))
    assert ends(kept) == ends(views) and not left_out


def test_no_pairs_are_no_lookalikes():
    made = walk()
    assert leave_out_lookalikes([], np.zeros(0, dtype=bool), sights_of(made)) == ([], [])


# ----------------------------------------------------------------------------------------------------------------
# Photographs


@pytest.mark.slow
def test_houses_along_a_street_are_not_taken_for_one_another():
    pytest.importorskip("onnxruntime")
    folder, network = SHARED / "data" / "dup_street19", SHARED / "weights" / "tiefenrausch.onnx"
    if not (folder.is_dir() and network.is_file()):
        pytest.skip(f"no photographs at {folder} or no network at {network}")
    config = Config(depth=f"onnx:{network}", matcher="sift", cameras=str(folder / "gt.json"))
    result = reconstruct(folder / "images", None, config)
    truth = read_poses(folder / "gt.json")
    assert result.names == truth.names and bool((result.component == 0).all())
    errors = pair_errors(result.cameras.cam_from_world, torch.from_numpy(truth.cam_from_world))
    assert float((errors.pose_deg() < 3).double().mean()) > 0.9
    assert result.report.lookalikes
    assert min(j - i for i, j in result.report.lookalikes) >= 4  # the next house is six photographs on
