"""The pose graph: which verified pairs become edges."""

from collections.abc import Sequence
from dataclasses import dataclass

from mbasfm.config import Tree
from mbasfm.estimators.two_view import stands_alone
from mbasfm.sfm.pairs.pose_graph import select_edges
from mbasfm.sfm.pairs.trust import Trust, trust_pairs
from mbasfm.sfm.start.averaging import agree_with, average_rotations, rays_of
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Observations
from mbasfm.types.outcome import Bridge
from mbasfm.types.pairs import TwoView


@dataclass(frozen=True)
class Graph:
    """Pairs that are edges, and what was said about the others."""

    views: list[TwoView]
    trust: Trust | None = None
    """None where pairs were not judged."""

    @property
    def kept_apart(self) -> tuple[Bridge, ...]:
        """Groups that were not joined, as the pairs between them are not beyond doubt."""
        return () if self.trust is None else self.trust.cut


def build_graph(
    verified: Sequence[TwoView],
    observations: Observations,
    intrinsics: Intrinsics,
    tree: Tree,
    min_covisibility: float,
) -> Graph:
    """The edges: pairs that are believed, agree with averaged rotations and see enough in common.

    The paper's tree takes every pair that stands alone.
    """
    num_frames, trust = len(observations.photos), None
    views = [view for view in verified if stands_alone(view)]
    if tree == "consistent" and verified:
        rays = rays_of(observations.keypoints, intrinsics)
        trust = trust_pairs(verified, observations, intrinsics, rays)
        views = agree_with(trust.views, average_rotations(trust.views, num_frames), rays) if trust.views else []
    return Graph(select_edges(views, num_frames, min_covisibility), trust)
