"""Which pairs are believed: those that matches, depth, triangles and the groups they join do not speak against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from mbasfm.estimators.two_view import stands_alone
from mbasfm.sfm.pairs.bridges import cut_weak_bridges
from mbasfm.sfm.pairs.depth_witness import DepthWitness
from mbasfm.sfm.pairs.judge import Verdict, judge_pairs
from mbasfm.sfm.pairs.pose_graph import choose_answers, drop_inconsistent
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Observations
from mbasfm.types.outcome import Bridge
from mbasfm.types.pairs import TwoView


@dataclass(frozen=True)
class Trust:
    """Pairs that are believed, and what was said about the others."""

    views: list[TwoView]
    verdict: Verdict
    inconsistent: list[TwoView]
    """Pairs that disagree in most of their triangles."""
    cut: tuple[Bridge, ...]
    """Pairs that would join groups on too little evidence."""

    def facts(self) -> dict[str, int]:
        """Counts for the report."""
        weak = sum(not stands_alone(view) for view in self.views)
        counts = {"reversed": self.verdict.reversed, "doubtful": self.verdict.doubtful, "turned": self.verdict.turned}
        return {**counts, "weak": weak, "inconsistent": len(self.inconsistent), "kept_apart": len(self.cut)}


def trust_pairs(
    views: Sequence[TwoView],
    observations: Observations,
    intrinsics: Intrinsics,
    rays: Sequence[Float64[np.ndarray, "_ 3"]],
) -> Trust:
    """Ask depth, then triangles, then what every pair joins."""
    focal = intrinsics.reference_focal.double().numpy()
    sizes, num_frames = intrinsics.sizes.numpy(), len(rays)
    witness = DepthWitness(observations.keypoints, observations.depths, sizes, rays, focal)
    verdict = judge_pairs(views, witness)
    kept, wrong = drop_inconsistent(choose_answers(verdict.views, num_frames), num_frames)
    joined = cut_weak_bridges(kept, verdict, num_frames)
    return Trust(joined.views, verdict, wrong, joined.cut)
