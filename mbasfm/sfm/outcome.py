"""The outcome for every photograph, and what a run hands to the report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from mbasfm.adjust.adjust import Adjustment
from mbasfm.config import Config
from mbasfm.polish.polish import Polished
from mbasfm.scene.reconstruction import finite, spread_of
from mbasfm.sfm.build_graph import Graph
from mbasfm.sfm.start.adjust_best import score_of
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Observations
from mbasfm.types.outcome import ComponentRow, ImageRow, NoPose, Reason, Residuals
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import SkippedFile
from mbasfm.types.samples import SampleSource

MIN_PARALLAX_PX = 2.0
"""Least parallax at which distances are more than guesses [px at a long side of 1024]."""


def find_reasons(count: int, graph: Graph, adjustment: Adjustment | None) -> list[Reason[NoPose] | None]:
    """Why each photograph has no pose; None for those that have one."""
    seen = {frame for view in graph.views for frame in (view.i, view.j)}
    doubted = {frame for bridge in graph.kept_apart for pair in bridge.pairs for frame in pair}
    reasons: list[Reason[NoPose] | None] = []
    for frame in range(count):
        if frame not in seen:
            reasons.append(Reason(NoPose.NOT_PROVEN if frame in doubted else NoPose.NO_PAIR))
        elif adjustment is None:
            reasons.append(Reason(NoPose.NO_DEPTH))
        else:
            reasons.append(adjustment.reason[frame])
    return reasons


def image_rows(
    observations: Observations,
    component: Int64[np.ndarray, " N"],
    reasons: Sequence[Reason[NoPose] | None],
    adjustment: Adjustment | None,
) -> tuple[ImageRow, ...]:
    """Rows of the report on photographs."""
    rows = []
    for frame, photo in enumerate(observations.photos):
        row = ImageRow(photo.name, str(photo.path.absolute()), int(component[frame]))
        if not row.registered:
            row = replace(row, reason=reasons[frame] or Reason(NoPose.NEIGHBOURS_LOST))
        elif adjustment is not None:
            row = replace(
                row,
                inlier_share=finite(float(adjustment.diagnosis.inlier_share[frame])),
                depth_error=finite(float(adjustment.diagnosis.depth_error[frame])),
                parallax_px=finite(float(adjustment.diagnosis.parallax_px[frame])),
                sigma=spread_of(adjustment.pose_covariance[frame].numpy()),
            )
        rows.append(row)
    return tuple(rows)


def component_row(item: Polished) -> ComponentRow:
    """Row of the report on a component."""
    return ComponentRow(
        images=item.model.num_images(),
        points=item.model.num_points3D(),
        mean_track_length=finite(item.model.compute_mean_track_length()),
        mean_error_px=finite(item.model.compute_mean_reprojection_error()),
        reason=item.reason,
        held_out_px=tuple(map(finite, item.held_out_px)),
        used_depth=item.used_depth,
    )


@dataclass(frozen=True)
class Placed:
    """Adjusted cameras and their start."""

    start: Cameras
    samples: SampleSource
    adjustment: Adjustment

    def facts(self) -> dict[str, Any]:
        """Facts of the adjustment for the report."""
        adjustment = self.adjustment
        share = float(adjustment.diagnosis.inlier_share[adjustment.registered].mean())
        counts = {"steps": len(adjustment.steps), "registered": int(adjustment.registered.sum())}
        return counts | {"score": score_of(adjustment), "inlier_share": share}


@dataclass(frozen=True)
class Run:
    """Everything about a run, besides its result, that the report records."""

    source: Path
    """Folder or list file of the photographs."""
    config: Config
    observations: Observations
    start: StartIntrinsics
    verified: Sequence[TwoView]
    """Pairs that agree with one relative pose, before the graph was chosen."""
    placed: Placed | None
    residuals: Residuals
    skipped: Sequence[SkippedFile]


def has_parallax(rows: Sequence[ImageRow]) -> bool:
    """Whether the camera moved between photographs, as far as that is known."""
    known = [row.parallax_px for row in rows if row.parallax_px is not None]
    return not known or max(known) > MIN_PARALLAX_PX
