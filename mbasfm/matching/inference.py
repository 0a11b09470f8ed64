"""Features, depth and matches: computed once per photograph or pair, and cached."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8

from mbasfm.errors import InputError
from mbasfm.geometry.camera import values_at
from mbasfm.io.files import Cache, active_cache
from mbasfm.io.images import read_mask, read_upright
from mbasfm.models.base import DepthModel, Matcher
from mbasfm.runtime.parallel import Item, Result, all_cores, in_parallel, mine, wait_for_all, world_size
from mbasfm.types.observations import DepthEstimate, Features, Keypoints, Photo


@dataclass(frozen=True)
class Described:
    """Features of one photograph and their colours."""

    features: Features
    colors: UInt8[np.ndarray, "M 3"]


def describe_photos(photos: Sequence[Photo], matcher: Matcher, quarter_turns: int = 0) -> Iterator[Described]:
    """Features of every photograph, on all cores.

    With quarter turns (counter-clockwise) the matcher sees the photograph turned; pixels are those of the upright one.
    """
    cache, turned = active_cache(), f"|{quarter_turns}" if quarter_turns else ""

    def describe(photo: Photo) -> Described:
        key = f"features|{matcher.key}|{photo.digest}|{photo.name}{turned}"
        arrays = cache.get(key, lambda: _describe(photo, matcher, quarter_turns))
        features = Features(arrays["pixels"], arrays["descriptors"], photo.name, (photo.width, photo.height))
        return Described(features, arrays["colors"])

    return shared_in_parallel(describe, photos)


def _describe(photo: Photo, matcher: Matcher, quarter_turns: int) -> dict[str, np.ndarray]:
    image = read_upright(photo.path)
    features = matcher.describe(photo, np.ascontiguousarray(np.rot90(image, quarter_turns)))
    pixels = turned_back(features.pixels, (photo.width, photo.height), quarter_turns)
    colors = values_at(image, pixels / np.array([photo.width, photo.height], np.float32))
    return {"pixels": pixels, "descriptors": features.descriptors, "colors": colors}


def colors_of(photos: Sequence[Photo], pixels: Sequence[Float32[np.ndarray, "_ 2"]]) -> list[UInt8[np.ndarray, "_ 3"]]:
    """Colours of every photograph at the given pixels."""

    def look(number: int) -> UInt8[np.ndarray, "_ 3"]:
        size = np.array([photos[number].width, photos[number].height], np.float32)
        return values_at(read_upright(photos[number].path), pixels[number] / size)

    return list(in_parallel(look, range(len(photos))))


def turned_back(
    pixels: Float32[np.ndarray, "M 2"], size: tuple[int, int], quarter_turns: int
) -> Float32[np.ndarray, "M 2"]:
    """Pixels in an image of the given width and height, from those found in its ``np.rot90``."""
    for number in reversed(range(quarter_turns)):
        width = size[number % 2]
        pixels = np.stack([width - pixels[:, 1], pixels[:, 0]], -1)
    return pixels


def estimate_depths(
    photos: Sequence[Photo], model: DepthModel, min_confidence: float = 0.0
) -> Iterator[DepthEstimate | InputError]:
    """Depth of every photograph, or the error that prevents it; networks use all cores by themselves.

    Where a model is no surer than ``min_confidence``, depth is unknown.
    """
    cache = active_cache()
    if world_size() > 1 and cache.is_kept:
        for _ in _estimate_each(mine(photos), model, cache, min_confidence):
            pass
        wait_for_all()
    return _estimate_each(photos, model, cache, min_confidence)


def _estimate_each(
    photos: Sequence[Photo], model: DepthModel, cache: Cache, min_confidence: float
) -> Iterator[DepthEstimate | InputError]:
    step = model.batch_size
    for start in range(0, len(photos), step):
        keys = {photo: depth_key(photo, model) for photo in photos[start : start + step]}
        ready = _estimate_together([photo for photo in keys if not cache.has(keys[photo])], model) if step > 1 else {}
        for photo, key in keys.items():
            try:
                arrays = cache.get(key, partial(_estimate, photo, model, ready))
            except InputError as error:
                yield error
                continue
            focal_px = None if np.isnan(arrays["focal_px"]) else float(arrays["focal_px"])
            values, confidence = _masked(photo, arrays["values"]), arrays.get("confidence")
            if confidence is not None:
                values = np.where(confidence > min_confidence, values, np.float32(np.nan))
            yield DepthEstimate(values, bool(arrays["is_disparity"]), bool(arrays["is_metric"]), focal_px, confidence)


def depth_key(photo: Photo, model: DepthModel) -> str:
    """Cache key of a photograph's depth."""
    return f"depth-2|{model.key}|{photo.digest}|{model.content_of(photo)}"


