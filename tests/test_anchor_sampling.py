"""Which pixels become anchors, and how far the depth map is believed there."""

import numpy as np
import pytest
import torch
from made_up import all_views, keypoints_with, make_lens, make_view, orbit, photograph, relief
from test_sampling import make_keypoints

from mbasfm.objective.depth_prior import CELLS, DepthErrors, usual_of, weigh_depth
from mbasfm.polish.tracks import draw_anchors
from mbasfm.types.observations import Samples

MANY = 10_000
NUM_CELLS = CELLS[0] * CELLS[1]


def sightings(samples: Samples) -> list[tuple[tuple[float, ...], tuple[float, ...], float]]:
    """Source frame with pixel, target frame with pixel, and weight of all observations, sorted."""
    found = []
    for (i, j), data, weight in zip(
        samples.edges.tolist(), samples.data.tolist(), samples.weight.tolist(), strict=True
    ):
        found += [
            ((i, x, y), (j, u, v), counts) for (x, y, u, v, _), counts in zip(data, weight, strict=True) if counts
        ]
    return sorted(found)


@pytest.fixture(scope="module")
def made():
    return photograph(relief(60, 1), orbit(5, 14.0), make_lens(size=(700, 560)), 2)


def test_every_track_has_one_anchor_that_all_others_observe(made):
    samples = draw_anchors(all_views(made), keypoints_with(made, made.depth), MANY, 0, 0)
    seen = sightings(samples)
    assert {weight for _, _, weight in seen} == {1.0}
    point = {
        (frame, *pixel): int(number)
        for frame, points in enumerate(keypoints_with(made, made.depth))
        for pixel, number in zip(points.pixels.tolist(), made.point_of[frame], strict=True)
    }
    for number in range(len(made.points)):
        frames = {frame for frame, own in enumerate(made.point_of) if number in own}
        anchors = {anchor for anchor, _, _ in seen if point[anchor] == number}
        observers = [match for _, match, _ in seen if point[match] == number]
        assert len(anchors) == (len(frames) >= 2)
        if anchors:
            (anchor,) = anchors
            assert sorted(match[0] for match in observers) == sorted(frames - {anchor[0]})


def test_rows_are_sorted_and_anchors_numbered_from_frame_to_frame(made):
    samples = draw_anchors(all_views(made), keypoints_with(made, made.depth), MANY, 0, 0)
    i, j = samples.edges.unbind(-1)
    assert bool((i.diff() >= 0).all()) and bool(((i.diff() > 0) | (j.diff() >= 0)).all())
    frame = torch.full((samples.num_anchors,), -1)
    frame[samples.anchors.flatten()] = i[:, None].expand_as(samples.anchors).flatten()
    assert bool((frame >= 0).all()) and bool((frame.diff() >= 0).all())
    pixel = torch.zeros(samples.num_anchors, 2)
    pixel[samples.anchors.flatten()] = samples.data[..., :2].flatten(0, 1)
    assert pixel[samples.anchors].equal(samples.data[..., :2])  # also where a row is filled up


def test_an_anchor_has_depth_where_any_keypoint_of_its_track_has(made):
    depth = [np.where(made.point_of[frame] % 2 == frame % 2, np.nan, values) for frame, values in enumerate(made.depth)]
    samples = draw_anchors(all_views(made), keypoints_with(made, depth), MANY, 0, 0)
    frames = {number: {f for f, own in enumerate(made.point_of) if number in own} for number in range(len(made.points))}
    blind = sum(len(seen) >= 2 and len({f % 2 for f in seen}) == 1 for seen in frames.values())
    found = samples.data[..., 4][samples.weight > 0]
    number = samples.anchors[samples.weight > 0]
    assert len(number[found.isnan()].unique()) <= blind
    assert number[found.isfinite()].numel() > 0


def test_tangled_keypoints_are_anchors_of_their_own_and_count_less():
    """A wrong match joins two keypoints of one photograph: whole tracks would see one thing in two places."""
    points = [make_keypoints(4, frame) for frame in range(3)]
    views = [make_view(0, 1, [(0, 0), (1, 1)]), make_view(1, 2, [(0, 0)]), make_view(0, 2, [(2, 0), (3, 3)])]
    seen = sightings(draw_anchors(views, points, MANY, 0, 0))
    assert [weight for (_, x, _), _, weight in seen if x == 3] == [1.0] == [w for (_, x, _), _, w in seen if x == 1]
    tangled = {
        (anchor[0], int(anchor[1]), match[0], int(match[1])): w for anchor, match, w in seen if anchor[1] in (0, 2)
    }
    ends = {(0, 0, 1, 0), (1, 0, 2, 0), (0, 2, 2, 0)}
    assert set(tangled) == ends | {(j, b, i, a) for i, a, j, b in ends}
    matched = {(0, 0): 1, (1, 0): 2, (2, 0): 2, (0, 2): 1}
    for (frame, number, _, _), weight in tangled.items():
        assert weight == pytest.approx(1 / (1 + matched[frame, number]))


