"""Matchers against each other on pairs of photographs: matches, poses and time.

    python benchmarks/matchers.py --data FOLDER --cache CACHE

FOLDER holds the Strecha sets (images/, gt.json) and scannet_pairs15 (images/, pairs.json), at most 1024 px wide. Pairs
of a Strecha set are those whose cameras look within 60 degrees of each other, 12 drawn by a seed where there are more;
those of them in which no matcher has 30 matches near the true epipolar lines show nothing in common and are left out,
for all matchers alike. All 15 of ScanNet count. Intrinsics are known; the pose is RANSAC's with its usual settings. The
pose error is the larger of rotation and translation angle; a pair without an answer is 180 degrees off. Seconds are CPU
time on one core.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from common import report

from mbasfm.epipolar import MatchBatch, essential_from_pose, sampson_forms, sampson_squared
from mbasfm.geometry import compose, invert, rotation_angle
from mbasfm.infer import in_parallel
from mbasfm.io.cache import Arrays, Cache
from mbasfm.io.images import Photo, find_photos, read_upright
from mbasfm.metrics import auc
from mbasfm.models.base import Features
from mbasfm.models.registry import load_model
from mbasfm.ransac import RansacSettings, estimate_poses

STRECHA = ("strecha_fountain11", "strecha_herzjesu8", "strecha_entry10", "strecha_castle19")
SCANNET = "scannet_pairs15"
MATCHERS = ("sift", "xfeat", "xfeat:lighterglue", "aliked", "disk")
MAX_TURN_DEG, MAX_PAIRS = 60.0, 12
MIN_TRUE_MATCHES, TRUE_PX = 30, 2.0
"""Distances at a long side of 1024."""
LIMITS_DEG = (5.0, 10.0, 20.0)
REFERENCE_LONG_SIDE = 1024


@dataclass(frozen=True)
class Options:
    """What to run."""

    data: Path
    cache: Path
    """What was matched is kept here, with the time it took."""
    matchers: tuple[str, ...] = MATCHERS
    sets: tuple[str, ...] = (*STRECHA, SCANNET)
    seed: int = 0


@dataclass(frozen=True)
class Pair:
    """Two photographs of a set, their intrinsics fx, fy, cx, cy [px], and their true relative pose."""

    names: tuple[str, str]
    calibration: tuple[np.ndarray, np.ndarray]
    j_from_i: torch.Tensor


@dataclass(frozen=True)
class Found:
    """What one matcher found in the pairs of a set."""

    batches: list[MatchBatch]
    describe_s: float
    """Of one photograph."""
    match_s: float
    """Of one pair."""


def read_set(folder: Path, seed: int) -> list[Pair]:
    if folder.name == SCANNET:
        rows = json.loads((folder / "pairs.json").read_text())["pairs"]
        shift = np.array([0.0, 0.0, 0.5, 0.5])  # its first pixel's centre is (0, 0)
        cameras = [tuple(np.array(row[key]) + shift for key in ("Ka", "Kb")) for row in rows]
        return [Pair((row["a"], row["b"]), both, pose(row)) for row, both in zip(rows, cameras, strict=True)]
    rows = json.loads((folder / "gt.json").read_text())["images"]
    names = sorted(rows)
    both = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    cameras, poses = {n: np.array(rows[n]["K"]) for n in names}, {n: pose(rows[n]) for n in names}
    pairs = [Pair((a, b), (cameras[a], cameras[b]), compose(poses[b], invert(poses[a]))) for a, b in both]
    near = [pair for pair in pairs if float(rotation_angle(pair.j_from_i[:, :3]).rad2deg()) < MAX_TURN_DEG]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(near))[:MAX_PAIRS])
    return [near[k] for k in chosen]


def pose(row: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(np.column_stack([row["R"], row["t"]]))


def run_matcher(spec: str, folder: Path, pairs: list[Pair], cache: Cache) -> Found:
    matcher, named = load_model("matcher", spec), {name for pair in pairs for name in pair.names}
    photos = [photo for photo in find_photos(folder / "images")[0] if photo.name in named]

    def describe(photo: Photo) -> dict[str, np.ndarray]:
        def compute() -> Arrays:
            found = matcher.describe(photo, read_upright(photo.path))
            return {"pixels": found.pixels, "descriptors": found.descriptors}

        return cache.get(f"bench features|{matcher.key}|{photo.digest}", lambda: timed(compute))

    by_name = dict(zip((photo.name for photo in photos), in_parallel(describe, photos), strict=True))
    size = {photo.name: (photo.width, photo.height) for photo in photos}
    digest = {photo.name: photo.digest for photo in photos}
    features = {n: Features(a["pixels"], a["descriptors"], n, size[n]) for n, a in by_name.items()}

    def match(pair: Pair) -> dict[str, np.ndarray]:
        def compute() -> Arrays:
            found = matcher.match(*(features[name] for name in pair.names))
            return {"indices": found.indices, "confidence": found.confidence}

        return cache.get(f"bench matches|{matcher.key}|{[digest[n] for n in pair.names]}", lambda: timed(compute))

    matched = list(in_parallel(match, pairs))
    batches = [as_batch(pair, item["indices"], features, size) for pair, item in zip(pairs, matched, strict=True)]
    describe_s, match_s = (float(np.mean([a["seconds"] for a in part])) for part in (by_name.values(), matched))
    return Found(batches, describe_s, match_s)


def timed(compute: Callable[[], Arrays]) -> Arrays:
    """CPU time of this thread, which is all there is: workers compute on one core."""
    begin = time.thread_time()
    return {**compute(), "seconds": np.array(time.thread_time() - begin)}


def as_batch(
    pair: Pair, indices: np.ndarray, features: dict[str, Features], size: dict[str, tuple[int, int]]
) -> MatchBatch:
    rays, focal = [], []
    for side, (name, camera) in enumerate(zip(pair.names, pair.calibration, strict=True)):
        rays.append([torch.from_numpy((features[name].pixels[indices[:, side]] - camera[2:]) / camera[:2])])
        focal.append(camera[:2].mean() * REFERENCE_LONG_SIDE / max(size[name]))
    return MatchBatch.stack(rays[0], rays[1], torch.tensor([focal], dtype=torch.float64))


def true_matches(pair: Pair, matches: MatchBatch) -> int:
    essential = essential_from_pose(pair.j_from_i[None].double())[:, None]
    return int((sampson_squared(essential, sampson_forms(matches, torch.float64))[:, 0] < TRUE_PX**2).sum())


def pose_error_deg(pair: Pair, matches: MatchBatch) -> float:
    if matches.is_match.shape[1] < 5:
        return 180.0
    found = estimate_poses(matches, RansacSettings())
    if not bool(found.found):
        return 180.0
    a, b = found.j_from_i[0], pair.j_from_i
    turn = rotation_angle(a[:, :3] @ b[:, :3].T)
    shift = torch.atan2(torch.linalg.cross(a[:, 3], b[:, 3]).norm(), a[:, 3] @ b[:, 3])
    return float(torch.maximum(turn, shift).rad2deg())


def main(options: Options) -> None:
    cache, rows = Cache(options.cache), []
    for name in options.sets:
        pairs = read_set(options.data / name, options.seed)
        found = {spec: run_matcher(spec, options.data / name, pairs, cache) for spec in options.matchers}
        counts = {spec: [*map(true_matches, pairs, item.batches)] for spec, item in found.items()}
        least = 0 if name == SCANNET else MIN_TRUE_MATCHES
        used = [k for k in range(len(pairs)) if max(count[k] for count in counts.values()) >= least]
        for spec, item in found.items():
            tried = [(pairs[k], item.batches[k]) for k in used]
            errors = torch.tensor([*in_parallel(lambda both: pose_error_deg(*both), tried)])
            row = {"set": name, "matcher": spec, "pairs": len(used)}
            row |= {"matches": int(np.median([item.batches[k].is_match.shape[1] for k in used]))}
            row |= {"true": int(np.median([counts[spec][k] for k in used]))}
            row |= {f"AUC@{limit:.0f}": round(100 * auc(errors, limit), 1) for limit in LIMITS_DEG}
            row |= {"failed": int((errors > LIMITS_DEG[-1]).sum())}
            row |= {"s/photo": round(item.describe_s, 2), "s/pair": round(item.match_s, 3)}
            rows.append(row | {"errors_deg": errors.tolist()})
            print(row, flush=True)
    rows += [pooled(spec, [row for row in rows if row["matcher"] == spec]) for spec in options.matchers]
    errors = {f"{row['set']} {row['matcher']}": row.pop("errors_deg") for row in rows}
    report("matchers", "Matchers on pairs of photographs", rows, {"errors_deg": errors})


def pooled(spec: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [error for row in rows for error in row["errors_deg"]]
    areas = {f"AUC@{limit:.0f}": round(100 * auc(torch.tensor(errors), limit), 1) for limit in LIMITS_DEG}
    failed = sum(row["failed"] for row in rows)
    return {"set": "all", "matcher": spec, "pairs": len(errors)} | areas | {"failed": failed, "errors_deg": errors}


if __name__ == "__main__":
    main(tyro.cli(Options))
