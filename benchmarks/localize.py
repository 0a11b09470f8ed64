"""Ours against a classical pipeline made of pycolmap's parts: same map, same features, same matches, one run.

    python benchmarks/localize.py --data FOLDER --depth onnx:FILE

FOLDER holds the sets with images/, gt.json, depth/ (millimetres) and reloc.json with the lists "map" and "query" (and
"map_dir" if the map is another set). The classical pipeline gets points of the map by triangulation from the known
poses or by the same depth maps, and finds each query's pose by RANSAC and refinement at two thresholds; it is compared
by its best row, chosen with the ground truth. A query that is not localized counts as wrong everywhere.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
import tyro
from common import report

from mbasfm import LocalizeConfig, Map
from mbasfm.absolute import Sightings
from mbasfm.io.cache import Cache
from mbasfm.io.images import Photo, find_photos
from mbasfm.mapping import triangulate_map
from mbasfm.mapsource import choose_photos, read_map
from mbasfm.queries import match_queries
from mbasfm.twoview import Lens
from mbasfm.watch import Watch

SETS = ("tum_fr1_rpy", "sevenscenes_redkitchen")
THRESHOLDS_PX = (4.0, 12.0)
"""Of RANSAC; the second is pycolmap's default and that of the usual pipelines."""
BARS = ((5, 5), (10, 5))
"""Recall within so many centimetres and degrees."""
GROSS_CM, GROSS_DEG = 50, 30
STRANGER_STEP = 4
"""Every fourth query of another set is asked for in the map."""


@dataclass(frozen=True)
class Options:
    """What to run."""

    data: Path
    depth: str = ""
    """Depth model for the runs without map depth; empty: none of them."""
    matcher: str = "sift"
    sets: tuple[str, ...] = SETS
    neighbours: int = 40
    peer: bool = True
    cache: Path | None = None
    """Keep prepared maps, features and matches here; by default in a folder that is thrown away."""


@dataclass(frozen=True)
class Task:
    """A map, queries and where they were taken."""

    name: str
    folder: Path
    map_names: Sequence[str]
    photos: tuple[Photo, ...]
    truth: dict[str, Any]
    calibration: Path


def load_task(folder: Path) -> Task:
    lists = json.loads((folder / "reloc.json").read_text())
    truth = json.loads((folder / "gt.json").read_text())["images"]
    photos = choose_photos(find_photos(folder / "images")[0], lists["query"], folder)
    source = (folder / lists.get("map_dir", ".")).resolve()
    return Task(folder.name, source, lists["map"], photos, truth, folder / "gt.json")


def errors(pose: np.ndarray | None, truth: dict[str, Any]) -> tuple[float, float]:
    """Distance of camera centres [cm] and angle [deg]."""
    if pose is None:
        return float("inf"), 180.0
    rotation, translation = np.array(truth["R"]), np.array(truth["t"])
    distance = np.linalg.norm(pose[:, :3].T @ pose[:, 3] - rotation.T @ translation)
    cosine = (np.trace(rotation.T @ pose[:, :3]) - 1) / 2
    return 100 * float(distance), float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))


def summary(task: Task, method: str, poses: Sequence[np.ndarray | None], seconds: float) -> dict[str, Any]:
    centimetres, degrees = np.array(
        [errors(pose, task.truth[photo.name]) for pose, photo in zip(poses, task.photos, strict=True)]
    ).T
    found = np.array([pose is not None for pose in poses])
    row = {"set": task.name, "method": method, "localized": f"{int(found.sum())}/{len(poses)}"}
    row |= {"median cm": float(np.median(centimetres)), "median deg": float(np.median(degrees))}
    for limit_cm, limit_deg in BARS:
        inside = (centimetres < limit_cm) & (degrees < limit_deg)
        row[f"{limit_cm} cm, {limit_deg} deg"] = float(inside.mean())
    wrong = found & ((centimetres > GROSS_CM) | (degrees > GROSS_DEG))
    return row | {"gross": int(wrong.sum()), "s per query": seconds / len(poses)}


# ----------------------------------------------------------------------------------------------------------------
# Ours


def run_ours(task: Task, config: LocalizeConfig, cache: Path) -> Iterator[dict[str, Any]]:
    """Joint, independent, and resident; features and matches come from the cache in all but the last."""
    label = "sensor depth" if config.depth == "auto" else config.depth.partition(":")[0]
    begin = time.perf_counter()
    chart = Map.load(task.folder, config, cache, task.map_names)
    print(f"{task.name}, {label}: map ready after {time.perf_counter() - begin:.1f} s", flush=True)
    chart.localize_photos(task.photos, chart.cache, Watch())
    for independent in (False, True):
        begin = time.perf_counter()
        this = replace(chart, config=replace(config, independent=independent))
        poses = [item.cam_from_world for item in this.localize_photos(task.photos, chart.cache, Watch()).queries]
        name = f"ours, {'independent' if independent else 'joint'}, {label}"
        yield summary(task, name, poses, time.perf_counter() - begin)


def latency(task: Task, config: LocalizeConfig, cache: Path) -> dict[str, Any]:
    """Seconds from a file to its pose with a resident map, everything included."""
    chart = Map.load(task.folder, config, cache, task.map_names)
    seconds = []
    for photo in task.photos:
        begin = time.perf_counter()
        chart.localize(photo.path)
        seconds.append(time.perf_counter() - begin)
    return {"set": task.name, "median s": float(np.median(seconds)), "largest s": max(seconds)}