def test_long_tracks_come_first_and_every_pair_keeps_some(made):
    views, keypoints = all_views(made), keypoints_with(made, made.depth)
    every, few, fewer = (draw_anchors(views, keypoints, *many, 0) for many in ((MANY, 0), (4, 3), (4, 0)))
    assert fewer.num_anchors <= few.num_anchors < every.num_anchors
    length = lambda samples: torch.bincount(samples.anchors[samples.weight > 0]).double().mean()  # noqa: E731
    assert length(fewer) > length(every)

    def per_edge(samples: Samples) -> dict[tuple[int, ...], float]:
        mass: dict[tuple[int, ...], float] = {}
        for edge, own in zip(samples.edges.tolist(), samples.edge_mass().tolist(), strict=True):
            mass[tuple(edge)] = mass.get(tuple(edge), 0.0) + own
        return mass

    kept = per_edge(few)
    assert all(kept.get(edge, 0.0) >= min(3, mass) for edge, mass in per_edge(every).items())


def test_the_order_of_pairs_does_not_matter(made):
    views, keypoints = all_views(made), keypoints_with(made, made.depth)
    expected = draw_anchors(views, keypoints, 10, 3, 0)
    found = draw_anchors(views[::-1], keypoints, 10, 3, 0)
    for name, values in vars(expected).items():
        assert getattr(found, name).equal(values)


# ----------------------------------------------------------------------------------------------------------------
# Depth


def weighed(num_frames: int, spread: float, shared: float, known: float = 0.01):
    """What is made of errors of 500 depths a frame, of whose variance some share is common to the anchors of a cell."""
    generator = np.random.default_rng(0)
    frame = np.repeat(np.arange(num_frames), 500)
    cell = generator.integers(0, NUM_CELLS, len(frame))
    common = generator.standard_normal((num_frames, NUM_CELLS))[frame, cell]
    error = spread * (np.sqrt(shared) * common + np.sqrt(1 - shared) * generator.standard_normal(len(frame)))
    error = error + known * spread * generator.standard_normal(len(frame))
    variance = np.full(len(frame), (known * spread) ** 2)
    nearness = generator.uniform(0.1, 10.0, len(frame))  # far more relief than error: it has all its votes
    values = (torch.from_numpy(some) for some in (frame, cell, error, variance, nearness))
    return weigh_depth(DepthErrors(*values), torch.full((num_frames,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.4])
def test_the_spread_of_depth_is_measured(spread):
    trust = weighed(4, spread, 0.0)
    assert trust.spread.tolist() == pytest.approx([spread] * 4, rel=0.15)


def test_what_matches_do_not_know_is_not_put_on_depth():
    """Errors that are as large as matches let expect leave little for the depth map."""
    assert float(weighed(4, 0.05, 0.0, known=2.0).spread.max()) < 0.05 * 2


def test_errors_that_cells_share_leave_few_votes():
    """All depths of a frame together weigh as many as are independent: all of them, or about one in a cell."""
    for shared, low, high in ((0.0, 300, 520), (0.9, 0.5 * NUM_CELLS, 2.5 * NUM_CELLS)):
        trust = weighed(6, 0.1, shared)
        votes = torch.bincount(torch.arange(6).repeat_interleave(500), trust.weight * 0.1**2)
        assert bool((votes > low).all()) and bool((votes < high).all()), shared
        assert trust.correlation == pytest.approx(shared, abs=0.1)


def test_wrong_and_missing_depths_have_no_say():
    generator = np.random.default_rng(1)
    frame, cell = torch.zeros(300).long(), torch.from_numpy(generator.integers(0, NUM_CELLS, 300))
    error = torch.from_numpy(0.05 * generator.standard_normal(300))
    error[:10], error[10:20] = 5.0, torch.nan
    variance, nearness = torch.full((300,), 1e-6).double(), torch.from_numpy(generator.uniform(0.1, 10.0, 300))
    trust = weigh_depth(DepthErrors(frame, cell, error, variance, nearness), torch.tensor([0.1]).double())
    assert float(trust.weight[:10].max()) < 0.01 * float(trust.weight[20:].median()) and not trust.weight[10:20].any()
    assert float(trust.spread[0]) == pytest.approx(0.05, rel=0.2)


def test_a_map_without_relief_has_no_vote():
    """It would flatten the scene; one whose relief is as large as its error has half of its votes."""
    generator = np.random.default_rng(0)
    frame, cell = torch.arange(3).repeat_interleave(400), torch.from_numpy(generator.integers(0, 48, 1200))
    error = torch.from_numpy(0.1 * generator.standard_normal(1200))
    relief = torch.tensor([0.0, 0.1, 10.0]).double().repeat_interleave(400)
    nearness = 100.0 + 100.0 * relief * torch.from_numpy(generator.standard_normal(1200))
    trust = weigh_depth(
        DepthErrors(frame, cell, error, torch.full((1200,), 1e-6).double(), nearness), torch.full((3,), 0.1).double()
    )
    none, half, all_votes = (float(trust.weight[frame == number].median()) for number in range(3))
    assert none == 0.0 and half / all_votes == pytest.approx(0.5, abs=0.15)


def test_a_map_that_a_shift_pushes_beyond_infinity_still_has_a_size():
    raw, one = torch.tensor([2.0, 2.0, 2.0]).double(), torch.ones(3).double()
    shift, disparity = torch.tensor([1.0, -5.0, 1.0]).double(), torch.tensor([True, True, False])
    assert usual_of(raw, one, shift, disparity).tolist() == pytest.approx([3.0, 0.1 * 2.0, 1 / 3])
