"""From a folder of photographs to camera poses: one verb per stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, UInt8

from mbasfm.adjust import Adjustment, adjust
from mbasfm.calibrate import Start, known_intrinsics, lenses_of, with_searched_focal
from mbasfm.config import Config, stages_of
from mbasfm.errors import InputError
from mbasfm.graph import drop_inconsistent, find_components, pose_graph, select_edges
from mbasfm.infer import WORKERS, describe_photos, estimate_depths, in_parallel, keypoints_of, match_pairs
from mbasfm.initialize import initialize_cameras
from mbasfm.io.cache import Cache
from mbasfm.io.images import Photo, find_photos
from mbasfm.io.lists import read_pairs
from mbasfm.models.base import DepthEstimate, Features
from mbasfm.models.registry import choose_auto, load_model
from mbasfm.pairs import choose_pairs, looks_ordered
from mbasfm.polish import Freedom, Polished, PolishSettings, polish, triangulate
from mbasfm.reconstruction import Reconstruction, color_points, spread_of
from mbasfm.retry import Second, place_by_points
from mbasfm.rotations import agree_with, average_rotations, rays_of
from mbasfm.sampling import Keypoints, draw_samples
from mbasfm.twoview import TwoView, calibrate_view, verify
from mbasfm.types import Cameras, Fixed, Frames, Intrinsics, Samples
from mbasfm.watch import Watch

MANY_SAMPLES = 200_000
MANY_SHARE = 4
"""A camera of so many photographs may have its principal point and radial term refined."""
MANY_MATCHES = 100
"""A frame with two such pairs needs no second matcher."""
EXIF_LOG_FOCAL = 0.05
"""Standard deviation of the logarithm of a focal length from the metadata."""
PAIR_MODES = ("auto", "exhaustive", "sequential", "retrieval")


@dataclass(frozen=True)
class Content:
    """What the models found in the photographs."""

    photos: tuple[Photo, ...]
    depths: list[DepthEstimate]
    keypoints: list[Keypoints]
    colors: list[UInt8[np.ndarray, "_ 3"]]
    pairs: Int64[np.ndarray, "P 2"]
    matches: list[Int64[np.ndarray, "_ 2"]]

    @property
    def is_disparity(self) -> Bool[torch.Tensor, " N"]:
        """Which frames have disparity instead of depth."""
        return torch.tensor([depth.is_disparity for depth in self.depths])


def reconstruct(
    photos: Path | str,
    output: Path | str | None = None,
    config: Config | None = None,
    cache: Path | str | None = None,
    watch: Watch | None = None,
) -> Reconstruction:
    """Camera poses of the photographs in a folder (or list file); written to ``output`` if given.

    What was computed per photograph and per pair is kept in ``cache`` (by default inside the output) and found again.
    """
    config, watch = config or Config(), watch or Watch()
    store = Cache(_cache_folder(output, cache))
    found, skipped = _find(Path(photos), watch)
    content = infer(found, config, store, watch)
    start, views = verify_pairs(content, config, watch)
    views = build_graph(content, start, views, config, watch)
    adjustment = place(content, start, views, config, watch)
    result = finish(content, start, views, adjustment, config, watch)
    result.report["skipped"] = [{"name": item.name, "reason": item.reason} for item in skipped]
    result.report["stages"] = watch.stages
    result.report["notes"] = watch.notes
    if output is not None:
        result.save(Path(output))
    return result


def _cache_folder(output: Path | str | None, cache: Path | str | None) -> Path | None:
    if cache is not None:
        return Path(cache)
    return None if output is None else Path(output) / "cache"


def _find(source: Path, watch: Watch) -> tuple[tuple[Photo, ...], Sequence[Any]]:
    with watch.stage("photos") as facts:
        found, skipped = find_photos(source)
        facts.update(found=len(found), skipped=len(skipped))
    for item in skipped:
        watch.say(f"skipped {item.name}: {item.reason}")
    if len(found) < 2:
        raise InputError(f"{source}: {len(found)} usable photographs; at least 2 are needed")
    return found, skipped


def infer(photos: tuple[Photo, ...], config: Config, cache: Cache, watch: Watch) -> Content:
    """Run the models: features and depth of every photograph, matches of every pair that is worth it.

    ``first+second`` matches with the first; photographs that found few matches get those of the second as well.
    """
    matchers, depth_model = _load_matchers(config.matcher, watch), _load("depth", config.depth, watch)
    with watch.stage("depth"):
        depths = list(watch.each(estimate_depths(photos, depth_model, cache), len(photos), "depth"))
    content = Content(photos, depths, [], [], np.zeros((0, 2), dtype=np.int64), [])
    for number, matcher in enumerate(matchers):
        wanted = None if number == 0 else weak_frames(content)
        if wanted is None or wanted.any():
            content = merge(content, _match(photos, depths, matcher, wanted, config, cache, watch))
    return content


def _match(
    photos: tuple[Photo, ...],
    depths: list[DepthEstimate],
    matcher: Any,
    wanted: Bool[np.ndarray, " N"] | None,
    config: Config,
    cache: Cache,
    watch: Watch,
) -> Content:
    """Features and matches by one matcher, of all photographs or for the sake of some."""
    with watch.stage("features") as facts:
        described = list(watch.each(describe_photos(photos, matcher, cache), len(photos), "features"))
        facts["mean"] = round(float(np.mean([len(item.features.pixels) for item in described])))
    features = [item.features for item in described]
    with watch.stage("pairs") as facts:
        pairs, why = _choose_pairs(photos, features, matcher, config)
        if wanted is not None:
            pairs, why = pairs[wanted[pairs].any(1)], "those of photographs with few matches"
        facts.update(pairs=len(pairs), why=why)
    with watch.stage("matching") as facts:
        found = watch.each(match_pairs(pairs, features, photos, matcher, cache), len(pairs), "matching")
        matches = [indices[confidence > config.min_confidence] for indices, confidence in found]
        facts["matches"] = sum(map(len, matches))
    keypoints = [keypoints_of(p, f, z) for p, f, z in zip(photos, features, depths, strict=True)]
    return Content(photos, depths, keypoints, [item.colors for item in described], pairs, matches)


def weak_frames(content: Content) -> Bool[np.ndarray, " N"]:
    """Frames that do not have two pairs with many matches: too little to hold them in place."""
    count = np.zeros((len(content.photos), len(content.photos)), dtype=np.int64)
    for (i, j), matches in zip(content.pairs, content.matches, strict=True):
        count[i, j] = count[j, i] = len(matches)
    return np.sort(count, axis=1)[:, -2] < MANY_MATCHES


def merge(first: Content, second: Content) -> Content:
    """Keypoints of both, one after the other; pairs that both have hold the matches of both."""
    if not first.keypoints:
        return second
    offset = [len(points.pixels) for points in first.keypoints]
    matches = {(i, j): [found] for (i, j), found in zip(first.pairs.tolist(), first.matches, strict=True)}
    for (i, j), found in zip(second.pairs.tolist(), second.matches, strict=True):
        matches.setdefault((i, j), []).append(found + np.array([offset[i], offset[j]]))
    pairs = sorted(matches)
    return Content(
        first.photos,
        first.depths,
        [a.join(b) for a, b in zip(first.keypoints, second.keypoints, strict=True)],
        [np.concatenate(both) for both in zip(first.colors, second.colors, strict=True)],
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        [np.concatenate(matches[pair]) for pair in pairs],
    )


def _load_matchers(spec: str, watch: Watch) -> list[Any]:
    if spec == "auto":
        spec, why = choose_auto("matcher")
        watch.say(why)
    return [load_model("matcher", part) for part in spec.split("+")]


def _load(kind: Any, spec: str, watch: Watch) -> Any:
    if spec == "auto":
        spec, why = choose_auto(kind)
        watch.say(why)
    return load_model(kind, spec)


def _choose_pairs(
    photos: Sequence[Photo], features: Sequence[Features], matcher: Any, config: Config
) -> tuple[Int64[np.ndarray, "P 2"], str]:
    names = [photo.name for photo in photos]
    if config.pairs not in PAIR_MODES:
        return read_pairs(Path(config.pairs), names), f"from {config.pairs}"
    given = getattr(matcher, "pairs", lambda: None)()
    if given is not None:
        number = {name: index for index, name in enumerate(names)}
        known = {tuple(sorted((number[a], number[b]))) for a, b in given if a in number and b in number}
        return np.array(sorted(known), dtype=np.int64).reshape(-1, 2), "those that the matcher has"
    descriptors = [item.descriptors for item in features]
    return choose_pairs(config.pairs, descriptors, looks_ordered(names), config.seed)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------------
# Intrinsics and two-view geometry


def verify_pairs(content: Content, config: Config, watch: Watch) -> tuple[Start, list[TwoView]]:
    """Keep the pairs whose matches agree with one relative pose; find focal lengths on the way."""
    with watch.stage("verify") as facts:
        start = known_intrinsics(content.photos, config)
        known = ~torch.isnan(start.intrinsics.focal[:, 0])
        views = _verify_all(content, start.intrinsics, known, config.max_error_px)
        if not bool(known.all()):
            start = with_searched_focal(start, views)
            views = _calibrate_all(content, views, start.intrinsics, config.max_error_px)
        facts.update(pairs=len(views), inliers=sum(view.num_inliers for view in views))
    return start, views


def _verify_all(content: Content, intrinsics: Intrinsics, known: torch.Tensor, max_error_px: float) -> list[TwoView]:
    lenses, pixels = lenses_of(intrinsics), _pixels(content)

    def work(number: int) -> TwoView | None:
        i, j = content.pairs[number].tolist()
        calibrated = bool(known[i] and known[j])
        ends = (pixels[i], pixels[j]), content.matches[number], (lenses[i], lenses[j])
        return verify((i, j), *ends, max_error_px, calibrated)

    return [view for view in in_parallel(work, range(len(content.pairs))) if view is not None]


def _calibrate_all(
    content: Content, views: Sequence[TwoView], intrinsics: Intrinsics, max_error_px: float
) -> list[TwoView]:
    lenses, pixels = lenses_of(intrinsics), _pixels(content)

    def work(view: TwoView) -> TwoView | None:
        if not np.isnan(view.j_from_i).any():
            return view
        return calibrate_view(view, (pixels[view.i], pixels[view.j]), (lenses[view.i], lenses[view.j]), max_error_px)

    return [view for view in in_parallel(work, views) if view is not None]


def _pixels(content: Content) -> list[Float64[np.ndarray, "M 2"]]:
    return [points.pixels.astype(np.float64) for points in content.keypoints]


# ----------------------------------------------------------------------------------------------------------------
# Graph, start, adjustment


def build_graph(content: Content, start: Start, views: list[TwoView], config: Config, watch: Watch) -> list[TwoView]:
    """Choose the edges: rotations that agree around triangles and with their average, and enough co-visibility."""
    num_frames = len(content.photos)
    with watch.stage("graph") as facts:
        verified = len(views)
        if config.tree == "consistent" and views:
            views, _ = drop_inconsistent(views, num_frames)
            rotation = average_rotations(views, num_frames)
            views = agree_with(views, rotation, rays_of(content.keypoints, start.intrinsics))
        facts["inconsistent"] = verified - len(views)
        views = select_edges(views, num_frames, config.min_covisibility)
        component = find_components(views, num_frames)
        facts.update(edges=2 * len(views), components=int(component.max(initial=-1)) + 1)
    return views


def place(content: Content, start: Start, views: Sequence[TwoView], config: Config, watch: Watch) -> Adjustment | None:
    """Initial cameras, then marginalized bundle adjustment; None where no pair could be verified."""
    if not views:
        return None
    with watch.stage("initialize") as facts:
        starts, placed = initialize_cameras(
            views, content.keypoints, start.intrinsics, content.is_disparity, config.tree
        )
        samples = draw_samples(views, content.keypoints, config.samples_per_edge, config.seed)
        facts.update(placed=int(placed.sum()), edges=samples.num_edges, starts=len(starts))
    if samples.num_edges == 0:
        watch.say("no verified match has depth, so there is nothing to adjust")
        return None
    with watch.stage("adjust") as facts:
        adjustment = _adjust_best(starts, samples, start, config)
        facts.update(steps=len(adjustment.steps), registered=int(adjustment.registered.sum()))
        facts["score"] = _score(adjustment)
        facts["inlier_share"] = float(adjustment.diagnosis.inlier_share[adjustment.registered].mean())
    return adjustment


def _adjust_best(starts: Sequence[Cameras], samples: Samples, start: Start, config: Config) -> Adjustment:
    """Adjust every start and take the end with the best score."""
    stages = stages_of(config)
    if bool((start.is_exif | start.is_known).all()):
        stages = tuple(replace(s, priors=replace(s.priors, log_focal=EXIF_LOG_FOCAL)) for s in stages)
    fixed = replace(Fixed.build(len(start.is_known)), focal=start.is_known)
    # Small problems are faster on one core; on a busy machine by far.
    torch.set_num_threads(1 if samples.weight.numel() < MANY_SAMPLES else WORKERS)
    return max((adjust(cameras, samples, stages, fixed) for cameras in starts), key=_score)


def _score(adjustment: Adjustment) -> float:
    return adjustment.steps[-1][1].score if adjustment.steps else float("-inf")


# ----------------------------------------------------------------------------------------------------------------
# Polish and result


def finish(
    content: Content,
    start: Start,
    views: Sequence[TwoView],
    adjustment: Adjustment | None,
    config: Config,
    watch: Watch,
) -> Reconstruction:
    """Polish every component, give left-out frames a second chance, and say what became of every photograph."""
    count = len(content.photos)
    reasons = _reasons(count, views, adjustment)
    cameras = adjustment.cameras if adjustment is not None else _no_cameras(start, content)
    kept = [view for view in views if not reasons[view.i] and not reasons[view.j]]
    with watch.stage("polish") as facts:
        finished, cameras = _finish_components(content, start, kept, cameras, config)
        facts["components"] = [_component_facts(item) for item in finished]
    with watch.stage("retry") as facts:
        added, cameras = _second_chances(content, finished, cameras)
        facts["placed"] = len({second.frame for second in added})
        if added:
            kept = [*kept, *(view for second in added for view in second.views)]
            finished, cameras = _finish_components(content, start, kept, cameras, config)
            facts["components"] = [_component_facts(item) for item in finished]
    for item in finished:
        color_points(item.model, content.colors)
    component = find_components(kept, count)
    frames = Frames(tuple(photo.name for photo in content.photos), start.intrinsics.sizes, start.intrinsics.group)
    registered, numbers = torch.from_numpy(component >= 0), torch.from_numpy(component)
    report = {"images": _image_rows(content, component, reasons, adjustment)}
    models = tuple(item.model for item in finished)
    return Reconstruction(frames, pose_graph(kept), cameras, registered, numbers, models, report)


def _finish_components(
    content: Content, start: Start, views: Sequence[TwoView], cameras: Cameras, config: Config
) -> tuple[list[Polished], Cameras]:
    """Polish all components, largest first."""
    component = find_components(views, len(content.photos))
    finished: list[Polished] = []
    for number in range(int(component.max(initial=-1)) + 1):
        frames = np.flatnonzero(component == number).tolist()
        finished.append(_finish_component(content, start, views, cameras, frames, config))
        cameras = finished[-1].cameras
    return finished, cameras


def _finish_component(
    content: Content, start: Start, views: Sequence[TwoView], cameras: Cameras, frames: list[int], config: Config
) -> Polished:
    names = [photo.name for photo in content.photos]
    known = bool(start.is_known[frames].all())
    shared = bool((torch.bincount(start.intrinsics.group)[start.intrinsics.group[frames]] >= MANY_SHARE).all())
    if config.polish:
        freedom = Freedom(focal=not known, lens=not known and shared)
        settings = PolishSettings(freedom, config.tracks_per_frame, config.seed)
        return polish(names, frames, cameras, views, content.keypoints, settings)
    model = triangulate(names, frames, cameras, views, content.keypoints)
    return Polished(model, cameras, False, "switched off", (float("nan"), float("nan")))


def _second_chances(content: Content, finished: Sequence[Polished], cameras: Cameras) -> tuple[list[Second], Cameras]:
    """Frames that all their matches together can place in a component."""
    placed = {image_id - 1 for item in finished for image_id in item.model.images}
    lenses, pose = lenses_of(cameras.intrinsics), cameras.cam_from_world.clone()
    added = []
    for frame in sorted(set(range(len(content.photos))) - placed):
        matches = _matches_of(content, frame)
        for item in finished:
            second = place_by_points(frame, item.model, matches, content.keypoints, lenses)
            if second is not None:
                added.append(second)
                pose[frame] = torch.from_numpy(second.cam_from_world)
                break
    return added, replace(cameras, cam_from_world=pose)


def _matches_of(content: Content, frame: int) -> dict[int, Int64[np.ndarray, "M 2"]]:
    """All matches of a frame as (own keypoint, other's keypoint), by the other frame."""
    found = {}
    for number in np.flatnonzero((content.pairs == frame).any(1)).tolist():
        i, j = content.pairs[number].tolist()
        found[j if frame == i else i] = content.matches[number] if frame == i else content.matches[number][:, ::-1]
    return found


def _component_facts(item: Polished) -> dict[str, Any]:
    return {
        "images": item.model.num_images(),
        "points": item.model.num_points3D(),
        "mean_track_length": item.model.compute_mean_track_length(),
        "mean_error_px": item.model.compute_mean_reprojection_error(),
        "polished": item.used,
        "reason": item.reason,
        "held_out_px": list(item.held_out_px),
    }


def _no_cameras(start: Start, content: Content) -> Cameras:
    count = len(content.photos)
    pose = torch.eye(4, dtype=torch.float64)[:3].repeat(count, 1, 1)
    one = torch.ones(count, dtype=torch.float64)
    return Cameras(pose, start.intrinsics, one, torch.zeros_like(one), content.is_disparity)


def _reasons(count: int, views: Sequence[TwoView], adjustment: Adjustment | None) -> list[str]:
    """Why each photograph has no pose; empty for those that have one."""
    seen = {frame for view in views for frame in (view.i, view.j)}
    reasons = []
    for frame in range(count):
        if frame not in seen:
            reasons.append("no other photograph shares enough matches that agree with one relative pose")
        elif adjustment is None:
            reasons.append("none of its verified matches has depth")
        else:
            reasons.append("" if adjustment.registered[frame] else adjustment.reason[frame])
    return reasons


def _image_rows(
    content: Content, component: Int64[np.ndarray, " N"], reasons: Sequence[str], adjustment: Adjustment | None
) -> list[dict[str, Any]]:
    rows = []
    for frame, photo in enumerate(content.photos):
        row: dict[str, Any] = {
            "name": photo.name,
            "status": "registered" if component[frame] >= 0 else "not registered",
            "component": int(component[frame]),
            "reason": reasons[frame] or ("" if component[frame] >= 0 else "its neighbours could not be registered"),
        }
        if adjustment is not None and component[frame] >= 0:
            row["inlier_share"] = float(adjustment.diagnosis.inlier_share[frame])
            row["depth_error"] = float(adjustment.diagnosis.depth_error[frame])
            row["sigma"] = spread_of(adjustment.pose_covariance[frame].numpy())
        rows.append(row)
    return rows
