"""Matchers against each other on pairs of photographs: matches, poses and time.

    python benchmarks/matchers.py --data FOLDER --cache CACHE

FOLDER holds the Strecha sets (images/, gt.json) and scannet_pairs15 (images/, pairs.json), at most 1024 px wide. Pairs
of a Strecha set are those whose cameras look within 60 degrees of each other, 12 drawn by a seed where there are more;
those of them in which no matcher has 30 matches near the true epipolar lines show nothing in common and are left out,
for all matchers alike. All 15 of ScanNet count. Intrinsics are known; the pose is RANSAC's with its usual settings. The
pose error is the larger of rotation and translation angle; a pair without an answer is 180 degrees off. Seconds are CPU
time on one core.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from common import report

from mbasfm.bench.tasks.pair_sets import MIN_TRUE_MATCHES, PairSet, pair_set
from mbasfm.datasets.pair_lists import ImagePair, PairSets
from mbasfm.estimators.ransac import RansacSettings, estimate_poses
from mbasfm.evaluation.metrics import auc, relative_errors
from mbasfm.geometry.rigid import rotation_angle
from mbasfm.io.files import Arrays, Cache
from mbasfm.io.images import inspect_photos, read_upright
from mbasfm.models.base import Matcher, load_model
from mbasfm.runtime.parallel import in_parallel
from mbasfm.types.observations import Features, Photo

SETS = ("strecha_fountain11", "strecha_herzjesu8", "strecha_entry10", "strecha_castle19", "scannet_pairs15")
MATCHERS = ("sift", "xfeat", "xfeat:lighterglue", "aliked", "disk")
MAX_TURN_DEG, MAX_PAIRS = 60.0, 12
LIMITS_DEG = (5.0, 10.0, 20.0)


@dataclass(frozen=True)
class Options:
    """What to run."""

    data: Path
    cache: Path
    """What was matched is kept here, with the time it took."""
    matchers: tuple[str, ...] = MATCHERS
    sets: tuple[str, ...] = SETS
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """What one matcher found in the pairs of a set."""

    pairs: PairSet
    describe_s: float
    """Of one photograph."""
    match_s: float
    """Of one pair."""


def read_pairs(sets: PairSets, name: str, seed: int) -> list[ImagePair]:
    """Those of the list, or some that look the same way."""
    pairs = sets.pairs(name)
    if sets.has_list(name):
        return pairs
    turn_deg = rotation_angle(torch.from_numpy(np.stack([pair.b_from_a[:, :3] for pair in pairs]))).rad2deg()
    near = (turn_deg < MAX_TURN_DEG).nonzero()[:, 0].numpy()
    return [pairs[row] for row in near[np.sort(np.random.default_rng(seed).permutation(len(near))[:MAX_PAIRS])]]


def run_matcher(matcher: Matcher, pairs: list[ImagePair], cache: Cache) -> Found:
    paths = list(dict.fromkeys(path for pair in pairs for path in pair.paths))
    photo_of = dict(zip(paths, inspect_photos(paths), strict=True))

    def describe(photo: Photo) -> dict[str, np.ndarray]:
        def compute() -> Arrays:
            found = matcher.describe(photo, read_upright(photo.path))
            return {"pixels": found.pixels, "descriptors": found.descriptors}

        return cache.get(f"bench features|{matcher.key}|{photo.digest}", lambda: timed(compute))

    described = dict(zip(paths, in_parallel(describe, photo_of.values()), strict=True))

    def features_of(path: Path) -> Features:
        photo, arrays = photo_of[path], described[path]
        return Features(arrays["pixels"], arrays["descriptors"], photo.name, (photo.width, photo.height))

    def match(pair: ImagePair) -> dict[str, np.ndarray]:
        def compute() -> Arrays:
            found = matcher.match(*map(features_of, pair.paths))
            return {"indices": found.indices, "confidence": found.confidence}

        digests = [photo_of[path].digest for path in pair.paths]
        return cache.get(f"bench matches|{matcher.key}|{digests}", lambda: timed(compute))

    matched = list(in_parallel(match, pairs))
    pixels = []
    for pair, found in zip(pairs, matched, strict=True):
        first, second = (described[path]["pixels"].astype(np.float64) for path in pair.paths)
        pixels.append((first[found["indices"][:, 0]], second[found["indices"][:, 1]]))
    seconds = (float(np.mean([item["seconds"] for item in part])) for part in (described.values(), matched))
    return Found(pair_set(pairs, photo_of, pixels), *seconds)


def timed(compute: Callable[[], Arrays]) -> Arrays:
    """CPU time of this thread, which is all there is: workers compute on one core."""
    begin = time.thread_time()
    return {**compute(), "seconds": np.array(time.thread_time() - begin)}


def compare(options: Options, name: str, cache: Cache) -> list[dict[str, Any]]:
    """A row for each matcher on one set."""
    sets = PairSets(options.data)
    pairs = read_pairs(sets, name, options.seed)
    found = {spec: run_matcher(load_model("matcher", spec), pairs, cache) for spec in options.matchers}
    num_true = {spec: item.pairs.num_true().numpy() for spec, item in found.items()}
    shared = np.max(list(num_true.values()), axis=0) >= (0 if sets.has_list(name) else MIN_TRUE_MATCHES)
    rows = []
    for spec, item in found.items():
        used = item.pairs.subset(shared.nonzero()[0])
        poses = estimate_poses(used.batch(), RansacSettings())
        row = {"set": name, "matcher": spec, "pairs": len(used)}
        row |= {"matches": int(np.median([len(first) for first, _ in used.pixels]))}
        row |= {"true": int(np.median(num_true[spec][shared]))}
        row |= measures(relative_errors(poses.j_from_i, used.truth, poses.found).pose_deg().tolist())
        rows.append(row | {"s/photo": round(item.describe_s, 2), "s/pair": round(item.match_s, 3)})
        print({key: value for key, value in rows[-1].items() if key != "errors_deg"}, flush=True)
    return rows


def measures(errors_deg: list[float]) -> dict[str, Any]:
    errors = torch.tensor(errors_deg)
    areas = {f"AUC@{limit:.0f}": round(100 * auc(errors, limit), 1) for limit in LIMITS_DEG}
    return areas | {"failed": int((errors > LIMITS_DEG[-1]).sum()), "errors_deg": errors_deg}


def main(options: Options) -> None:
    cache = Cache(options.cache)
    rows = [row for name in options.sets for row in compare(options, name, cache)]
    for spec in options.matchers:
        errors = [error for row in rows if row["matcher"] == spec for error in row["errors_deg"]]
        rows.append({"set": "all", "matcher": spec, "pairs": len(errors)} | measures(errors))
    errors_deg = {f"{row['set']} {row['matcher']}": row.pop("errors_deg") for row in rows}
    report("matchers", "Matchers on pairs of photographs", rows, {"errors_deg": errors_deg})


if __name__ == "__main__":
    main(tyro.cli(Options))
