"""More matches along epipolar lines: right ones, and none that cameras forbid."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import keypoints_with, make_lens, orbit, photograph, relief, true_cameras, true_matches, true_view

from mbasfm.polish.polish import match_along_lines
from mbasfm.synthetic.cameras import perturb

MAX_ERROR_PX = 3.0


def make_scene():
    return photograph(relief(500, 0), orbit(2, 12.0), make_lens(), 0, noise_px=0.3)


def look_alike(made, num_kinds, noise=0.02, seed=0):
    """Descriptors of which only so many kinds exist, as on a wall of bricks."""
    generator = np.random.default_rng(seed)
    kinds = generator.standard_normal((num_kinds, 32))
    found = {}
    for frame, points in enumerate(made.point_of):
        rows = kinds[points % num_kinds] + noise * generator.standard_normal((len(points), 32))
        found[frame] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return found


def run(made, view, descriptors, cameras=None):
    cameras = cameras or true_cameras(made)
    (found,) = match_along_lines([view], cameras, keypoints_with(made, made.depth), descriptors, MAX_ERROR_PX)
    return found.matches


def test_features_that_look_alike_are_told_apart_by_the_cameras():
    made = make_scene()
    view, truth = true_view(made, 0, 1), true_matches(made, 0, 1)
    few = replace(view, matches=view.matches[:20])
    found = run(made, few, look_alike(made, 50))
    right = {tuple(row) for row in truth.tolist()} & {tuple(row) for row in found.tolist()}
    assert len(found) > 0.6 * len(truth) and len(right) > 0.95 * len(found)
    assert np.array_equal(found[:20], few.matches), "what a pair has, it keeps"
    for column in found.T:
        assert len(set(column.tolist())) == len(column), "a feature has one match"


def test_matches_lie_near_their_lines():
    made = make_scene()
    wrong = perturb(true_cameras(made), 1, 3.0, 0.2)
    none = replace(true_view(made, 0, 1), matches=np.zeros((0, 2), dtype=np.int64))
    descriptors = look_alike(made, 500)
    assert len(run(made, none, descriptors)) > 0.9 * len(true_matches(made, 0, 1))
    assert len(run(made, none, descriptors, wrong)) < 0.3 * len(true_matches(made, 0, 1))


@pytest.mark.parametrize(
    "descriptors",
    [{}, {0: np.zeros((10, 8), np.float32)}, {0: np.zeros((0, 8), np.float32), 1: np.zeros((0, 8), np.float32)}],
)
def test_pairs_without_descriptors_stay(descriptors):
    made = make_scene()
    view = true_view(made, 0, 1)
    assert np.array_equal(run(made, view, descriptors), view.matches)


def test_an_unlike_feature_is_no_match_even_without_rival():
    made = make_scene()
    none = replace(true_view(made, 0, 1), matches=np.zeros((0, 2), dtype=np.int64))
    unlike = {frame: rows for frame, rows in look_alike(made, 500).items()}
    unlike[1] = torch.nn.functional.normalize(
        torch.randn(len(unlike[1]), 32, generator=torch.Generator().manual_seed(0))
    ).numpy()
    assert len(run(made, none, unlike)) < 5