def _estimate_together(photos: Sequence[Photo], model: DepthModel) -> dict[Photo, DepthEstimate]:
    """Depth of several photographs at once; empty if one fails, which is then found one by one."""
    if not photos:
        return {}
    try:
        with all_cores():
            estimates = model.estimate_batch(photos, [read_upright(photo.path) for photo in photos])
    except InputError:
        return {}
    return dict(zip(photos, estimates, strict=True))


def photo_vectors(photos: Sequence[Photo], model: Any) -> Iterator[Float32[np.ndarray, " D"]]:
    """One vector per photograph that describes it as a whole."""
    cache = active_cache()

    def compute(photo: Photo) -> dict[str, np.ndarray]:
        with all_cores():
            return {"vector": model.vector(read_upright(photo.path))}

    return (cache.get(f"vector|{model.key}|{photo.digest}", partial(compute, photo))["vector"] for photo in photos)


def counts(photo: Photo, pixels: Float32[np.ndarray, "M 2"]) -> Bool[np.ndarray, " M"]:
    """Which pixels the photograph's mask does not ignore."""
    return values_at(read_mask(photo), pixels / np.array([photo.width, photo.height], np.float32))


def _masked(photo: Photo, values: Float32[np.ndarray, "h w"]) -> Float32[np.ndarray, "h w"]:
    """Depth, NaN where the photograph's mask ignores it."""
    if photo.mask is None:
        return values
    rows, columns = values.shape
    across, down = (((np.arange(side) + 0.5) / side).astype(np.float32) for side in (columns, rows))
    places = np.stack(np.meshgrid(across, down), -1).reshape(-1, 2)
    return np.where(values_at(read_mask(photo), places).reshape(rows, columns), values, np.float32(np.nan))


def _estimate(photo: Photo, model: DepthModel, ready: Mapping[Photo, DepthEstimate]) -> dict[str, np.ndarray]:
    with all_cores():
        estimate = ready[photo] if photo in ready else model.estimate(photo, read_upright(photo.path))
    arrays = {
        "values": estimate.values,
        "is_disparity": np.array(estimate.is_disparity),
        "is_metric": np.array(estimate.is_metric),
        "focal_px": np.array(np.nan if estimate.focal_px is None else estimate.focal_px),
    }
    return arrays if estimate.confidence is None else arrays | {"confidence": estimate.confidence}


def match_pairs(
    pairs: Int64[np.ndarray, "P 2"],
    features: Sequence[Features],
    photos: Sequence[Photo],
    matcher: Matcher,
) -> Iterator[tuple[Int64[np.ndarray, "M 2"], Float32[np.ndarray, " M"]]]:
    """Indices of matched features and their confidence, for every pair."""
    cache = active_cache()

    def match(pair: tuple[int, int]) -> dict[str, np.ndarray]:
        found = matcher.match(features[pair[0]], features[pair[1]])
        return {"indices": found.indices, "confidence": found.confidence}

    def cached(pair: tuple[int, int]) -> tuple[Int64[np.ndarray, "M 2"], Float32[np.ndarray, " M"]]:
        key = match_key(matcher, photos[pair[0]], photos[pair[1]])
        arrays = cache.get(key, lambda: match(pair))
        return arrays["indices"], arrays["confidence"]

    return shared_in_parallel(cached, [(i, j) for i, j in pairs.tolist()])


def match_key(matcher: Matcher, first: Photo, second: Photo) -> str:
    """Cache key of a pair's matches."""
    return f"matches|{matcher.key}|{first.digest}|{second.digest}"


def keypoints_of(photo: Photo, features: Features, depth: DepthEstimate) -> Keypoints:
    """Features with the depth at their pixels."""
    raw = values_at(depth.values, features.pixels / np.array([photo.width, photo.height], np.float32))
    return Keypoints(features.pixels, np.where(raw > 0, raw, np.nan).astype(np.float32))


def shared_in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results as of ``in_parallel``; processes share the work through the cache, and each reads what others did."""
    if world_size() > 1 and active_cache().is_kept:
        for _ in in_parallel(work, mine(items)):
            pass
        wait_for_all()
    return in_parallel(work, items)
