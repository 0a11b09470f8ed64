"""Starts that are worth adjusting: given cameras, frames placed one after the other, all pairs at once."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64

from mbasfm.config import Tree
from mbasfm.sfm.start.global_start import global_start
from mbasfm.sfm.start.initialize import initialize_cameras
from mbasfm.types.cameras import Cameras, Intrinsics
from mbasfm.types.pairs import Keypoints, TwoView


def start_cameras(
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    intrinsics: Intrinsics,
    is_disparity: Bool[torch.Tensor, " N"],
    tree: Tree = "consistent",
    given: Mapping[int, Float64[np.ndarray, "3 4"]] | None = None,
) -> tuple[list[Cameras], Bool[torch.Tensor, " N"]]:
    """Candidates, first the one from given poses if there are any, and which frames are placed.

    For the paper's tree there is only one.
    """
    starts, placed = initialize_cameras(views, keypoints, intrinsics, is_disparity, tree, given)
    if tree == "consistent" and views:
        if given:
            starts += initialize_cameras(views, keypoints, intrinsics, is_disparity, tree)[0]
        starts.append(global_start(views, keypoints, intrinsics, is_disparity))
    return starts, placed