def strangers(task: Task, others: Sequence[Task], config: LocalizeConfig, cache: Path) -> dict[str, Any]:
    """How many queries of other places are said to be in this map; none should be."""
    chart = Map.load(task.folder, config, cache, task.map_names)
    found = count = 0
    for other in others:
        this = replace(chart, config=replace(config, cameras=str(other.calibration), independent=True))
        placed = this.localize_photos(other.photos[::STRANGER_STEP], chart.cache, Watch()).queries
        found, count = found + sum(item.localized for item in placed), count + len(placed)
    return {"set": task.name, "strangers": count, "said to be in the map": found}


# ----------------------------------------------------------------------------------------------------------------
# The classical pipeline


def run_peer(task: Task, config: LocalizeConfig, cache: Path) -> Iterator[dict[str, Any]]:
    """Points by triangulation or depth; the same features and matches as ours."""
    chart = Map.load(task.folder, config, cache, task.map_names)
    prepared, store = chart.prepared, Cache(cache)
    source = read_map(task.folder, task.map_names)
    model = triangulate_map(source, prepared.cameras, prepared.indexes[0], config.common(), store, Watch())
    rows = [task.truth[photo.name] for photo in task.photos]
    lenses = [
        Lens(np.array(row["K"][:2]), np.array(row["K"][2:]), np.zeros(4), np.array([row["width"], row["height"]]))
        for row in rows
    ]
    queries = match_queries(prepared, task.photos, lenses, config, store)
    lifted = [query.sightings(prepared) for query in queries]
    triangulated = [with_points_of(model, sightings) for sightings in lifted]
    for label, sightings in (("lifted by depth", lifted), ("triangulated", triangulated)):
        for threshold in THRESHOLDS_PX:
            begin = time.perf_counter()
            poses = [classical_pose(*item, threshold) for item in zip(sightings, lenses, strict=True)]
            yield summary(task, f"pycolmap, {label}, {threshold:g} px", poses, time.perf_counter() - begin)


def with_points_of(model: pycolmap.Reconstruction, sightings: Sightings) -> Sightings:
    """The same matches with the points of tracks."""
    points = np.full((len(sightings), 3), np.nan)
    for row, (frame, keypoint) in enumerate(zip(sightings.frame, sightings.theirs, strict=True)):
        seen = model.images[frame + 1].points2D
        if keypoint < len(seen) and seen[keypoint].has_point3D():
            points[row] = model.points3D[seen[keypoint].point3D_id].xyz
    return replace(sightings, points=points)


def classical_pose(sightings: Sightings, lens: Lens, threshold_px: float) -> np.ndarray | None:
    """LO-RANSAC and refinement; a keypoint that leads to one point several times counts once."""
    known = sightings.take(sightings.has_point)
    _, first = np.unique(np.column_stack([known.own, known.points]), axis=0, return_index=True)
    known = known.take(first)
    if len(known) < 4:
        return None
    options = pycolmap.AbsolutePoseEstimationOptions()
    options.ransac.max_error, options.ransac.random_seed = threshold_px, 0
    camera = pycolmap.Camera(**lens.camera())
    found = pycolmap.estimate_and_refine_absolute_pose(known.pixels, known.points, camera, options)
    return None if found is None else found["cam_from_world"].matrix()


# ----------------------------------------------------------------------------------------------------------------


def verdict(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How ours compares with the classical pipeline's best values, set by set."""
    for name in dict.fromkeys(row["set"] for row in rows):
        ours = [row for row in rows if row["set"] == name and row["method"].startswith("ours")]
        peers = [row for row in rows if row["set"] == name and row["method"].startswith("pycolmap")]
        if not peers:
            continue
        best = min(peers, key=lambda row: (-row["5 cm, 5 deg"], row["median cm"]))
        yield f"{name}: the classical pipeline's best is {best['method']}"
        for row in ours:
            ratios = [row[key] / best[key] for key in ("median cm", "median deg")]
            recall = all(row[f"{cm} cm, {deg} deg"] >= best[f"{cm} cm, {deg} deg"] for cm, deg in BARS)
            yield (
                f"  {row['method']}: medians {ratios[0]:.2f} and {ratios[1]:.2f} times its, "
                f"recall {'at least' if recall else 'below'} its, {row['gross']} gross errors"
            )


def main() -> None:
    options = tyro.cli(Options)
    rows: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache or Path(folder)
        for name in options.sets:
            task = load_task(options.data / name)
            config = LocalizeConfig(
                matcher=options.matcher, cameras=str(task.calibration), map_neighbours=options.neighbours
            )
            runs = [run_ours(task, config, cache)]
            runs += [run_peer(task, config, cache)] if options.peer else []
            runs += [run_ours(task, replace(config, depth=options.depth), cache)] if options.depth else []
            for run in runs:
                for row in run:
                    rows.append(row)
                    print(row, flush=True)
            others = [load_task(options.data / other) for other in SETS if other != name]
            times.append(latency(task, config, cache) | strangers(task, others, config, cache))
    lines = list(verdict(rows))
    report("localize", "Re-localization", rows, {"latency": times, "verdict": lines})
    print("\n".join([*lines, *(str(row) for row in times)]))


if __name__ == "__main__":
    main()
