"""Pairs of photographs with true relative poses and matches, for the task of two views."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mbasfm.bench.recipe import PairSettings
from mbasfm.datasets.pair_lists import ImagePair, PairSets
from mbasfm.errors import InputError
from mbasfm.estimators.sampson import MatchBatch, sampson_forms, sampson_squared
from mbasfm.geometry.camera import essential_from_pose
from mbasfm.io.calibration import at_resolution
from mbasfm.io.files import Cache
from mbasfm.io.images import inspect_photos
from mbasfm.matching.image_matching import pixel_matches
from mbasfm.matching.inference import describe_photos, match_pairs
from mbasfm.matching.observe import MANY_MATCHES, load_matchers
from mbasfm.models.base import ImageMatcher
from mbasfm.types.cameras import REFERENCE_LONG_SIDE
from mbasfm.types.observations import Photo

NUM_MATCHES = 1000
MIN_TRUE_MATCHES, TRUE_PX = 30, 2.0
"""Least number of matches this near the true epipolar lines [px at a long side of 1024] for pairs that overlap."""
Pixels = Float64[np.ndarray, "_ 2"]
PixelPair = tuple[Pixels, Pixels]


@dataclass(frozen=True)
class PairSet:
    """Pairs of one set; intrinsics are known."""

    names: tuple[str, ...]
    """Both names of a pair, with a space between."""
    pixels: tuple[PixelPair, ...]
    """Matches of each pair [px]."""
    calibration: Float64[np.ndarray, "P 2 4"]
    """fx, fy, cx, cy of both photographs [px]."""
    long_side: Float64[np.ndarray, "P 2"]
    """Long sides of both photographs [px]."""
    truth: Float64[Tensor, "P 3 4"]
    """True j_from_i."""

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, chosen: Sequence[int] | np.ndarray) -> "PairSet":
        """The chosen pairs, possibly repeated."""
        rows = [int(row) for row in chosen]
        columns = tuple(self.names[row] for row in rows), tuple(self.pixels[row] for row in rows)
        return PairSet(*columns, self.calibration[rows], self.long_side[rows], self.truth[rows])

    def halves(self, seed: int) -> tuple["PairSet", "PairSet"]:
        """Two sets, with each pair in one of them at random."""
        order = np.random.default_rng(seed).permutation(len(self))
        middle = len(self) // 2
        return self.subset(np.sort(order[:middle])), self.subset(np.sort(order[middle:]))

    def thinned(self, count: int) -> "PairSet":
        """Up to ``count`` pairs at equal distances."""
        return self.subset(range(0, len(self), max(1, -(-len(self) // count))))

    def batch(self) -> MatchBatch:
        """Batch for our estimator; thresholds are at a long side of 1024."""
        rays = [
            [torch.from_numpy((points - k[2:]) / k[:2]) for points, k in zip(both, cameras, strict=True)]
            for both, cameras in zip(self.pixels, self.calibration, strict=True)
        ]
        focal = torch.from_numpy(self.calibration[..., :2].mean(-1) * REFERENCE_LONG_SIDE / self.long_side)
        return MatchBatch.stack([pair[0] for pair in rays], [pair[1] for pair in rays], focal)

    def num_true(self) -> Int64[Tensor, " P"]:
        """Number of matches of each pair near the true epipolar lines."""
        batch = self.batch()
        essential = essential_from_pose(self.truth)[:, None]
        near = sampson_squared(essential, sampson_forms(batch, torch.float64))[:, 0] < TRUE_PX**2
        return (near & batch.is_match).sum(1)


def pair_set(pairs: Sequence[ImagePair], photo_of: Mapping[Path, Photo], pixels: Sequence[PixelPair]) -> PairSet:
    """Set of pairs with the matches of each."""
    photos = [[photo_of[path] for path in pair.paths] for pair in pairs]
    return PairSet(
        tuple(" ".join(pair.names) for pair in pairs),
        tuple(pixels),
        np.array([_calibration(pair, both) for pair, both in zip(pairs, photos, strict=True)]),
        np.array([[max(photo.width, photo.height) for photo in both] for both in photos], dtype=np.float64),
        torch.from_numpy(np.stack([pair.b_from_a for pair in pairs])),
    )


def load_pair_set(dataset: PairSets, scene: str, settings: PairSettings, cache: Cache, seed: int) -> PairSet:
    """Pairs of one set with their matches, which are computed once."""
    gap = settings.gaps.get(scene)
    pairs = dataset.pairs(scene, gap)
    paths = list(dict.fromkeys(path for pair in pairs for path in pair.paths))
    photos = inspect_photos(paths)
    number = {path: row for row, path in enumerate(paths)}
    ends = np.array([[number[path] for path in pair.paths] for pair in pairs])
    with cache.active():
        found = _matches(photos, ends, settings.matcher)
    matches = [_thousand(both, seed + row) for row, both in enumerate(found)]
    whole = pair_set(pairs, dict(zip(paths, photos, strict=True)), matches)
    if gap is not None or dataset.has_list(scene):
        return whole
    return whole.subset((whole.num_true() >= MIN_TRUE_MATCHES).nonzero()[:, 0].numpy())


def _calibration(pair: ImagePair, photos: Sequence[Photo]) -> list[list[float]]:
    rows = []
    for camera, photo, path in zip(pair.cameras, photos, pair.paths, strict=True):
        known = at_resolution(camera, photo, path)
        if any(known.distortion) or known.is_fisheye:
            raise InputError(f"{path}: its lens bends lines; undistort the photographs of two-view benchmarks first")
        rows.append([*known.focal, *known.center])
    return rows


def _matches(photos: Sequence[Photo], ends: np.ndarray, matcher: str) -> list[Float64[np.ndarray, "_ 4"]]:
    """Matched pixels of every pair; pairs with few get a second matcher's too, as in a run with two photographs."""
    found: list[list[np.ndarray]] = [[] for _ in ends]
    wanted = np.arange(len(ends))
    for model in load_matchers(matcher):
        for row, both in zip(wanted, _matched_pixels(photos, ends[wanted], model), strict=True):
            found[row].append(np.concatenate(both, 1).astype(np.float64))
        wanted = np.array([row for row in wanted if sum(map(len, found[row])) < MANY_MATCHES], dtype=np.int64)
        if len(wanted) == 0:
            break
    return [np.concatenate(parts) for parts in found]


def _matched_pixels(photos: Sequence[Photo], ends: np.ndarray, model: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Matched pixels by one matcher, pair by pair."""
    if isinstance(model, ImageMatcher):
        for item in pixel_matches(ends.tolist(), photos, model):
            yield item.pixels_i, item.pixels_j
        return
    features = [item.features for item in describe_photos(photos, model)]
    for (i, j), (matches, _) in zip(ends, match_pairs(ends, features, photos, model), strict=True):
        yield features[i].pixels[matches[:, 0]], features[j].pixels[matches[:, 1]]


def _thousand(both: Float64[np.ndarray, "_ 4"], seed: int) -> PixelPair:
    chosen = np.random.default_rng(seed).permutation(len(both))[:NUM_MATCHES]
    return both[chosen, :2], both[chosen, 2:]
