"""What became of every photograph, and what a run hands to the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from mbasfm.adjust.adjust import Adjustment
from mbasfm.config import Config
from mbasfm.scene.reconstruction import spread_of
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Observations
from mbasfm.types.pairs import TwoView
from mbasfm.types.samples import SampleSource

MIN_PARALLAX_PX = 2.0
"""At a long side of 1024: with less, distances are guesses."""


def find_reasons(count: int, views: Sequence[TwoView], adjustment: Adjustment | None) -> list[str]:
    """Why each photograph has no pose; empty for those that have one."""
    seen = {frame for view in views for frame in (view.i, view.j)}
    reasons = []
    for frame in range(count):
        if frame not in seen:
            reasons.append("no other photograph shares enough matches that agree with one relative pose")
        elif adjustment is None:
            reasons.append("none of its verified matches has depth")
        else:
            reasons.append("" if adjustment.registered[frame] else adjustment.reason[frame])
    return reasons


def image_rows(
    observations: Observations,
    component: Int64[np.ndarray, " N"],
    reasons: Sequence[str],
    adjustment: Adjustment | None,
) -> list[dict[str, Any]]:
    """What the report says about every photograph."""
    rows = []
    for frame, photo in enumerate(observations.photos):
        row: dict[str, Any] = {
            "name": photo.name,
            "source": str(photo.path.absolute()),
            "status": "registered" if component[frame] >= 0 else "not registered",
            "component": int(component[frame]),
            "reason": reasons[frame] or ("" if component[frame] >= 0 else "its neighbours could not be registered"),
        }
        if adjustment is not None and component[frame] >= 0:
            row["inlier_share"] = float(adjustment.diagnosis.inlier_share[frame])
            row["depth_error"] = float(adjustment.diagnosis.depth_error[frame])
            row["parallax_px"] = float(adjustment.diagnosis.parallax_px[frame])
            row["sigma"] = spread_of(adjustment.pose_covariance[frame].numpy())
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Placed:
    """Adjusted cameras and where they began."""

    start: Cameras
    samples: SampleSource
    adjustment: Adjustment

    @property
    def score(self) -> float:
        """S^m at the end; minus infinity where no step was taken."""
        steps = self.adjustment.steps
        return steps[-1][1].score if steps else float("-inf")

    def facts(self) -> dict[str, Any]:
        """What the report says about the adjustment."""
        adjustment = self.adjustment
        share = float(adjustment.diagnosis.inlier_share[adjustment.registered].mean())
        counts = {"steps": len(adjustment.steps), "registered": int(adjustment.registered.sum())}
        return counts | {"score": self.score, "inlier_share": share}


@dataclass(frozen=True)
class Run:
    """All that is worth recording of a run, besides its result."""

    source: Path
    """Folder or list file of the photographs."""
    config: Config
    observations: Observations
    start: StartIntrinsics
    verified: Sequence[TwoView]
    """Pairs that agree with one relative pose, before the graph was chosen."""
    placed: Placed | None


def has_parallax(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether the camera moved between photographs, as far as that is known."""
    known = known_values(rows, "parallax_px")
    return len(known) == 0 or float(known.max()) > MIN_PARALLAX_PX


def known_values(rows: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    """The numbers that are known."""
    return np.array([row[key] for row in rows if row.get(key) is not None], dtype=np.float64)
