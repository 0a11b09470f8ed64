"""Stages of adjustment as frozen values. A variation of a stage is another value, not a flag."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mbasfm.objective.losses import Binning
from mbasfm.objective.residual_kind import Anchoring, LossShape

Loss = Literal["mba", "median", "mixture", "l2", "soft_l1", "cauchy", "tukey", "truncated_l1"]


@dataclass(frozen=True)
class Priors:
    """Standard deviations that keep what the data does not determine near its start."""

    log_focal: float = 0.3
    log_scale: float = 1.0
    shift: float = 0.2
    """Standard deviation as a share of the frame's median corrected depth (or disparity)."""
    radial: float = 0.1


@dataclass(frozen=True)
class Stage:
    """One round of adjustment: which residual, which loss, which solver, when to stop."""

    name: str
    residual: str
    """Kind in objective/registry.py: ``isotropic`` is the paper's; ``anchored`` has a depth per track, ``split`` per
    sample."""
    tau_max: float
    """Residual beyond which a sample counts as an outlier [px at a long side of 1024]."""
    log_scale: float | None = None
    """Bins uniform in log(1 + r / log_scale) [px]; None: uniform in r."""
    num_bins: int = 100
    """Number of bins T."""
    per_star: bool = False
    """One distribution per star (source frame) instead of one over the graph; isotropic only."""
    loss: Loss = "mba"
    """Loss. ``mba``: p(r)/r. ``median``, ``mixture``: better 1-D weights. The rest: rivals of the paper's ablation."""
    solver: Literal["lm", "adam"] = "lm"
    max_steps: int = 60
    """Number of steps: the largest for lm, the exact one for adam."""
    tolerance: float = 1e-5
    """Share of the loss below which a step's predicted or actual gain ends lm."""
    tolerance_per_unknown: float = 0.0
    """The same per unknown, for losses that are log-likelihoods: errors of matches alone move the loss by 1/2 each."""
    learning_rate: float = 1e-3
    """Learning rate of adam, in a world where the root's median depth is 1."""
    intrinsics_boost: float = 50.0
    """Factor on adam's learning rate for the focal length in pixels."""
    priors: Priors = Priors()
    restarts: int = 2
    """How often frames without a single inlier are restarted from a neighbour."""
    anchoring: Anchoring = Anchoring()
    """How the inverse depths of anchors are treated; anchored only."""

    @property
    def shape(self) -> LossShape:
        """The loss, as a kind of residual needs to know it."""
        binning = Binning(self.tau_max, self.num_bins, self.log_scale)
        return LossShape(binning, self.loss, self.per_star, self.anchoring)


COARSE = Stage("coarse", "isotropic", tau_max=math.expm1(10.0), log_scale=1.0, per_star=True)
"""Stage of eqn:coarse_ba: log(1 + r) up to 10, one distribution per star."""
FINE = Stage("fine", "isotropic", tau_max=20.0)
"""Stage of eqn:fine_forward: r up to 20 px, one distribution."""
SPLIT = Stage("split", "split", tau_max=1000.0, log_scale=0.2, loss="mixture")
"""Stage of the residual split at the epipolar line. It needs no coarse stage and no smaller tau_max afterwards: its
mixture weights adapt from a rough start, where errors are hundreds of pixels, to the end."""

ANCHORED = Stage("anchored", "anchored", tau_max=1000.0, log_scale=0.2, loss="mixture", tolerance_per_unknown=1e-2)
"""Stage of anchors, whose inverse depths are marginalized. Its weights are those of the residuals' distribution."""
ROUGH = replace(ANCHORED, name="rough", loss="soft_l1")
"""The same with a loss that is nearly convex: from a start that is far off, a distribution of residuals may confirm a
wrong fold of a scene, with all that speaks against it as outliers."""
NEXT_TO_NO_FAITH = 1e-4

ANNEALING_PX = (8.0, 4.0)


def annealed(stage: Stage) -> tuple[Stage, ...]:
    """The stage, then the same with ever smaller tau_max, which helps the isotropic residual."""
    return (stage, *(replace(stage, name=f"{stage.name}_{tau:g}px", tau_max=tau) for tau in ANNEALING_PX))


PAPER_STAGES = (COARSE, FINE)
"""The stages of the paper."""
SPLIT_STAGES = (SPLIT,)
"""The stage of the split residual."""
ANCHORED_STAGES = (ROUGH, ANCHORED)
"""The default stages."""


def without_depth(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The same where depth misleads: its corrections are still found, but it has no say about cameras."""
    anchoring = Anchoring(faith=NEXT_TO_NO_FAITH)
    return tuple(replace(stage, name=f"{stage.name} without depth", anchoring=anchoring) for stage in stages)


def with_loss(loss: Loss) -> tuple[Stage, ...]:
    """The paper's stages with a rival loss. L2 and its kin have no threshold of their own: they see all residuals."""
    has_threshold = loss in ("mba", "truncated_l1")
    fine = FINE if has_threshold else replace(FINE, tau_max=COARSE.tau_max, log_scale=COARSE.log_scale)
    return replace(COARSE, loss=loss), replace(fine, loss=loss)
