"""Stages of adjustment as frozen values. A variation of a stage is another value, not a flag."""

import math
from dataclasses import dataclass, replace
from typing import Literal

Loss = Literal["mba", "median", "mixture", "l2", "soft_l1", "cauchy", "tukey", "truncated_l1"]


@dataclass(frozen=True)
class Priors:
    """Standard deviations that keep what the data does not determine near its start."""

    log_focal: float = 0.3
    log_scale: float = 1.0
    shift: float = 0.2
    """Share of the frame's median corrected depth (or disparity)."""
    radial: float = 0.1


@dataclass(frozen=True)
class Stage:
    """One round of adjustment: which residual, which loss, which solver, when to stop."""

    name: str
    residual: str
    """A kind of objective/registry.py: ``isotropic`` is the paper's; ``split`` separates epipolar line and depth."""
    tau_max: float
    """Residuals beyond it count as outliers [px at a long side of 1024]."""
    log_scale: float | None = None
    """Bins uniform in log(1 + r / log_scale) [px]; None: uniform in r."""
    num_bins: int = 100
    """T."""
    per_star: bool = False
    """One distribution per star (source frame) instead of one over the graph; isotropic only."""
    loss: Loss = "mba"
    """``mba``: p(r)/r. ``median`` and ``mixture``: better 1-D weights. The rest: rivals of the paper's ablation."""
    solver: Literal["lm", "adam"] = "lm"
    max_steps: int = 60
    """lm: at most; adam: exactly."""
    tolerance: float = 1e-5
    """lm stops when a step promises or brings less than this share of the loss."""
    learning_rate: float = 1e-3
    """adam only; world scaled so that the root's median depth is 1."""
    intrinsics_boost: float = 50.0
    """adam only: factor on the learning rate of the focal length in pixels."""
    priors: Priors = Priors()
    restarts: int = 2
    """How often frames without a single inlier are started again from a neighbour."""


COARSE = Stage("coarse", "isotropic", tau_max=math.expm1(10.0), log_scale=1.0, per_star=True)
"""eqn:coarse_ba: log(1 + r) up to 10, one distribution per star."""
FINE = Stage("fine", "isotropic", tau_max=20.0)
"""eqn:fine_forward: r up to 20 px, one distribution."""
SPLIT = Stage("split", "split", tau_max=1000.0, log_scale=0.2, loss="mixture")
"""The residual split at the epipolar line. One stage does it all: its mixture weights adapt from a rough start, where
errors are hundreds of pixels, to the end, so that neither a coarse stage nor a smaller tau_max improves on it."""

ANNEALING_PX = (8.0, 4.0)


def annealed(stage: Stage) -> tuple[Stage, ...]:
    """The stage, then the same with smaller tau_max: worth it for the isotropic residual."""
    return (stage, *(replace(stage, name=f"{stage.name}_{tau:g}px", tau_max=tau) for tau in ANNEALING_PX))


PAPER_STAGES = (COARSE, FINE)
"""What the paper does."""
SPLIT_STAGES = (SPLIT,)
"""The default."""


def with_loss(loss: Loss) -> tuple[Stage, ...]:
    """The paper's stages with a rival loss. L2 and its kin have no threshold of their own: they see all residuals."""
    has_threshold = loss in ("mba", "truncated_l1")
    fine = FINE if has_threshold else replace(FINE, tau_max=COARSE.tau_max, log_scale=COARSE.log_scale)
    return replace(COARSE, loss=loss), replace(fine, loss=loss)
