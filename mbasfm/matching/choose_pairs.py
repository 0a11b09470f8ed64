"""Choice of pairs to match: all, neighbours in a sequence, or those that look alike.

Looks are compared by one vector per photograph: a network's, where there is one, else one of visual words.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float32, Int64

from mbasfm.matching.visual_words import CHUNK_ROWS, NUM_WORDS, Descriptors, vlad
from mbasfm.types.outcome import PairChoice, Reason

Mode = Literal["auto", "exhaustive", "sequential", "retrieval"]
Pairs = Int64[np.ndarray, "P 2"]
ORDERED_SHARE = 0.9
"""Share of regular steps from name to name; the others are lost frames and changes of folder."""
LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


@dataclass(frozen=True)
class PairSettings:
    """Settings of the choice of pairs."""

    exhaustive_up_to: int = 60
    """Largest number of frames for which ``auto`` matches all pairs."""
    num_neighbours: int = 25
    """Retrieval: number of most similar frames per frame."""
    overlap: int = 10
    """``sequential``: number of following frames."""
    overlap_beside_retrieval: int = 5
    """``auto`` with ordered frames: number of following frames, as retrieval finds most of them anyway."""
    num_words: int = NUM_WORDS


DEFAULT_SETTINGS = PairSettings()


@dataclass(frozen=True)
class Looks:
    """A way to compare photographs as a whole."""

    name: str
    vectors: Callable[[], Float32[np.ndarray, "N D"]]
    """Returns one vector of unit length per frame; called only if needed."""


def choose_pairs(
    mode: Mode,
    descriptors: Descriptors,
    ordered: bool,
    seed: int,
    settings: PairSettings = DEFAULT_SETTINGS,
    looks: Callable[[], Looks | None] = lambda: None,
) -> tuple[Pairs, Reason[PairChoice]]:
    """Pairs to match, and why these; ``looks``, asked for only if needed, take precedence over descriptors."""
    num_frames = len(descriptors)
    if mode == "exhaustive":
        return exhaustive_pairs(num_frames), Reason(PairChoice.ALL_WANTED, (num_frames,))
    if mode == "sequential":
        kind = PairChoice.SEQUENCE if ordered else PairChoice.SEQUENCE_UNNUMBERED
        return sequential_pairs(num_frames, settings.overlap), Reason(kind, (num_frames, settings.overlap))
    if mode == "auto" and num_frames <= settings.exhaustive_up_to:
        return exhaustive_pairs(num_frames), Reason(PairChoice.ALL_OF_FEW, (num_frames,))
    seen = looks()
    if seen is None and not any(array.shape[1] for array in descriptors):
        return exhaustive_pairs(num_frames), Reason(PairChoice.ALL_UNLIKE, (num_frames,))
    seen = seen or Looks("VLAD of local features", lambda: vlad(descriptors, seed, settings.num_words))
    pairs = retrieval_pairs(seen.vectors(), settings.num_neighbours)
    alike, many = (num_frames, settings.num_neighbours, seen.name), settings.exhaustive_up_to
    if mode == "retrieval":
        return pairs, Reason(PairChoice.ALIKE_WANTED, alike)
    if not ordered:
        return pairs, Reason(PairChoice.ALIKE, (*alike, many))
    overlap = settings.overlap_beside_retrieval
    both = _sorted_unique(np.concatenate([pairs, sequential_pairs(num_frames, overlap)]))
    return both, Reason(PairChoice.ALIKE_AND_SEQUENCE, (*alike, overlap, many))


def exhaustive_pairs(num_frames: int) -> Pairs:
    """Every pair i < j, in lexicographic order."""
    return np.stack(np.triu_indices(num_frames, k=1), axis=1).astype(np.int64)


def sequential_pairs(num_frames: int, overlap: int = 10) -> Pairs:
    """Each frame with the ``overlap`` following ones and, beyond them, with those 2, 4, 8, 16 ... frames later.

    The powers of two tie distant parts of a sequence together, like COLMAP's quadratic overlap, but up to its end.
    """
    powers = {1 << exponent for exponent in range(num_frames.bit_length())}
    steps = sorted(powers.union(range(1, overlap + 1)))
    first = np.repeat(np.arange(num_frames), len(steps))
    pairs = np.stack([first, first + np.tile(steps, num_frames)], axis=1).astype(np.int64)
    return pairs[pairs[:, 1] < num_frames]


def retrieval_pairs(vectors: Float32[np.ndarray, "N D"], num_neighbours: int) -> Pairs:
    """Each frame with its most similar ones: i < j, sorted, each pair once.

    A frame of which nothing is known, a zero vector, is in no pair.
    """
    (known,) = np.nonzero(np.any(vectors, axis=1))
    neighbours = known[_nearest(vectors[known], num_neighbours)]
    first = np.broadcast_to(known[:, None], neighbours.shape)
    return _sorted_unique(np.stack([first, neighbours], axis=-1).reshape(-1, 2))


def nearest_of(
    queries: Float32[np.ndarray, "Q D"], vectors: Float32[np.ndarray, "N D"], count: int
) -> Int64[np.ndarray, "Q k"]:
    """Most similar frames of each query, most similar first; all frames if there are no more."""
    return np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :count]


def recall_at_k(vectors: Float32[np.ndarray, "N D"], relevant: Bool[np.ndarray, "N N"], k: int) -> float:
    """Share of a frame's relevant frames among its k nearest, of at most k; the mean over frames that have any.

    NaN if no frame has any.
    """
    relevant = relevant & ~np.eye(len(relevant), dtype=bool)
    found = np.take_along_axis(relevant, _nearest(vectors, k), axis=1).sum(axis=1)
    possible = np.minimum(relevant.sum(axis=1), k)
    return float(np.mean(found[possible > 0] / possible[possible > 0])) if possible.any() else math.nan


def looks_ordered(names: Sequence[str]) -> bool:
    """Whether names, in the order given, are numbered like the frames of a video: the same text and equal steps.

    Some lost frames and several folders are allowed. Numbers without leading zeros that were sorted as text, 1, 10, 2,
    are not in the order of time: the answer is no.
    """
    numbered = [_split_number(name) for name in names]
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for (text, number), (next_text, next_number) in zip(numbered[:-1], numbered[1:], strict=True):
        if text == next_text and next_number > number:
            steps[text].append(next_number - number)
    regular = sum(max(Counter(found).values()) for found in steps.values())
    return len(names) >= 3 and regular >= ORDERED_SHARE * (len(names) - 1)


def _split_number(name: str) -> tuple[str, int]:
    """Name around its last number, and that number; -1 if there is none, so that no step is upwards."""
    stem, dot, ending = name.rpartition(".")
    found = LAST_NUMBER.fullmatch(stem if dot else ending)
    return (f"{found[1]}*{found[3]}", int(found[2])) if found else (name, -1)


def _sorted_unique(pairs: Int64[np.ndarray, "Q 2"]) -> Pairs:
    return np.unique(np.sort(pairs, axis=1), axis=0)


def _nearest(vectors: Float32[np.ndarray, "N D"], k: int) -> Int64[np.ndarray, "N k"]:
    """The k rows (all others, if fewer) with the largest inner product, largest first; ties in order."""
    num_rows = len(vectors)
    nearest = np.zeros((num_rows, max(min(k, num_rows - 1), 0)), np.int64)
    for start in range(0, num_rows, CHUNK_ROWS):
        similarity = vectors[start : start + CHUNK_ROWS] @ vectors.T
        rows = np.arange(len(similarity))
        similarity[rows, start + rows] = -np.inf
        nearest[start : start + CHUNK_ROWS] = np.argsort(-similarity, axis=1, kind="stable")[:, : nearest.shape[1]]
    return nearest
