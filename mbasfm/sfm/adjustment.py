"""Adjustment from one start after the other, with checkpoints on disk, and what comes of it for every photograph.

A checkpoint is a small file that one process writes at times, so that adjustment continues after a kill.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from mbasfm.adjust.adam import AdamDescent
from mbasfm.adjust.adjust import Adjustment, Checkpoint, adjust
from mbasfm.adjust.levenberg_marquardt import Descent, Step
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.stage import Stage
from mbasfm.adjust.unknowns import PriorTerm
from mbasfm.config import Config
from mbasfm.objective.anchor_block import nearest
from mbasfm.objective.edge_block import blocks
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.losses import Binning, count_bins
from mbasfm.objective.registry import KINDS
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.polish.polish import Polished
from mbasfm.polish.tracks import HeldOut
from mbasfm.runtime.parallel import all_cores, from_main, is_main
from mbasfm.scene.reconstruction import finite, spread_of
from mbasfm.sfm.inputs import Given
from mbasfm.sfm.intrinsics import StartIntrinsics
from mbasfm.sfm.pairs.edges import Graph
from mbasfm.sfm.sample_store import StoredSamples
from mbasfm.sfm.start.race import AdjustStart, score_of
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras, Fixed, Intrinsics
from mbasfm.types.observations import Observations, Photo, SampleSource, TwoView
from mbasfm.types.outcome import ComponentRow, ImageRow, NoPose, Reason, ResidualCurve, Residuals, SkippedFile

FORMAT = 1
"""Version of the file; to be raised when its content, or what adjustment does with it, changes."""
SETTLING = -1
"""Number of the last adjustment's checkpoint."""
SECONDS_BETWEEN = 10.0
"""Seconds of work that a kill may cost; a shorter adjustment leaves no file."""
CONTENT: list[Any] = [
    Checkpoint,
    Descent,
    AdamDescent,
    Step,
    Cameras,
    Intrinsics,
    PriorTerm,
    PosePriors,
]
"""All classes that a file may hold besides tensors, plain values and statistics of residuals; no others are loaded."""
torch.serialization.add_safe_globals(CONTENT)
MIN_PARALLAX_PX = 2.0
"""Least parallax at which distances are more than guesses [px at a long side of 1024]."""
HISTOGRAM = Binning(1000.0, 100, log_scale=0.05)
"""Bins of the report's residuals, independent of those of the stages [px at a long side of 1024]."""


