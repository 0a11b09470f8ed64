"""The pose graph: which verified pairs become edges."""

from collections.abc import Sequence

from mbasfm.config import Tree
from mbasfm.sfm.pairs.pose_graph import choose_answers, drop_inconsistent, select_edges
from mbasfm.sfm.start.averaging import agree_with, average_rotations, rays_of
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.pairs import Keypoints, TwoView


def build_graph(
    verified: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    intrinsics: Intrinsics,
    tree: Tree,
    min_covisibility: float,
) -> list[TwoView]:
    """Edges: pairs that agree with their triangles and the average rotation, and that see enough in common."""
    views, num_frames = list(verified), len(keypoints)
    if tree == "consistent" and views:
        views, _ = drop_inconsistent(choose_answers(views, num_frames), num_frames)
        rotation = average_rotations(views, num_frames)
        views = agree_with(views, rotation, rays_of(keypoints, intrinsics))
    return select_edges(views, num_frames, min_covisibility)
