"""Matchers of images: pairs are matched first, and features follow from what was found.

Pairs have to be chosen before there are any features, so photographs are compared by another matcher's. What a pair
showed is kept in the cache; keypoints are put together anew in every run.
"""

import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float32, Int64

from mbasfm.io.files import active_cache
from mbasfm.io.images import read_upright
from mbasfm.matching.inference import turned_back
from mbasfm.matching.merge_keypoints import End, cell_px, consolidate, nearest_keypoints, one_to_one
from mbasfm.models.base import ImageMatcher
from mbasfm.runtime.parallel import all_cores
from mbasfm.runtime.progress import each
from mbasfm.types.observations import Features, Photo, PixelMatches

IMAGES_IN_MEMORY = 8
Indices = tuple[Int64[np.ndarray, "_ 2"], Float32[np.ndarray, " _"]]
"""Indices of matched keypoints and confidence, as `mbasfm.matching.inference.match_pairs` gives them."""


def match_as_images(
    pairs: Int64[np.ndarray, "P 2"], photos: Sequence[Photo], matcher: ImageMatcher
) -> tuple[list[Features], list[Indices]]:
    """Keypoints of every photograph at which its pairs found something, and their matches in every pair.

    Some matchers find pixels on a grid in the first image and anywhere in the second. Which of two photographs comes
    first is drawn by lot, so that each has pixels on its own grid in about half of its pairs, and these share them.
    """
    found = each(_by_lot(pairs.tolist(), photos, matcher), len(pairs))
    ends = [
        End(frame, pixels, item.confidence)
        for pair, item in zip(pairs.tolist(), found, strict=True)
        for frame, pixels in zip(pair, (item.pixels_i, item.pixels_j), strict=True)
    ]
    keypoints, numbers = consolidate(ends, [(photo.width, photo.height) for photo in photos])
    matches = [_paired(*item) for item in zip(numbers[::2], numbers[1::2], ends[::2], strict=True)]
    return [_features(photo, pixels) for photo, pixels in zip(photos, keypoints, strict=True)], matches


def match_with_map(
    pairs: Int64[np.ndarray, "P 2"],
    known: Sequence[Features],
    photos: Sequence[Photo],
    matcher: ImageMatcher,
    quarter_turns: int,
) -> tuple[list[Features], list[Indices]]:
    """Keypoints of new photographs, which come after those whose features are known, and their matches with these.

    A match counts if it begins at a known keypoint. The new photographs are seen turned.
    """
    starts, ends = [], []
    found = pixel_matches(pairs.tolist(), photos, matcher, quarter_turns)
    for (m, q), item in zip(pairs.tolist(), found, strict=True):
        start = nearest_keypoints(item.pixels_i, known[m].pixels, cell_px(known[m].size))
        starts.append(start[start >= 0])
        ends.append(End(q - len(known), item.pixels_j[start >= 0], item.confidence[start >= 0]))
    new = photos[len(known) :]
    keypoints, numbers = consolidate(ends, [(photo.width, photo.height) for photo in new])
    matches = [_paired(*item) for item in zip(starts, numbers, ends, strict=True)]
    return [_features(photo, pixels) for photo, pixels in zip(new, keypoints, strict=True)], matches


def _by_lot(pairs: Sequence[Sequence[int]], photos: Sequence[Photo], matcher: ImageMatcher) -> Iterator[PixelMatches]:
    """Matches of every pair, in a random direction that depends on content only and so is the same in every run."""
    swapped = [_is_swapped(photos[i], photos[j]) for i, j in pairs]
    drawn = [(j, i) if swap else (i, j) for (i, j), swap in zip(pairs, swapped, strict=True)]
    for swap, item in zip(swapped, pixel_matches(drawn, photos, matcher), strict=True):
        yield PixelMatches(item.pixels_j, item.pixels_i, item.confidence) if swap else item


def drawn_key(matcher: ImageMatcher, first: Photo, second: Photo) -> str:
    """Cache key of a pair's matches, in the direction drawn for it."""
    return _pixels_key(matcher, *((second, first) if _is_swapped(first, second) else (first, second)), 0)


def _pixels_key(matcher: ImageMatcher, first: Photo, second: Photo, quarter_turns: int) -> str:
    return f"pixels-1|{matcher.key}|{first.digest}|{second.digest}|{quarter_turns}"


def _is_swapped(first: Photo, second: Photo) -> bool:
    return zlib.crc32(f"{first.digest}{second.digest}".encode()) % 2 == 1


def pixel_matches(
    pairs: Sequence[Sequence[int]],
    photos: Sequence[Photo],
    matcher: ImageMatcher,
    quarter_turns: int = 0,
) -> Iterator[PixelMatches]:
    """Matches of every pair, the second photograph turned; networks use all cores by themselves."""
    cache = active_cache()
    read = lru_cache(IMAGES_IN_MEMORY)(read_upright)

    def match(first: Photo, second: Photo) -> dict[str, np.ndarray]:
        turned = np.ascontiguousarray(np.rot90(read(second.path), quarter_turns))
        with all_cores():
            found = matcher.match_images(read(first.path), turned)
        pixels_j = turned_back(found.pixels_j, (second.width, second.height), quarter_turns)
        return {"pixels_i": found.pixels_i, "pixels_j": pixels_j, "confidence": found.confidence}

    for i, j in pairs:
        ends = photos[i], photos[j]
        arrays = cache.get(_pixels_key(matcher, *ends, quarter_turns), lambda ends=ends: match(*ends))  # type: ignore[misc]
        yield PixelMatches(arrays["pixels_i"], arrays["pixels_j"], arrays["confidence"])


def _paired(first: Int64[np.ndarray, " M"], second: Int64[np.ndarray, " M"], end: End) -> Indices:
    indices = np.stack([first, second], -1)
    kept = one_to_one(indices, end.confidence)
    return indices[kept], end.confidence[kept]


def _features(photo: Photo, pixels: Float32[np.ndarray, "M 2"]) -> Features:
    return Features(pixels, np.zeros((len(pixels), 0), np.float32), photo.name, (photo.width, photo.height))
