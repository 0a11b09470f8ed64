"""One vector per photograph from its local descriptors, aggregated over visual words.

Words are learned from the run's own photographs: nothing has to be downloaded, and any matcher's descriptors
will do.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int64

Descriptors = Sequence[Float32[np.ndarray, "_ C"]]
"""One array per frame; some may be empty."""

NUM_WORDS = 256
"""Number of words. Recall rises slowly with it; cost and memory, 128 kB a frame with SIFT, rise in proportion."""
LLOYD_STEPS = 5
MAX_TRAINING = 20_000
"""Number of descriptors to learn words from. Five times as many cost more and find no more."""
MAX_PER_FRAME = 2000
CHUNK_ROWS = 2048


def vlad(descriptors: Descriptors, seed: int, num_words: int = NUM_WORDS) -> Float32[np.ndarray, "N D"]:
    """One unit vector per frame, by vectors of locally aggregated descriptors (Jegou et al., CVPR 2010).

    For each visual word the residuals of its descriptors are summed, and each sum is normalised (Arandjelovic and
    Zisserman, CVPR 2013), so that one repeated texture does not drown the rest. Square roots of the entries and
    whitening were tried: the first changes nothing after that, the second loses recall. A frame without descriptors is
    a zero vector. With fewer descriptors than words, there are fewer words.
    """
    return aggregate(descriptors, learn_words(descriptors, seed, num_words))


def learn_words(descriptors: Descriptors, seed: int, num_words: int = NUM_WORDS) -> Float32[np.ndarray, "W C"]:
    """Visual words of the frames' descriptors."""
    share = max(MAX_TRAINING // max(len(descriptors), 1), 1)
    training = np.concatenate([_spread(array, share) for array in descriptors])
    return _learn_words(np.random.default_rng(seed).permutation(training), num_words)


def aggregate(descriptors: Descriptors, words: Float32[np.ndarray, "W C"]) -> Float32[np.ndarray, "N D"]:
    """One vector per frame over given words, to compare frames with those of an older set."""
    sums = (_residual_sums(_spread(array, MAX_PER_FRAME), words) for array in descriptors)
    return _normalise(np.stack([_normalise(array).ravel() for array in sums]))


def _spread(rows: Float32[np.ndarray, "_ C"], count: int) -> Float32[np.ndarray, "_ C"]:
    """At most ``count`` rows at equal distances: a fair sample, whether sorted by position or by strength."""
    return rows if len(rows) <= count else rows[np.arange(count) * len(rows) // count]


def _learn_words(training: Float32[np.ndarray, "M C"], num_words: int) -> Float32[np.ndarray, "W C"]:
    """k-means by Lloyd's iterations that start at the first descriptors. A word that loses all of its own stays."""
    words = training[:num_words].copy()
    for _ in range(LLOYD_STEPS if len(words) else 0):
        present, sums, counts = _sums_by_word(training, _assign(training, words))
        words[present] = sums / counts[:, None]
    return words


def _assign(descriptors: Float32[np.ndarray, "M C"], words: Float32[np.ndarray, "W C"]) -> Int64[np.ndarray, " M"]:
    """The nearest word of each descriptor: the smallest |w|^2 / 2 - d w."""
    half_squares = np.sum(words**2, axis=1) / 2
    chunks = range(0, len(descriptors), CHUNK_ROWS)
    found = [np.argmin(half_squares - descriptors[i : i + CHUNK_ROWS] @ words.T, axis=1) for i in chunks]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _sums_by_word(
    descriptors: Float32[np.ndarray, "M C"], word: Int64[np.ndarray, " M"]
) -> tuple[Int64[np.ndarray, " V"], Float32[np.ndarray, "V C"], Int64[np.ndarray, " V"]]:
    """The words that occur, the sum of each one's descriptors, and their number."""
    order = np.argsort(word, kind="stable")
    present, starts, counts = np.unique(word[order], return_index=True, return_counts=True)
    return present, np.add.reduceat(descriptors[order], starts, axis=0), counts


def _residual_sums(
    descriptors: Float32[np.ndarray, "M C"], words: Float32[np.ndarray, "W C"]
) -> Float32[np.ndarray, "W C"]:
    sums = np.zeros_like(words)
    if len(descriptors):
        present, totals, counts = _sums_by_word(descriptors, _assign(descriptors, words))
        sums[present] = totals - counts[:, None].astype(np.float32) * words[present]
    return sums


def _normalise(rows: Float32[np.ndarray, "R D"]) -> Float32[np.ndarray, "R D"]:
    """Rows of unit length; a row of zeros stays one."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)
