"""What the solvers work on, and what they report after each step."""

from dataclasses import dataclass

from mbasfm.adjust.gauge import Gauge
from mbasfm.adjust.normal_equations import Pairing
from mbasfm.adjust.stage import Stage
from mbasfm.adjust.unknowns import Unknowns
from mbasfm.objective.residual_kind import Form
from mbasfm.types.observations import SampleSource


@dataclass(frozen=True)
class Step:
    """One line of a stage's history."""

    seconds: float
    """Seconds since the start of the stage."""
    loss: float
    """Loss per sample under the distribution at the start of the step."""
    score: float
    """S^m per sample after the step [px]; not comparable between stages with different tau_max. NaN before any."""
    damping: float
    accepted: bool


@dataclass(frozen=True)
class Problem:
    """All that stays the same during one stage."""

    form: Form
    samples: SampleSource
    unknowns: Unknowns
    pairing: Pairing
    gauge: Gauge
    stage: Stage
