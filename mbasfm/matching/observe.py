"""Observations of the photographs: features, depth and matches, by one matcher or by several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt8

from mbasfm.config import Common, Config
from mbasfm.errors import InputError
from mbasfm.io.cache import Cache
from mbasfm.matching.choose_pairs import Looks, choose_pairs, looks_ordered
from mbasfm.matching.image_matching import chooser_of, drawn_key, match_as_images
from mbasfm.matching.inference import (
    colors_of,
    counts,
    depth_key,
    describe_photos,
    estimate_depths,
    keypoints_of,
    match_key,
    match_pairs,
    photo_vectors,
)
from mbasfm.models.base import DepthModel, ImageMatcher
from mbasfm.models.depth.flat import flat_depth
from mbasfm.models.matchers.dinov2 import Dinov2
from mbasfm.models.registry import JOINT, Kind, choose_auto, load_model
from mbasfm.models.weights import looking_in
from mbasfm.runtime.progress import Progress
from mbasfm.types.pairs import Keypoints
from mbasfm.types.photos import DepthEstimate, Features, Photo

MANY_MATCHES = 100
"""Matches of a strong pair; a frame with two such pairs needs no second matcher."""
MANY_FEATURES = 2000
"""Number of features from which a frame has matches enough."""
LONG_S = 120.0
"""Expected seconds of a network on the CPU that are worth a warning."""
ChoosePairs = Callable[[Sequence[Features], Any], tuple[Int64[np.ndarray, "P 2"], str]]
"""Function from features and their matcher to pairs, and a sentence on why these."""
PAIR_MODES = ("auto", "exhaustive", "sequential", "retrieval")


@dataclass(frozen=True)
class Observations:
    """Everything that the models found in the photographs."""

    photos: tuple[Photo, ...]
    depths: list[DepthEstimate]
    keypoints: list[Keypoints]
    colors: list[UInt8[np.ndarray, "_ 3"]]
    pairs: Int64[np.ndarray, "P 2"]
    matches: list[Int64[np.ndarray, "_ 2"]]
    descriptors: dict[int, Float32[np.ndarray, "_ C"]] = field(default_factory=dict)
    """Descriptors by the first matcher, for frames with few features: each of their matches is worth looking for."""

    @property
    def is_disparity(self) -> Bool[torch.Tensor, " N"]:
        """Which frames have disparity instead of depth."""
        return torch.tensor([depth.is_disparity for depth in self.depths])


def observe(
    photos: tuple[Photo, ...],
    config: Config,
    cache: Cache,
    progress: Progress,
    given_pairs: Int64[np.ndarray, "P 2"] | None = None,
) -> Observations:
    """Run the models: features and depth of every photograph, matches of every pair that is given or worth it.

    ``first+second`` matches with the first; photographs that found few matches get those of the second as well.
    """
    matchers = load_models("matcher", config, progress)
    (depth_model,) = load_models("depth", config, progress)
    warn_if_slow(photos, depth_model, cache, progress)
    with progress.stage("depth"):
        estimates = estimate_depths(photos, depth_model, cache, config.min_depth_confidence)
        found = list(progress.each(estimates, len(photos), "depth"))
    depths = _with_flat(photos, found, progress)

    def choose(features: Sequence[Features], chooser: Any) -> tuple[Int64[np.ndarray, "P 2"], str]:
        if given_pairs is not None:
            return given_pairs, f"from {config.pairs}"
        return _choose_pairs(photos, features, chooser, config, looks_of(photos, config, cache, progress))

    observations = _match(photos, depths, matchers[0], choose, config, cache, progress)
    for matcher in matchers[1:]:
        wanted = weak_frames(observations)
        if wanted.any():
            observations = merge(
                observations, _match(photos, depths, matcher, for_sake_of(wanted, choose), config, cache, progress)
            )
    return observations


def _with_flat(
    photos: Sequence[Photo], found: Sequence[DepthEstimate | InputError], progress: Progress
) -> list[DepthEstimate]:
    """Depth of all photographs, flat where a model failed; raises the error if it failed for all."""
    wrong = {photo.name: item for photo, item in zip(photos, found, strict=True) if isinstance(item, InputError)}
    if wrong and len(wrong) == len(photos):
        raise next(iter(wrong.values()))
    for name, error in wrong.items():
        progress.say(f"{name}: continuing without depth ({error})")
    return [flat_depth() if isinstance(item, InputError) else item for item in found]


def _match(
    photos: tuple[Photo, ...],
    depths: list[DepthEstimate],
    matcher: Any,
    choose: ChoosePairs,
    config: Config,
    cache: Cache,
    progress: Progress,
) -> Observations:
    """Features and matches by one matcher, of the pairs that are chosen."""
    chooser = chooser_of(matcher)
    with progress.stage("features") as facts:
        described = list(progress.each(describe_photos(photos, chooser, cache), len(photos), "features"))
        facts["mean"] = round(float(np.mean([len(item.features.pixels) for item in described])))
    features, colors = [item.features for item in described], [item.colors for item in described]
    with progress.stage("pairs") as facts:
        pairs, why = choose(features, chooser)
        facts.update(pairs=len(pairs), why=why)
    warn_if_pairs_are_slow(pairs, photos, matcher, cache, progress)
    with progress.stage("matching") as facts:
        if isinstance(matcher, ImageMatcher):
            features, found = match_as_images(pairs, photos, matcher, cache, progress)
            colors = colors_of(photos, [item.pixels for item in features])
        else:
            found = list(progress.each(match_pairs(pairs, features, photos, matcher, cache), len(pairs), "matching"))
        usable = [counts(photo, item.pixels) for photo, item in zip(photos, features, strict=True)]
        matches = [
            indices[(confidence > config.min_confidence) & usable[i][indices[:, 0]] & usable[j][indices[:, 1]]]
            for (i, j), (indices, confidence) in zip(pairs.tolist(), found, strict=True)
        ]
        facts["matches"] = sum(map(len, matches))
    keypoints = [keypoints_of(p, f, z) for p, f, z in zip(photos, features, depths, strict=True)]
    few = {
        frame: item.descriptors * usable[frame][:, None]  # zeros resemble nothing
        for frame, item in enumerate(features)
        if len(item.pixels) < MANY_FEATURES and item.descriptors.shape[1]
    }
    return Observations(photos, depths, keypoints, colors, pairs, matches, few)


def for_sake_of(wanted: Bool[np.ndarray, " N"], choose: ChoosePairs) -> ChoosePairs:
    """Restrict a choice of pairs to those with a wanted photograph."""

    def choose_some(features: Sequence[Features], chooser: Any) -> tuple[Int64[np.ndarray, "P 2"], str]:
        pairs, _ = choose(features, chooser)
        return pairs[wanted[pairs].any(1)], "those of photographs with few matches"

    return choose_some


def weak_frames(observations: Observations) -> Bool[np.ndarray, " N"]:
    """Frames without two pairs with many matches (of two photographs: one), which would hold them in place."""
    strong = observations.pairs[[len(matches) >= MANY_MATCHES for matches in observations.matches]]
    enough = min(2, len(observations.photos) - 1)
    return np.bincount(strong.ravel(), minlength=len(observations.photos)) < enough


def merge(first: Observations, second: Observations) -> Observations:
    """Keypoints of both, one after the other; pairs in both have the matches of both."""
    offset = [len(points.pixels) for points in first.keypoints]
    matches = {(i, j): [found] for (i, j), found in zip(first.pairs.tolist(), first.matches, strict=True)}
    for (i, j), found in zip(second.pairs.tolist(), second.matches, strict=True):
        matches.setdefault((i, j), []).append(found + np.array([offset[i], offset[j]]))
    pairs = sorted(matches)
    return Observations(
        first.photos,
        first.depths,
        [a.join(b) for a, b in zip(first.keypoints, second.keypoints, strict=True)],
        [np.concatenate(both) for both in zip(first.colors, second.colors, strict=True)],
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        [np.concatenate(matches[pair]) for pair in pairs],
        first.descriptors,
    )


def load_models(kind: Kind, config: Common, progress: Progress) -> list[Any]:
    """The models that a setting stands for, joined by + if there are several."""
    spec: str = getattr(config, kind)
    with looking_in(config.weights, config.models_path):
        if spec == "auto":
            spec, why = choose_auto(kind, progress.say)
            progress.say(why)
        return [load_model(kind, part) for part in JOINT.split(spec)]


def warn_if_slow(photos: Sequence[Photo], model: DepthModel, cache: Cache, progress: Progress) -> None:
    """Tell the user how long a large network will take on the CPU, before it starts."""
    if model.cpu_seconds:
        left = sum(not cache.has(depth_key(photo, model)) for photo in photos)
        _announce(f"Depth from {model.name}", model.cpu_seconds, left, "photographs", progress)


def warn_if_pairs_are_slow(
    pairs: Int64[np.ndarray, "P 2"], photos: Sequence[Photo], matcher: Any, cache: Cache, progress: Progress
) -> None:
    """Tell the user how long a network will take to match on the CPU, before it starts."""
    if matcher.cpu_seconds:
        key = drawn_key if isinstance(matcher, ImageMatcher) else match_key
        left = sum(not cache.has(key(matcher, photos[i], photos[j])) for i, j in pairs.tolist())
        _announce(f"Matching by {matcher.name}", matcher.cpu_seconds, left, "pairs", progress)


def _announce(what: str, each_s: float, count: int, things: str, progress: Progress) -> None:
    if each_s * count > LONG_S:
        progress.say(
            f"{what} takes about {each_s * count / 60:.0f} min for {count} {things} on the CPU"
            f" ({each_s:.3g} s each on two cores); a GPU takes a small part of that. What is done is kept."
        )


def looks_of(photos: Sequence[Photo], config: Common, cache: Cache, progress: Progress) -> Looks | None:
    """How photographs are compared by a network, if its weights are on this machine."""
    with looking_in(config.weights, config.models_path):
        folder = Dinov2.find()
    if folder is None:
        return None

    def vectors() -> Float32[np.ndarray, "N D"]:
        found = photo_vectors(photos, Dinov2(folder), cache)
        return np.stack(list(progress.each(found, len(photos), "looks")))

    return Looks(Dinov2.name, vectors)


def _choose_pairs(
    photos: Sequence[Photo], features: Sequence[Features], matcher: Any, config: Config, looks: Looks | None
) -> tuple[Int64[np.ndarray, "P 2"], str]:
    names = [photo.name for photo in photos]
    given = matcher.pairs()
    if given is not None:
        number = {name: index for index, name in enumerate(names)}
        known = {tuple(sorted((number[a], number[b]))) for a, b in given if a in number and b in number}
        return np.array(sorted(known), dtype=np.int64).reshape(-1, 2), "those that the matcher has"
    descriptors = [item.descriptors for item in features]
    return choose_pairs(config.pairs, descriptors, looks_ordered(names), config.seed, looks=looks)  # type: ignore[arg-type]
