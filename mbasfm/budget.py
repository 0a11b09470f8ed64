"""How much memory adjustment takes, and what to give up where that is more than there is.

The data matrix is on disk as soon as it is large. What stays in memory grows with edges (normal equations, their copy
for the solver) and, where the residual is split, with samples (their spread and vote, 8 bytes).
"""

from dataclasses import dataclass

from mbasfm.errors import ConfigError
from mbasfm.types import BLOCK_SAMPLES

GB = 1e9
BYTES_AT_FIRST = 50e6
"""Code that is loaded with the first step, however small the problem is."""
BYTES_PER_EDGE = 2400
"""Normal equations of 9 unknowns per frame with the solver's copy, and numbers of edges and pairs."""
BYTES_PER_FRAME = 40_000
"""Histograms and their tables."""
BYTES_PER_SAMPLE = 24
"""In memory."""
BYTES_PER_SPLIT_SAMPLE = 8
BYTES_PER_BLOCK_SAMPLE = 900
"""Residuals, rows and what lies between them, while a block is worked on."""
LEAST_BLOCK, LEAST_SAMPLES, LEAST_PAIRS = 1 << 14, 40, 8
LARGE_MATRIX = 512e6
"""Bytes from which on samples go to disk."""


@dataclass(frozen=True)
class Plan:
    """What fits."""

    samples_per_edge: int
    pairs_per_frame: int
    block_samples: int
    is_on_disk: bool
    bytes_needed: float

    def sentence(self, num_pairs: int) -> str:
        """What was picked."""
        where = "on disk" if self.is_on_disk else "in memory"
        return (
            f"samples {where}, {self.samples_per_edge} per pair and direction, at most {self.pairs_per_frame} pairs per"
            f" photograph ({num_pairs} in all), {self.block_samples} samples at a time: about"
            f" {self.bytes_needed / GB:.1f} GB"
        )


def plan_memory(
    num_frames: int,
    degree: int,
    num_edges: int,
    samples_per_edge: int,
    is_split: bool,
    budget: float | None = None,
    used: float = 0.0,
) -> Plan:
    """The richest plan within the budget (all in bytes; ``used`` is taken already).

    Small blocks cost time only, so they come first; then samples of a pair, of which there are many; pairs come last.
    """
    needed = 0.0
    for pairs in _halvings(degree, LEAST_PAIRS):
        edges = min(num_edges, pairs * num_frames)
        for samples in _halvings(samples_per_edge, LEAST_SAMPLES):
            for block in _halvings(BLOCK_SAMPLES, LEAST_BLOCK):
                matrix = float(edges) * samples * BYTES_PER_SAMPLE
                room = float("inf") if budget is None else budget - used
                # Samples in memory are worked on in blocks of the usual size.
                on_disk = block < BLOCK_SAMPLES or matrix > min(LARGE_MATRIX, 0.3 * room)
                needed = used + BYTES_AT_FIRST + BYTES_PER_EDGE * edges + BYTES_PER_FRAME * num_frames
                needed += BYTES_PER_BLOCK_SAMPLE * block + (0 if on_disk else matrix)
                needed += is_split * BYTES_PER_SPLIT_SAMPLE * edges * samples
                if budget is None or needed <= budget:
                    return Plan(samples, pairs, block, on_disk, needed)
    assert budget is not None
    raise ConfigError(
        f"max_memory_gb {budget / GB:g} is too little: {num_frames} photographs need at least {needed / GB:.1f} GB;"
        " raise it, or reconstruct in parts"
    )


def _halvings(value: int, least: int) -> list[int]:
    found = [value]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found
