"""From a folder of photographs to camera poses: one verb per stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.config import BENT, Config, stages_of
from mbasfm.errors import InputError
from mbasfm.estimators.two_view import stands_alone
from mbasfm.io.cache import Cache
from mbasfm.io.images import find_photos
from mbasfm.io.masks import with_masks
from mbasfm.io.video import FRAMES_FOLDER, extract_frames, is_video
from mbasfm.matching.observe import Observations, observe
from mbasfm.polish.repetition_check import drop_contradictions
from mbasfm.report.page_data import write_report
from mbasfm.report.record import record
from mbasfm.runtime.distributed import from_main
from mbasfm.runtime.progress import Progress
from mbasfm.runtime.threads import all_cores, one_core
from mbasfm.scene.preflight import check_room, refuse_overwriting
from mbasfm.scene.reconstruction import Reconstruction
from mbasfm.scene.write import write_scene
from mbasfm.sfm.align_world import align_world
from mbasfm.sfm.checkpoint import FileJournal
from mbasfm.sfm.components import finish
from mbasfm.sfm.outcome import Placed, Run
from mbasfm.sfm.pairs.pose_graph import find_components, select_edges
from mbasfm.sfm.pairs.trust import trust_pairs
from mbasfm.sfm.pairs.verify_pairs import verify_pairs
from mbasfm.sfm.sample_budget import Stock, within_budget
from mbasfm.sfm.start.averaging import agree_with, average_rotations, rays_of
from mbasfm.sfm.start.initialize import initialize_cameras
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.sfm.user_files import Given, read_given
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import Photo
from mbasfm.types.samples import SampleSource

EXIF_LOG_FOCAL = 0.05
"""Standard deviation of the logarithm of a focal length from the metadata, or from the model to start from."""


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
    solved = solve(photos, output, config, cache, progress)
    observations, start, views, given = solved.observations, solved.start, solved.views, solved.given
    adjustment = None if solved.placed is None else solved.placed.adjustment
    views = check_against_depth(observations, views, adjustment, progress)
    result = finish(observations, start, views, adjustment, given.priors, config, progress)
    result = align_world(result, given.world, progress)
    result.report["skipped"] = [{"name": item.name, "reason": item.reason} for item in solved.skipped]
    result.report.update(stages=progress.stages, notes=progress.notes)
    result.report.update(
        record(Run(solved.source, config, observations, start, solved.verified, solved.placed), result)
    )
    if output is not None:
        write_scene(result, observations, Path(output), progress)
        write_report(Path(output))
    return result


@dataclass(frozen=True)
class Solved:
    """What is known after adjustment; several processes come here together, one of them goes on."""

    source: Path
    skipped: Sequence[Any]
    given: Given
    observations: Observations
    start: StartIntrinsics
    verified: list[TwoView]
    views: list[TwoView]
    placed: Placed | None


@one_core()
def solve(
    photos: Path | str, output: Path | str | None, config: Config, cache: Path | str | None, progress: Progress
) -> Solved:
    """All that several processes share: features, depth, matches, verified pairs, and adjustment."""
    folder = _cache_folder(output, cache)
    store = Cache(folder)
    source = _frames_of(Path(photos), output, progress) if is_video(Path(photos)) else Path(photos)
    found, skipped = _find(source, config.masks, progress)
    if output is not None:
        refuse_overwriting(Path(output), found, config)
        check_room(Path(output), found)
    given = read_given(found, config)
    observations = observe(found, config, store, progress, given.pairs)
    start, verified = verify_pairs(observations, given.cameras, config, store, progress)
    views = build_graph(observations, start, verified, config, progress)
    views, stock = within_budget(views, len(found), config, folder, progress)
    placed = place(observations, start, views, given, config, progress, stock)
    return Solved(source, skipped, given, observations, start, verified, views, placed)


def _cache_folder(output: Path | str | None, cache: Path | str | None) -> Path | None:
    if cache is not None:
        return Path(cache)
    return None if output is None else Path(output) / "cache"


def _frames_of(video: Path, output: Path | str | None, progress: Progress) -> Path:
    if output is None:
        raise InputError(f"{video}: the frames of a video need a folder; give an output")
    with progress.stage("video") as facts:
        facts["frames"] = from_main(lambda: extract_frames(video, Path(output) / FRAMES_FOLDER))
    return Path(output) / FRAMES_FOLDER


def _find(source: Path, masks: str | None, progress: Progress) -> tuple[tuple[Photo, ...], Sequence[Any]]:
    with progress.stage("photos") as facts:
        found, skipped = find_photos(source)
        found = with_masks(found, None if masks is None else Path(masks))
        facts.update(found=len(found), skipped=len(skipped), masks=sum(photo.mask is not None for photo in found))
    for item in skipped:
        progress.say(f"skipped {item.name}: {item.reason}")
    if len(found) < 2:
        raise InputError(f"{source}: {len(found)} usable photographs; at least 2 are needed")
    return found, skipped


# ----------------------------------------------------------------------------------------------------------------
# Graph, start, adjustment


def build_graph(
    observations: Observations, start: StartIntrinsics, views: list[TwoView], config: Config, progress: Progress
) -> list[TwoView]:
    """Choose the edges: pairs that are believed and agree with the average of their rotations, with enough overlap."""
    num_frames = len(observations.photos)
    with progress.stage("graph") as facts:
        if config.tree == "consistent":
            rays = rays_of(observations.keypoints, start.intrinsics)
            trust = trust_pairs(views, observations, start.intrinsics, rays)
            facts.update(trust.facts([photo.name for photo in observations.photos]))
            views = agree_with(trust.views, average_rotations(trust.views, num_frames), rays) if trust.views else []
        else:
            views = [view for view in views if stands_alone(view)]
        views = select_edges(views, num_frames, config.min_covisibility)
        component = find_components(views, num_frames)
        facts.update(edges=2 * len(views), components=int(component.max(initial=-1)) + 1)
    return views


def place(
    observations: Observations,
    start: StartIntrinsics,
    views: Sequence[TwoView],
    given: Given,
    config: Config,
    progress: Progress,
    stock: Stock,
) -> Placed | None:
    """Initial cameras, then marginalized bundle adjustment; None where no pair could be verified."""
    if not views:
        return None
    with progress.stage("initialize") as facts:
        starts, has_pose = from_main(
            lambda: initialize_cameras(
                views, observations.keypoints, start.intrinsics, observations.is_disparity, config.tree, given.poses
            )
        )
        samples = stock.draw(views, observations.keypoints, config.seed)
        facts.update(placed=int(has_pose.sum()), edges=samples.num_edges, starts=len(starts))
    if samples.num_edges == 0:
        progress.say("no verified match has depth, so there is nothing to adjust")
        return None
    with progress.stage("adjust") as facts:
        placed = _adjust_best(starts, samples, start, given.priors, config, stock.folder)
        adjustment = placed.adjustment
        facts.update(steps=len(adjustment.steps), registered=int(adjustment.registered.sum()))
        facts["score"] = _score(adjustment)
        facts["inlier_share"] = float(adjustment.diagnosis.inlier_share[adjustment.registered].mean())
    return placed


def check_against_depth(
    observations: Observations, views: list[TwoView], adjustment: Adjustment | None, progress: Progress
) -> list[TwoView]:
    """Leave out matches whose triangulated depth no depth map can mean."""
    if adjustment is None:
        return views
    with progress.stage("depth check") as facts:
        kept = drop_contradictions(views, adjustment.cameras, observations.keypoints)
        facts["dropped"] = sum(view.num_inliers for view in views) - sum(view.num_inliers for view in kept)
    return kept


def _adjust_best(
    starts: Sequence[Cameras],
    samples: SampleSource,
    start: StartIntrinsics,
    priors: PosePriors | None,
    config: Config,
    folder: Path | None,
) -> Placed:
    """Adjust every start and take the end with the best score; in the folder is noted how far each has come."""
    stages = stages_of(config)
    if bool((start.is_exif | start.is_init | start.is_known).all()):
        stages = tuple(replace(s, priors=replace(s.priors, log_focal=EXIF_LOG_FOCAL)) for s in stages)
    fixed = replace(Fixed.build(len(start.is_known), radial=config.lens not in BENT), focal=start.is_known)
    fixed = replace(fixed, radial=fixed.radial | start.is_known)

    def end_of(number: int, cameras: Cameras) -> Placed:
        path = None if folder is None else folder / f"adjust-{number}.pt"
        journal = FileJournal(path, cameras, samples, stages, fixed, priors)
        with all_cores():
            return Placed(cameras, samples, adjust(cameras, samples, stages, fixed, None, priors, journal))

    ends = (end_of(number, cameras) for number, cameras in enumerate(starts))
    return max(ends, key=lambda placed: _score(placed.adjustment))


def _score(adjustment: Adjustment) -> float:
    return adjustment.steps[-1][1].score if adjustment.steps else float("-inf")