class FileJournal:
    """Checkpoint of one adjustment in one file; without a path nothing is kept."""

    def __init__(self, path: Path | None, cameras: Cameras, samples: SampleSource, *others: object):
        """``cameras``, ``samples`` and ``others``: all that adjustment depends on; other checkpoints are ignored."""
        self._path, self._given = path, (cameras, samples, *others)
        self._digest = ""
        self._last_time = time.monotonic()

    def last(self) -> Checkpoint | None:
        """Checkpoint of an earlier run from the same start, if there is any."""
        return from_main(self._read)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint if the last one is old enough."""
        if self._path is None or not is_main() or time.monotonic() - self._last_time < SECONDS_BETWEEN:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.part")
        torch.save((self._own_digest(), checkpoint), temporary)
        os.replace(temporary, self._path)
        self._last_time = time.monotonic()

    def _read(self) -> Checkpoint | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            with torch.serialization.safe_globals(_statistics_types()):
                digest, checkpoint = torch.load(self._path, weights_only=True)
        except Exception:  # damaged in any way: treated as missing
            return None
        return checkpoint if digest == self._own_digest() else None

    def _own_digest(self) -> str:
        """Digest of the input, computed when it is first needed, as samples may be many."""
        if not self._digest:
            digest = hashlib.blake2b(f"{FORMAT}".encode(), digest_size=20)
            for part in self._given:
                for piece in _pieces(part):
                    digest.update(piece)
            self._digest = digest.hexdigest()
        return self._digest


def _statistics_types() -> list[Any]:
    """Classes that statistics of any kind of residual are made of."""
    return [item for kind in KINDS.values() for item in kind.statistics_types]


def _pieces(item: object) -> Iterable[bytes]:
    """Bytes that distinguish a value from all others."""
    if isinstance(item, Tensor):
        yield from (repr((item.dtype, item.shape)).encode(), item.detach().contiguous().numpy().tobytes())
    elif isinstance(item, StoredSamples):
        for chunk in blocks(item):
            yield from _pieces(item.rows(chunk))
    elif is_dataclass(item) or isinstance(item, tuple):
        for value in item if isinstance(item, tuple) else vars(item).values():
            yield from _pieces(value)
    else:
        yield repr(item).encode()


def adjuster(
    samples: SampleSource, ways: Sequence[Sequence[Stage]], fixed: Fixed, priors: PosePriors | None, folder: Path | None
) -> AdjustStart:
    """A function that adjusts one start in one of several ways, with a checkpoint of each run in the folder."""

    def adjust_start(number: int, cameras: Cameras, way: int) -> Adjustment:
        path = None if folder is None else folder / f"adjust-{number}.pt"
        journal = FileJournal(path, cameras, samples, ways[way], fixed, priors)
        with all_cores():
            return adjust(cameras, samples, ways[way], fixed, priors, journal)

    return adjust_start


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

    def after(self, earlier: Adjustment) -> "Placed":
        """The same with a history that begins with the adjustment that led here."""
        return replace(self, adjustment=replace(self.adjustment, steps=(*earlier.steps, *self.adjustment.steps)))


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


Settle = Callable[[Sequence[TwoView], Cameras], Placed]
"""Adjustment of all cameras on all tracks of the pairs."""


@dataclass(frozen=True)
class Inputs:
    """Input from the user."""

    source: Path
    """Folder or list of the photographs."""
    photos: tuple[Photo, ...]
    skipped: tuple[SkippedFile, ...]
    given: Given


@dataclass(frozen=True)
class Solved:
    """State after adjustment, which all processes reach and one continues from."""

    observations: Observations
    start: StartIntrinsics
    verified: list[TwoView]
    """Pairs that agree with one relative pose."""
    graph: Graph
    """Those of them that are edges."""
    held: HeldOut
    """Tracks that judge cameras, and that no adjustment sees."""
    placed: Placed | None = None
    """Adjusted cameras; None if nothing could be adjusted."""
    settle: Settle | None = None
    """The last adjustment, which is repeated where photographs or matches are added; None where there is none."""


def residual_curves(placed: Placed | None, models: Sequence[pycolmap.Reconstruction], inlier_px: float) -> Residuals:
    """Histograms of the residuals at the start, after adjustment and after polish; the last bin counts all beyond."""
    curves: list[ResidualCurve] = []
    if placed is not None:
        for stage, cameras in (("start", placed.start), ("adjust", placed.adjustment.cameras)):
            whole, across = sample_histograms(cameras, placed.samples)
            curves += [ResidualCurve(stage, "whole", _rounded(whole)), ResidualCurve(stage, "across", _rounded(across))]
    if models:
        errors = np.concatenate([track_errors_px(model) for model in models])
        index = HISTOGRAM.index(torch.from_numpy(errors)[None])
        counts = count_bins(index, torch.ones(index.shape), HISTOGRAM.num_bins)[0]
        curves.append(ResidualCurve("polish", "tracks", _rounded(counts)))
    return Residuals(tuple(HISTOGRAM.edges().tolist()), inlier_px, tuple(curves))


def sample_histograms(cameras: Cameras, samples: SampleSource) -> tuple[Float[Tensor, " T1"], Float[Tensor, " T1"]]:
    """Mass of the samples by size of the residual (eqn:residual_2d), and by its part across the epipolar line."""
    whole = torch.zeros(HISTOGRAM.num_bins + 1, dtype=torch.float64)
    across = torch.zeros_like(whole)
    for _, block in stream(cameras, samples, NO_INTRINSICS):
        residual = isotropic(block).squared.sqrt()
        whole += count_bins(HISTOGRAM.index(residual), block.weight * block.raw.isfinite(), HISTOGRAM.num_bins)[0]
        distance = nearest(block).squared.sqrt()
        across += count_bins(HISTOGRAM.index(distance), block.weight, HISTOGRAM.num_bins)[0]
    return whole, across


def track_errors_px(model: pycolmap.Reconstruction) -> Float64[np.ndarray, " M"]:
    """Distance of every observation to the image of its point [px at a long side of 1024]."""
    errors = [np.zeros(0)]
    for image in model.images.values():
        seen = image.get_observation_points2D()
        if not seen:
            continue
        camera = model.cameras[image.camera_id]
        points = np.stack([model.points3D[point.point3D_id].xyz for point in seen])
        pixels = camera.img_from_cam(image.cam_from_world() * points)
        distance = np.linalg.norm(pixels - np.stack([point.xy for point in seen]), axis=1)
        errors.append(distance * REFERENCE_LONG_SIDE / max(camera.width, camera.height))
    return np.concatenate(errors)


def _rounded(counts: Float[Tensor, " T1"]) -> tuple[float, ...]:
    return tuple(round(value, 3) for value in counts.tolist())
