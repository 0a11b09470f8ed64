"""Pairs of photographs with true relative poses and matches of the default matcher, for the two-view benchmark.

FOLDER holds the Strecha sets and sevenscenes_redkitchen (images/, gt.json) and scannet_pairs15 (images/, pairs.json).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mbasfm.epipolar import MatchBatch, essential_from_pose, sampson_forms, sampson_squared
from mbasfm.geometry import compose, invert
from mbasfm.infer import describe_photos, match_pairs
from mbasfm.io.cache import Cache
from mbasfm.io.images import find_photos
from mbasfm.models.registry import JOINT, choose_auto, load_model

STRECHA = ("strecha_fountain11", "strecha_herzjesu8", "strecha_entry10", "strecha_castle19")
KITCHEN, SCANNET = "sevenscenes_redkitchen", "scannet_pairs15"
MIN_GAP, MAX_GAP = 10, 40
"""Frames between the two photographs of a pair of redkitchen."""
MANY_MATCHES = 100
"""Pairs with fewer get the second matcher's as well, as in a run with two photographs."""
NUM_MATCHES = 1000
MIN_TRUE_MATCHES, TRUE_PX = 30, 2.0
"""Strecha pairs overlap enough if so many matches lie that near the true epipolar lines [px at a long side of 1024]."""


@dataclass(frozen=True)
class PairSet:
    """Pairs of one set; intrinsics are known."""

    name: str
    pixels: list[tuple[np.ndarray, np.ndarray]]
    """At most 1,000 matches of each pair [px], first pixel's centre at (0.5, 0.5)."""
    calibration: np.ndarray
    """(P, 2, 4): fx, fy, cx, cy of both photographs [px]."""
    long_side: np.ndarray
    """(P, 2) [px]."""
    truth: torch.Tensor
    """(P, 3, 4): j_from_i."""

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, chosen: np.ndarray) -> "PairSet":
        """Some of the pairs."""
        pixels = [self.pixels[k] for k in chosen]
        return PairSet(self.name, pixels, self.calibration[chosen], self.long_side[chosen], self.truth[chosen])

    def batch(self) -> MatchBatch:
        """As our estimator takes it; thresholds are at a long side of 1024."""
        rays = [
            tuple(torch.from_numpy((points - k[2:]) / k[:2]) for points, k in zip(both, cameras, strict=True))
            for both, cameras in zip(self.pixels, self.calibration, strict=True)
        ]
        focal = torch.from_numpy(self.calibration[..., :2].mean(-1) * 1024 / self.long_side)
        return MatchBatch.stack([pair[0] for pair in rays], [pair[1] for pair in rays], focal)


def load_sets(data: Path, cache: Path, seed: int = 0) -> list[PairSet]:
    """All sets, with matches from the cache where they are in it."""
    sets = [_from_poses(data / name, _all_pairs, cache, seed) for name in STRECHA]
    sets = [_overlapping(item) for item in sets]
    return [*sets, _from_poses(data / KITCHEN, _sequence_pairs, cache, seed), _scannet(data / SCANNET, cache, seed)]


def _all_pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    return ((a, b) for k, a in enumerate(names) for b in names[k + 1 :])


def _sequence_pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    number = {name: int(Path(name).stem.rpartition("-")[2]) for name in names}
    return ((a, b) for a, b in _all_pairs(names) if MIN_GAP <= number[b] - number[a] <= MAX_GAP)


def _from_poses(folder: Path, choose: object, cache: Path, seed: int) -> PairSet:
    rows = json.loads((folder / "gt.json").read_text())["images"]
    pairs = list(choose(sorted(rows)))  # type: ignore[operator]
    poses = {name: torch.tensor(np.column_stack([row["R"], row["t"]])) for name, row in rows.items()}
    truth = torch.stack([compose(poses[b], invert(poses[a])) for a, b in pairs])
    calibration = np.array([[rows[name]["K"] for name in pair] for pair in pairs], dtype=np.float64)
    sides = np.array([[max(rows[n]["width"], rows[n]["height"]) for n in pair] for pair in pairs], dtype=np.float64)
    return PairSet(folder.name, _matches(folder / "images", pairs, cache, seed), calibration, sides, truth)


def _scannet(folder: Path, cache: Path, seed: int) -> PairSet:
    rows = json.loads((folder / "pairs.json").read_text())["pairs"]
    pairs = [(row["a"], row["b"]) for row in rows]
    truth = torch.stack([torch.tensor(np.column_stack([row["R"], row["t"]])) for row in rows])
    # Its first pixel's centre is (0, 0); ours is (0.5, 0.5).
    shift = np.array([0.0, 0.0, 0.5, 0.5])
    calibration = np.stack([np.stack([np.array(row[key]) + shift for key in ("Ka", "Kb")]) for row in rows])
    sizes = {photo.name: max(photo.width, photo.height) for photo in find_photos(folder / "images")[0]}
    sides = np.array([[sizes[name] for name in pair] for pair in pairs], dtype=np.float64)
    return PairSet(folder.name, _matches(folder / "images", pairs, cache, seed), calibration, sides, truth)


def _overlapping(item: PairSet) -> PairSet:
    batch = item.batch()
    essential = essential_from_pose(item.truth)[:, None]
    near = sampson_squared(essential, sampson_forms(batch, torch.float64))[:, 0] < TRUE_PX**2
    return item.subset(((near & batch.is_match).sum(1) >= MIN_TRUE_MATCHES).nonzero()[:, 0].numpy())


def _matches(folder: Path, pairs: list[tuple[str, str]], cache: Path, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Matched pixels of every pair by the default matcher, a random thousand where there are more."""
    photos, _ = find_photos(folder)
    number = {photo.name: k for k, photo in enumerate(photos)}
    index = np.array([(number[a], number[b]) for a, b in pairs])
    store = Cache(cache)
    found: list[list[np.ndarray]] = [[] for _ in pairs]
    wanted = np.arange(len(pairs))
    for part in JOINT.split(choose_auto("matcher")[0]):
        matcher = load_model("matcher", part)
        features = [item.features for item in describe_photos(photos, matcher, store)]
        for k, (rows, _) in zip(wanted, match_pairs(index[wanted], features, photos, matcher, store), strict=True):
            ends = [features[end].pixels[rows[:, side]] for side, end in enumerate(index[k])]
            found[k].append(np.concatenate(ends, 1).astype(np.float64))
        wanted = np.array([k for k in range(len(pairs)) if sum(map(len, found[k])) < MANY_MATCHES], dtype=np.int64)
        if len(wanted) == 0:
            break
    return [_thousand(np.concatenate(parts), seed + k) for k, parts in enumerate(found)]


def _thousand(both: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.random.default_rng(seed).permutation(len(both))[:NUM_MATCHES]
    return both[chosen, :2], both[chosen, 2:]
