"""Clusters of frames in the graph of their pairs."""

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Int
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

CLUSTER_FRAMES, MAX_CLUSTERS = 40, 160


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
