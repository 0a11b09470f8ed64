"""From a folder of photographs to camera poses: one verb per stage."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mbasfm.adjust.diagnosis import inlier_limit_px
from mbasfm.adjust.stage import without_depth
from mbasfm.config import Config, stages_of
from mbasfm.errors import InputError
from mbasfm.estimators.two_view import stands_alone
from mbasfm.io.files import Cache
from mbasfm.matching.observe import WantedPairs, load_depth, load_matchers, observe
from mbasfm.models.base import looking_in
from mbasfm.polish.depth import drop_contradictions
from mbasfm.polish.tracks import RACE_TRACKS, hold_out
from mbasfm.report.record import record, write_page
from mbasfm.runtime.parallel import from_main, one_core
from mbasfm.runtime.progress import Progress, say, stage
from mbasfm.scene.reconstruction import NOTHING_WRITTEN, Reconstruction, check_room, refuse_overwriting, write_scene
from mbasfm.scene.report_file import write_report_json
from mbasfm.sfm.adjustment import SETTLING, Inputs, Placed, Run, Solved, adjuster, residual_curves
from mbasfm.sfm.finish import Finishing, align_world, finish
from mbasfm.sfm.inputs import Given, UserFiles, folder_of, input_photos, read_given
from mbasfm.sfm.intrinsics import known_intrinsics
from mbasfm.sfm.pairs.edges import build_graph, verify_pairs
from mbasfm.sfm.pairs.pose_graph import find_components
from mbasfm.sfm.samples import Stock, within_budget
from mbasfm.sfm.start.candidates import start_cameras
from mbasfm.sfm.start.race import Judge, adjust_best
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Observations, TwoView


@one_core()
def reconstruct(
    photos: Path | str,
    output: Path | str | None = None,
    config: Config | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Reconstruction:
    """Camera poses of the photographs in a folder (or list file), or of a video; written to ``output`` if given.

    What was computed per photograph and per pair is kept in ``cache`` (by default inside the output) and found again.
    """
    config, progress = config or Config(), progress or Progress()
    inputs, solved = solve(photos, output, config, cache, progress)
    seen = solved.observations
    with progress.active():
        result = complete(solved, inputs.given, config)
        written = NOTHING_WRITTEN if output is None else write_scene(result, seen, Path(output))
        residuals = residual_curves(solved.placed, result.models, inlier_limit_px(stages_of(config)[-1]))
        run = Run(inputs.source, config, seen, solved.start, solved.verified, solved.placed, residuals, inputs.skipped)
        result = replace(result, report=record(run, result, written, progress.stages, progress.notes))
        if output is not None:
            write_report_json(result.report, Path(output))
            write_page(result.report, written.models, Path(output))
    return result


@one_core()
def solve(
    photos: Path | str, output: Path | str | None, config: Config, cache: Path | str | None, progress: Progress
) -> tuple[Inputs, Solved]:
    """All that several processes share: features, depth, matches, verified pairs, and adjustment."""
    target = None if output is None else Path(output)
    folder = Path(cache) if cache is not None else None if target is None else target / "cache"
    with progress.active(), Cache(folder).active(), looking_in(config.weights, config.models_path):
        inputs = _read_inputs(Path(photos), target, config)
        wanted = WantedPairs(config.pairs, config.seed, inputs.given.pairs)
        matchers, depth_model = load_matchers(config.matcher), load_depth(config.depth)
        confidences = config.min_confidence, config.min_depth_confidence
        seen = observe(inputs.photos, depth_model, matchers, wanted, *confidences)
        return inputs, place(seen, inputs.given, config, folder)


def _read_inputs(photos: Path, output: Path | None, config: Config) -> Inputs:
    """Find the photographs, and read and check all that the user gave before any work."""
    source = folder_of(photos, output)
    found, skipped = input_photos(source, config.masks)
    if len(found) < 2:
        raise InputError(f"{source}: {len(found)} usable photographs; at least 2 are needed")
    given = read_given(found, config.part(UserFiles))
    if output is not None:
        refuse_overwriting(output, found, config.depth, given.cameras.held, config.lens == "pinhole")
        check_room(output, found)
    return Inputs(source, found, skipped, given)


def place(seen: Observations, given: Given, config: Config, folder: Path | None = None) -> Solved:
    """From matches to adjusted cameras: verify pairs, choose edges, initialize, adjust."""
    with stage("verify") as facts:
        start = known_intrinsics(seen.photos, given.cameras, config.intrinsics, config.lens, seen.depths)
        start, verified = verify_pairs(seen, start, config.lens, config.max_error_px)
        alone = [view.num_inliers for view in verified if stands_alone(view)]
        facts.update(pairs=len(alone), inliers=sum(alone))
    with stage("graph") as facts:
        how = config.tree, config.min_covisibility, config.max_error_px
        graph = build_graph(verified, seen, start.intrinsics, *how)
        parts = int(find_components(graph.views, len(seen.photos)).max(initial=-1)) + 1
        facts.update(graph.facts(), edges=2 * len(graph.views), components=parts)
    demand = config.samples_per_edge, config.objective == "anchored", config.max_memory_gb
    views, stock = within_budget(graph.views, len(seen.photos), *demand, folder)
    held = hold_out(views, seen.keypoints, config.seed)
    solved = Solved(seen, start, verified, replace(graph, views=views), held)
    return _adjust(solved, given, config, stock) if views else solved


def _adjust(solved: Solved, given: Given, config: Config, stock: Stock) -> Solved:
    """From edges to adjusted cameras: initialize, race, check by depth, settle on all tracks."""
    seen, start, views, held = solved.observations, solved.start, solved.graph.views, solved.held
    is_anchored, folder, points, seed = config.objective == "anchored", stock.folder, seen.keypoints, config.seed
    with stage("initialize") as facts:
        known = points, start.intrinsics, seen.is_disparity
        starts, has_pose = from_main(lambda: start_cameras(views, *known, config.tree, given.poses))
        samples = held.draw(views, points, RACE_TRACKS, seed) if is_anchored else stock.draw(views, points, seed)
        facts.update(placed=int(has_pose.sum()), edges=samples.num_edges, starts=len(starts))
    if samples.num_edges == 0:
        say("no verified match has depth, so there is nothing to adjust")
        return solved
    stages, fixed = stages_of(config, start.is_told), start.held(config.lens)
    ways = [stages, without_depth(stages)] if is_anchored else [stages]
    with stage("adjust") as facts:
        judge = Judge.build(views, points, held, config.max_error_px) if config.tree == "consistent" else None
        winner = adjust_best(starts, len(ways), adjuster(samples, ways, fixed, given.priors, folder), judge)
        placed = Placed(winner.start, samples, winner.adjustment)
        facts.update(placed.facts())
    with stage("depth check") as facts:
        checked = drop_contradictions(views, winner.adjustment.cameras, points)
        facts["dropped"] = sum(v.num_inliers for v in views) - sum(v.num_inliers for v in checked)
    solved = replace(solved, graph=replace(solved.graph, views=checked), placed=placed)
    if not is_anchored:
        return solved

    def settle(views: Sequence[TwoView], cameras: Cameras) -> Placed:
        samples = stock.keep(held.draw(views, points, config.tracks_per_frame, seed))
        run = adjuster(samples, [stages[-1:] for stages in ways], fixed, given.priors, folder)
        return Placed(winner.start, samples, run(SETTLING, cameras, winner.way))

    with stage("settle") as facts:
        placed = settle(checked, winner.adjustment.cameras)
        facts.update(placed.facts(), without_depth=winner.way == 1)
    return replace(solved, placed=placed.after(winner.adjustment), settle=settle)


def complete(solved: Solved, given: Given, config: Config) -> Reconstruction:
    """From adjusted cameras to a result: polish, retry, align."""
    return align_world(finish(solved, given.priors, config.part(Finishing)), given.world)
