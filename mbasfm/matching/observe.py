"""Observations of the photographs: features, depth and matches, by one matcher or by several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from mbasfm.errors import InputError
from mbasfm.io.files import active_cache
from mbasfm.matching.choose_pairs import Looks, Pairs, choose_pairs, looks_ordered
from mbasfm.matching.image_matching import drawn_key, match_as_images
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
from mbasfm.models.base import JOINT, DepthModel, ImageMatcher, Kind, Matcher, choose_auto, load_model
from mbasfm.models.depth.flat import flat_depth
from mbasfm.models.matchers.dinov2 import Dinov2
from mbasfm.runtime.progress import each, say, stage
from mbasfm.types.observations import DepthEstimate, Features, Observations, Photo
from mbasfm.types.outcome import PairChoice, Reason

MANY_MATCHES = 100
"""Matches of a strong pair; a frame with two such pairs needs no second matcher."""
MANY_FEATURES = 2000
"""Number of features from which a frame has matches enough."""
LONG_S = 120.0
"""Expected seconds of a network on the CPU that are worth a warning."""
AnyMatcher = Matcher | ImageMatcher
ChoosePairs = Callable[[Sequence[Features], Matcher], tuple[Pairs, Reason[PairChoice]]]
"""Function from features and their matcher to pairs, and why these."""
PAIR_MODES = ("auto", "exhaustive", "sequential", "retrieval")
CHOOSER = "sift"
"""Matcher whose features compare photographs if the chosen one has none."""


@dataclass(frozen=True)
class WantedPairs:
    """Which pairs are matched."""

    mode: str = "auto"
    """One of `PAIR_MODES`, or the name of the file that says so."""
    seed: int = 0
    given: Pairs | None = None
    """Pairs that the file lists."""


def observe(
    photos: tuple[Photo, ...],
    depth_model: DepthModel,
    matchers: Sequence[AnyMatcher],
    wanted: WantedPairs,
    min_confidence: float = 0.0,
    min_depth_confidence: float = 0.0,
) -> Observations:
    """Run the models: features and depth of every photograph, matches of every pair that is given or worth it.

    Photographs that found few matches by the first matcher get those of the others as well. Matches and depth no surer
    than the given confidences are not used.
    """
    warn_if_slow(photos, depth_model)
    with stage("depth"):
        estimates = estimate_depths(photos, depth_model, min_depth_confidence)
        depths = _with_flat(photos, list(each(estimates, len(photos))))

    def choose(features: Sequence[Features], matcher: Matcher) -> tuple[Pairs, Reason[PairChoice]]:
        return _choose_pairs(photos, features, matcher, wanted)

    observations = _match(photos, depths, matchers[0], choose, min_confidence)
    for matcher in matchers[1:]:
        weak = weak_frames(observations)
        if weak.any():
            more = _match(photos, depths, matcher, for_sake_of(weak, choose), min_confidence)
            observations = merge(observations, more)
    return replace(observations, depth_model=depth_model.key)


def _with_flat(photos: Sequence[Photo], found: Sequence[DepthEstimate | InputError]) -> list[DepthEstimate]:
    """Depth of all photographs, flat where a model failed; raises the error if it failed for all."""
    wrong = {photo.name: item for photo, item in zip(photos, found, strict=True) if isinstance(item, InputError)}
    if wrong and len(wrong) == len(photos):
        raise next(iter(wrong.values()))
    for name, error in wrong.items():
        say(f"{name}: continuing without depth ({error})")
    return [flat_depth() if isinstance(item, InputError) else item for item in found]


def _match(
    photos: tuple[Photo, ...],
    depths: list[DepthEstimate],
    matcher: AnyMatcher,
    choose: ChoosePairs,
    min_confidence: float,
) -> Observations:
    """Features and matches by one matcher, of the pairs that are chosen."""
    chooser = chooser_of(matcher)
    with stage("features") as facts:
        described = list(each(describe_photos(photos, chooser), len(photos)))
        facts["mean"] = round(float(np.mean([len(item.features.pixels) for item in described])))
    features, colors = [item.features for item in described], [item.colors for item in described]
    with stage("pairs") as facts:
        pairs, why = choose(features, chooser)
        facts.update(pairs=len(pairs), why=why)
    warn_if_pairs_are_slow(pairs, photos, matcher)
    with stage("matching") as facts:
        if isinstance(matcher, ImageMatcher):
            features, found = match_as_images(pairs, photos, matcher)
            colors = colors_of(photos, [item.pixels for item in features])
        else:
            found = list(each(match_pairs(pairs, features, photos, matcher), len(pairs)))
        usable = [counts(photo, item.pixels) for photo, item in zip(photos, features, strict=True)]
        matches = [
            indices[(confidence > min_confidence) & usable[i][indices[:, 0]] & usable[j][indices[:, 1]]]
            for (i, j), (indices, confidence) in zip(pairs.tolist(), found, strict=True)
        ]
        facts["matches"] = sum(map(len, matches))
    keypoints = [keypoints_of(p, f, z) for p, f, z in zip(photos, features, depths, strict=True)]
    few = {
        frame: item.descriptors * usable[frame][:, None]  # zeros resemble nothing
        for frame, item in enumerate(features)
        if len(item.pixels) < MANY_FEATURES and item.descriptors.shape[1]
    }
    return Observations(photos, depths, keypoints, colors, pairs, matches, few, why)


def for_sake_of(wanted: Bool[np.ndarray, " N"], choose: ChoosePairs) -> ChoosePairs:
    """Restrict a choice of pairs to those with a wanted photograph."""

    def choose_some(features: Sequence[Features], chooser: Matcher) -> tuple[Pairs, Reason[PairChoice]]:
        pairs, _ = choose(features, chooser)
        return pairs[wanted[pairs].any(1)], Reason(PairChoice.OF_WEAK)

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
        first.pairs_chosen,
    )


def load_matchers(spec: str) -> list[AnyMatcher]:
    """The matchers that a setting stands for, joined by + if there are several."""
    return [load_model("matcher", part) for part in JOINT.split(_chosen("matcher", spec))]


def load_depth(spec: str) -> DepthModel:
    """The depth model that a setting stands for."""
    model: DepthModel = load_model("depth", _chosen("depth", spec))
    return model


def _chosen(kind: Kind, spec: str) -> str:
    """The setting itself, or what auto stands for on this machine."""
    if spec != "auto":
        return spec
    spec, why = choose_auto(kind, say)
    say(why)
    return spec


def warn_if_slow(photos: Sequence[Photo], model: DepthModel) -> None:
    """Tell the user how long a large network will take on the CPU, before it starts."""
    if model.cpu_seconds:
        left = sum(not active_cache().has(depth_key(photo, model)) for photo in photos)
        _announce(f"Depth from {model.name}", model.cpu_seconds, left, "photographs")


def warn_if_pairs_are_slow(pairs: Pairs, photos: Sequence[Photo], matcher: Any) -> None:
    """Tell the user how long a network will take to match on the CPU, before it starts."""
    if matcher.cpu_seconds:
        key = drawn_key if isinstance(matcher, ImageMatcher) else match_key
        left = sum(not active_cache().has(key(matcher, photos[i], photos[j])) for i, j in pairs.tolist())
        _announce(f"Matching by {matcher.name}", matcher.cpu_seconds, left, "pairs")


def _announce(what: str, each_s: float, count: int, things: str) -> None:
    if each_s * count > LONG_S:
        say(
            f"{what} takes about {each_s * count / 60:.0f} min for {count} {things} on the CPU"
            f" ({each_s:.3g} s each on two cores); a GPU takes a small part of that. What is done is kept."
        )


def _looks_of(photos: Sequence[Photo]) -> Looks | None:
    """How photographs are compared by a network, if its weights are on this machine."""
    folder = Dinov2.find()
    if folder is None:
        return None

    def vectors() -> Float32[np.ndarray, "N D"]:
        return np.stack(list(each(photo_vectors(photos, Dinov2(folder)), len(photos))))

    return Looks(Dinov2.name, vectors)


def _choose_pairs(
    photos: Sequence[Photo], features: Sequence[Features], matcher: Matcher, wanted: WantedPairs
) -> tuple[Pairs, Reason[PairChoice]]:
    if wanted.given is not None:
        return wanted.given, Reason(PairChoice.LISTED, (wanted.mode,))
    names = [photo.name for photo in photos]
    given = matcher.pairs()
    if given is not None:
        number = {name: index for index, name in enumerate(names)}
        known = {tuple(sorted((number[a], number[b]))) for a, b in given if a in number and b in number}
        return np.array(sorted(known), dtype=np.int64).reshape(-1, 2), Reason(PairChoice.OF_MATCHER)
    descriptors = [item.descriptors for item in features]
    ordered = looks_ordered(names)
    looks = partial(_looks_of, photos)
    return choose_pairs(wanted.mode, descriptors, ordered, wanted.seed, looks=looks)  # type: ignore[arg-type]


def chooser_of(matcher: Any) -> Matcher:
    """Matcher whose features tell which photographs look alike: itself, if it has features."""
    chooser: Matcher = load_model("matcher", CHOOSER) if isinstance(matcher, ImageMatcher) else matcher
    return chooser
