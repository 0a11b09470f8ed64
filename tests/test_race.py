"""Which start is taken: points that two frames triangulate must appear in a third where it saw them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import (
    all_views,
    compose,
    invert,
    keypoints_with,
    make_lens,
    make_pose,
    orbit,
    photograph,
    relief,
    true_cameras,
    true_view,
)

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import SPLIT
from mbasfm.config import Config
from mbasfm.datasets.plain import Plain
from mbasfm.io.images import find_photos
from mbasfm.matching.observe import WantedPairs, load_depth, load_matchers, observe
from mbasfm.polish.tracks import hold_out, transfer_errors_px
from mbasfm.sfm.inputs import UserFiles, read_given
from mbasfm.sfm.intrinsics import known_intrinsics
from mbasfm.sfm.pairs.edges import verify_pairs
from mbasfm.sfm.pairs.pose_graph import find_components
from mbasfm.sfm.samples import draw_samples
from mbasfm.sfm.start import race
from mbasfm.sfm.start.candidates import start_cameras
from mbasfm.sfm.start.race import (
    LEAST_GAIN,
    Judge,
    adjust_best,
    agreement,
    choose,
    find_astray,
    mix,
    place_again,
)
from mbasfm.types.cameras import Cameras

SHARED = Path(__file__).parents[2] / "shared"


def scene(num_frames=6, seed=0, noise_px=0.0):
    made = photograph(relief(250, seed), orbit(num_frames), make_lens(), seed=seed, noise_px=noise_px)
    return made, all_views(made), keypoints_with(made, made.depth)


def stretched(cameras, frame, factor):
    """The frame further out on the ray from frame 0: its pair with that stays right, its distance does not."""
    pose = cameras.cam_from_world.numpy().copy()
    centers = invert(pose)[:, :, 3]
    center = centers[0] + factor * (centers[frame] - centers[0])
    pose[frame, :, 3] = -pose[frame, :, :3] @ center
    return replace(cameras, cam_from_world=torch.from_numpy(pose))


def turned(cameras, frame, angle_deg):
    pose = cameras.cam_from_world.numpy().copy()
    pose[frame] = compose(make_pose([0, angle_deg, 0], [0, 0, 0]), pose[frame])
    return replace(cameras, cam_from_world=torch.from_numpy(pose))


@pytest.fixture(scope="module")
def end_at():
    """An adjustment that ends wherever it is told to, with any score."""
    made, views, keypoints = scene()
    samples = draw_samples(views, keypoints, 20, 0)
    found = adjust(true_cameras(made), samples, replace(SPLIT, max_steps=1, restarts=0))
    ((name, step),) = found.steps[:1]
    return lambda cameras, score=0.0: replace(found, cameras=cameras, steps=((name, replace(step, score=score)),))


def test_given_poses_come_first_and_the_paper_tree_alone():
    made, views, keypoints = scene()
    cameras = true_cameras(made)
    known = views, keypoints, cameras.intrinsics, cameras.is_disparity
    given = {frame: made.cam_from_world[frame] for frame in range(6)}
    starts, placed = start_cameras(*known, given=given)
    assert placed.all() and torch.equal(starts[0].cam_from_world, cameras.cam_from_world)
    without, _ = start_cameras(*known)
    assert len(starts) == len(without) + 1 >= 3
    assert len(start_cameras(*known, tree="paper")[0]) == 1


def test_true_cameras_find_every_point_where_it_is_seen():
    made, views, keypoints = scene()
    transfers = hold_out(views, keypoints, 0).transfers
    assert (transfers.frames.sort(1).values.diff(dim=1) > 0).all()  # three different frames
    assert float(transfer_errors_px(true_cameras(made), transfers).max()) < 0.01
    assert agreement(true_cameras(made), transfers) == pytest.approx(np.ones(6))


def test_a_similarity_changes_no_error():
    made, views, keypoints = scene(noise_px=1.0)
    transfers = hold_out(views, keypoints, 0).transfers
    cameras = true_cameras(made)
    moved = compose(cameras.cam_from_world.numpy(), make_pose([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]))
    moved[:, :, 3] *= 5.0
    before, after = (
        transfer_errors_px(replace(cameras, cam_from_world=torch.from_numpy(pose)), transfers)
        for pose in (made.cam_from_world, moved)
    )
    assert after.numpy() == pytest.approx(before.numpy(), rel=1e-6, abs=1e-6)


def test_a_wrong_length_shows_though_every_pair_of_a_line_fits():
    """On a straight line all pairs keep their epipolar lines when one camera slides along it."""
    poses = np.stack([make_pose([0, 0, 0], [-place, 0, 4.0]) for place in (-1.0, -0.6, 0.1, 0.8)])
    made = photograph(relief(250, 1), poses, make_lens(), seed=1)
    views, cameras = all_views(made), true_cameras(made)
    keypoints = keypoints_with(made, made.depth)
    transfers = hold_out(views, keypoints, 0).transfers
    wrong = stretched(cameras, 3, 1.3)
    assert not find_astray(wrong, views, keypoints, 3.0).any()
    assert agreement(wrong, transfers).mean() < 0.7
    component = find_components(views, 4)
    for candidates, best in (([cameras, wrong], 0), ([wrong, cameras], 1)):
        assert (choose(candidates, transfers, component, 1 - best) == best).all()


def test_each_component_takes_its_own_best():
    made = photograph(relief(250, 2), orbit(7), make_lens(), seed=2)
    views = [view for view in all_views(made) if (view.i < 4) == (view.j < 4)]
    keypoints, truth = keypoints_with(made, made.depth), true_cameras(made)
    candidates = [turned(truth, 1, 10.0), turned(truth, 5, 10.0)]
    chosen = choose(candidates, hold_out(views, keypoints, 0).transfers, find_components(views, 7), 0)
    assert chosen.tolist() == [1] * 4 + [0] * 3
    assert torch.equal(mix(candidates, chosen).cam_from_world, truth.cam_from_world)


@pytest.mark.parametrize("otherwise", [0, 1])
def test_without_three_frames_of_one_point_the_other_choice_holds(otherwise):
    made, views, keypoints = scene(2)
    transfers = hold_out(views, keypoints, 0).transfers
    assert len(transfers.frames) == 0
    candidates = [true_cameras(made), turned(true_cameras(made), 1, 20.0)]
    assert (choose(candidates, transfers, find_components(views, 2), otherwise) == otherwise).all()


def test_tracks_that_meet_themselves_have_no_vote():
    """One wrong match joins two points; both tracks show two places in one frame."""
    made, views, keypoints = scene(3)
    held = hold_out(views, keypoints, 0).keypoints[views[0].i]
    rows = np.flatnonzero(held[views[0].matches[:, 0]])[:2]
    crossed = views[0].matches.copy()
    crossed[rows, 1] = crossed[rows[::-1], 1]
    before, after = (
        hold_out([replace(views[0], matches=matches), *views[1:]], keypoints, 0).transfers
        for matches in (views[0].matches, crossed)
    )
    shown = {tuple(row) for row in keypoints[0].pixels[crossed[rows, 0]].tolist()}
    seen = [
        {tuple(p) for f, p in zip(t.frames.flatten().tolist(), t.pixels.reshape(-1, 2).tolist(), strict=True) if f == 0}
        for t in (before, after)
    ]
    assert shown <= seen[0] and seen[1] == seen[0] - shown


def test_the_order_of_pairs_does_not_matter():
    made, views, keypoints = scene(noise_px=0.5)
    first, second = (agreement(true_cameras(made), hold_out(v, keypoints, 0).transfers) for v in (views, views[::-1]))
    assert np.array_equal(first, second)


def test_a_frame_astray_is_found_alone_and_placed_again():
    made, views, keypoints = scene(6)
    wrong = stretched(turned(true_cameras(made), 2, 15.0), 2, 2.0)
    astray = find_astray(wrong, views, keypoints, 3.0)
    assert np.flatnonzero(astray).tolist() == [2]
    again = place_again(wrong, views, keypoints, astray)
    assert again.cam_from_world.numpy() == pytest.approx(made.cam_from_world, abs=0.01)


def test_the_hub_of_a_star_is_astray_not_its_neighbours():
    made = photograph(relief(250, 3), orbit(5), make_lens(), seed=3)
    views = [true_view(made, 0, 1), true_view(made, 0, 2), true_view(made, 0, 3), true_view(made, 0, 4)]
    keypoints = keypoints_with(made, made.depth)
    assert np.flatnonzero(find_astray(turned(true_cameras(made), 0, 15.0), views, keypoints, 3.0)).tolist() == [0]


def test_the_best_end_is_taken_however_adjustment_scores_it(end_at):
    made, views, keypoints = scene()
    judge = Judge.build(views, keypoints, hold_out(views, keypoints, 0), 3.0)
    truth = true_cameras(made)
    starts = [turned(truth, 2, 1.0), truth]
    best = adjust_best(starts, 1, lambda number, cameras, way: end_at(cameras, -float(number)), judge)
    assert best.start is truth and best.adjustment.cameras is truth


@pytest.mark.parametrize("good", [0, 1])
def test_the_best_way_is_taken_and_told(end_at, good):
    """Every start is adjusted in every way, each with a number of its own, and score decides nothing."""
    made, views, keypoints = scene()
    judge = Judge.build(views, keypoints, hold_out(views, keypoints, 0), 3.0)
    truth, ran = true_cameras(made), []
    starts = [turned(truth, 1, 2.0), turned(truth, 2, 1.0)]

    def run(number, cameras, way):
        ran.append((number, cameras, way))
        return end_at(truth if way == good and cameras is starts[1] else cameras, -float(way == good))

    best = adjust_best(starts, 2, run, judge)
    assert [(number, way) for number, _, way in ran] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert all(cameras is starts[number // 2] for number, cameras, _ in ran)
    assert best.way == good and best.start is starts[1] and best.adjustment.cameras is truth


def test_components_with_different_best_starts_are_adjusted_together(end_at):
    """In the way that is best for most frames."""
    made = photograph(relief(250, 2), orbit(7), make_lens(), seed=2)
    views = [view for view in all_views(made) if (view.i < 4) == (view.j < 4)]
    keypoints, truth = keypoints_with(made, made.depth), true_cameras(made)
    judge = Judge.build(views, keypoints, hold_out(views, keypoints, 0), 3.0)
    starts, ran = [turned(truth, 1, 2.0), turned(truth, 5, 2.0)], []

    def run(number, cameras, way):
        """The first start ends better in its second way, the second one in its first."""
        ran.append((number, way))
        right = {(0, 1): 0, (1, 0): 1}.get((0 if cameras is starts[0] else 1, way))
        return end_at(cameras if right is not None or number == 4 else turned(turned(cameras, 0, 3.0), 6, 3.0))

    best = adjust_best(starts, 2, run, judge)
    assert ran == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]
    assert best.way == 0 and torch.equal(best.adjustment.cameras.cam_from_world, truth.cam_from_world)


def test_without_a_judge_the_first_start_is_adjusted_in_the_first_way(end_at):
    made, _, _ = scene()
    starts, ran = [true_cameras(made), turned(true_cameras(made), 1, 2.0)], []

    def run(number, cameras, way):
        ran.append((number, way))
        return end_at(cameras)

    best = adjust_best(starts, 2, run, None)
    assert ran == [(0, 0)] and best.start is starts[0] and best.way == 0


def test_of_a_great_many_pairs_only_the_most_promising_start_is_adjusted(end_at, monkeypatch):
    made, views, keypoints = scene()
    judge = Judge.build(views, keypoints, hold_out(views, keypoints, 0), 3.0)
    truth, ran = true_cameras(made), []
    monkeypatch.setattr(race, "MANY_PAIRS", len(views) - 1)

    def run(number, cameras, way):
        ran.append((number, way))
        return end_at(cameras)

    best = adjust_best([turned(truth, 2, 1.0), truth], 2, run, judge)
    assert ran == [(0, 0), (1, 1)] and torch.equal(best.start.cam_from_world, truth.cam_from_world)


def test_a_later_candidate_must_be_better_by_more_than_rounding():
    """Whatever single frames say: what counts is the mean."""
    scores = np.array([[0.9, 0.5, 0.7], [0.9 + LEAST_GAIN, 0.5 + LEAST_GAIN, 0.7 - LEAST_GAIN], [0.8, 0.8, 0.8]])
    assert race._winner(scores[:2]) == 0
    assert race._winner(scores) == 2
    assert race._winner(scores[::-1]) == 0
    assert race._winner(np.array([[0.9, 0.9, 0.1], [0.7, 0.7, 0.7]])) == 1
    assert race._winner(scores[:1] + np.array([[0.0], [2.0]]) * LEAST_GAIN) == 1


def test_frames_astray_get_another_start_and_the_better_end_stays(end_at):
    made, views, keypoints = scene()
    judge = Judge.build(views, keypoints, hold_out(views, keypoints, 0), 3.0)
    wrong = turned(true_cameras(made), 2, 15.0)
    ran = []

    def run(number, cameras, way):
        ran.append((number, way))
        return end_at(cameras)

    best = adjust_best([wrong], 1, run, judge)
    assert ran == [(0, 0), (2, 0)]
    assert best.adjustment.cameras.cam_from_world.numpy() == pytest.approx(made.cam_from_world, abs=0.01)
    assert best.start is best.adjustment.cameras
    same = adjust_best([wrong], 1, lambda number, cameras, way: end_at(wrong), judge)
    assert same.adjustment.cameras is wrong and same.start is wrong


@pytest.mark.slow
def test_photographs_know_their_true_cameras(tmp_path):
    """Of a church, measured by laser: a camera a twentieth too far from the first is seen, and any turn by a degree."""
    if not (SHARED / "data" / "strecha_herzjesu8").is_dir():
        pytest.skip(f"no photographs at {SHARED}")
    truth = Plain(SHARED / "data").load("strecha_herzjesu8")
    photos, _ = find_photos(truth.images)
    assert [photo.name for photo in photos] == list(truth.names)
    (tmp_path / "cameras.json").write_text(json.dumps({"images": truth.calibration()}))
    config = Config(depth="flat", matcher="sift", cameras=str(tmp_path / "cameras.json"))
    observations = observe(photos, load_depth(config.depth), load_matchers(config.matcher), WantedPairs())
    given = read_given(photos, config.part(UserFiles))
    start = known_intrinsics(photos, given.cameras, config.intrinsics)
    _, views = verify_pairs(observations, start, config.lens, config.max_error_px)
    transfers = hold_out(views, observations.keypoints, 0).transfers
    pose = torch.from_numpy(np.ascontiguousarray(truth.cam_from_world))
    cameras = Cameras.with_depth_as_given(pose, start.intrinsics)
    component = find_components(views, len(photos))
    assert agreement(cameras, transfers).mean() > 0.9
    for wrong in (stretched(cameras, 4, 1.05), turned(cameras, 6, 1.0)):
        assert (choose([wrong, cameras], transfers, component, 0) == 1).all()
        assert (choose([cameras, wrong], transfers, component, 1) == 0).all()
