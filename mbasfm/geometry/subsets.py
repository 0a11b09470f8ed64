"""Choice of a part: by lots that belong to things, not to the order in which they come, and by clusters of frames.

Drawn one after the other, numbers change for all things that follow as soon as one is added or left out: a match more
or less, on another machine, would draw all other lots anew.
"""

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Float64, Int, Int64, Integer, UInt64
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
CLUSTER_FRAMES, MAX_CLUSTERS = 40, 160


def lots(seed: int, *keys: Integer[np.ndarray, " M"] | int) -> Float64[np.ndarray, " _"]:
    """A number in [0, 1) for every combination of integers: independent of all others, and the same each time."""
    mixed = _mix(np.array([seed], dtype=np.uint64))
    for key in keys:
        mixed = _mix(mixed ^ _mix(np.atleast_1d(key).astype(np.int64).astype(np.uint64)))
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def places(pixels: Float[np.ndarray, "M 2"]) -> Int64[np.ndarray, " M"]:
    """The pixel that each position lies in, as one integer: identifies a keypoint whatever its index."""
    column, row = np.floor(pixels).astype(np.int64).T
    return (row << 32) + column


def _mix(number: UInt64[np.ndarray, " _"]) -> UInt64[np.ndarray, " _"]:
    """SplitMix64 (Steele, Lea, Flood 2014); overflow is intended."""
    state = number + _STEP
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


def cluster_frames(pairs: Int[Tensor, "P 2"], num_frames: int) -> Int[Tensor, " N"]:
    """Cluster number of every frame: each frame joins the nearest of a few seed frames, by steps in the graph."""
    count = min(max(num_frames // CLUSTER_FRAMES, 1), MAX_CLUSTERS)
    low, high = pairs.numpy().T
    links = scipy.sparse.coo_matrix((np.ones(len(low)), (low, high)), shape=(num_frames, num_frames)).tocsr()
    seeds = np.random.default_rng(0).choice(num_frames, count, replace=False)
    _, _, nearest = dijkstra(
        links, directed=False, indices=seeds, unweighted=True, min_only=True, return_predecessors=True
    )
    # Frames that no seed reaches are in other components; they make one more cluster.
    return torch.from_numpy(np.unique(nearest, return_inverse=True)[1].astype(np.int64))
