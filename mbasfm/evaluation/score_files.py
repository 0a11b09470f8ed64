"""Scores of pose files by a protocol, after matching their poses by name, time or order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.evaluation.metrics import all_pairs, frame_errors, pair_errors, recall_curve
from mbasfm.evaluation.protocols import Protocol, evaluate
from mbasfm.io.lists import read_pairs
from mbasfm.io.poses import MAX_TIME_APART, PoseFile, read_poses

CURVE_DEG = tuple(round(0.05 * 400 ** (step / 80), 6) for step in range(81))
"""Thresholds of the curve that is plotted: 0.05 to 20 degrees in equal ratios."""
CURVE_CM = tuple(round(0.5 * 100 ** (step / 80), 6) for step in range(81))
"""Thresholds of the curve for absolute poses: 0.5 to 50 cm in equal ratios."""
CURVE_MAX_DEG = 5.0


@dataclass(frozen=True)
class Score:
    """Result of one estimate."""

    measures: dict[str, float]
    num_images: int
    """Number of images of the truth."""
    num_registered: int
    num_pairs: int
    num_strangers: int = 0
    """Number of images of the estimate that the truth does not have."""
    curve: tuple[float, ...] = ()
    """Share of pairs whose pose error is below each of CURVE_DEG; where poses are absolute, share of images nearer than
    each of CURVE_CM, turned by less than 5 degrees."""


def score_poses(
    estimate: Mapping[str, Float64[np.ndarray, "3 4"]],
    names: Sequence[str],
    truth: Float64[np.ndarray, "N 3 4"],
    protocol: Protocol,
    pairs: Int64[Tensor, "P 2"] | None = None,
) -> Score:
    """Score of poses by name against those of ``names``; a missing pose is wrong."""
    nowhere = np.full((3, 4), np.nan)
    poses = torch.from_numpy(np.stack([estimate.get(name, nowhere) for name in names]))
    registered = poses.isfinite().flatten(1).all(-1)
    true_poses = torch.from_numpy(np.ascontiguousarray(truth))
    # Where there is no pose its numbers are not looked at, but arithmetic with NaN would spoil alignments.
    poses = poses.where(registered[:, None, None], true_poses)
    measures = evaluate(poses, true_poses, registered, protocol, pairs)
    pairs = all_pairs(len(names)) if pairs is None else pairs
    if protocol.absolute:
        frames = frame_errors(poses, true_poses, registered)
        curve = tuple(frames.share_within(limit / 100, CURVE_MAX_DEG) for limit in CURVE_CM)
    else:
        errors = pair_errors(poses, true_poses, registered, pairs).pose_deg(protocol.folded)
        curve = tuple(recall_curve(errors, CURVE_DEG))
    strangers = len(set(estimate) - set(names))
    return Score(measures, len(names), int(registered.sum()), len(pairs), strangers, curve)


def errors_by_name(
    estimate: Mapping[str, Float64[np.ndarray, "3 4"]], names: Sequence[str], truth: Float64[np.ndarray, "N 3 4"]
) -> dict[str, tuple[float, ...]]:
    """Distance of centres [cm] and angle [deg] of every image, nothing aligned; infinite without a pose."""
    nowhere = np.full((3, 4), np.nan)
    poses = np.stack([estimate.get(name, nowhere) for name in names])
    errors = frame_errors(torch.from_numpy(poses), torch.from_numpy(np.ascontiguousarray(truth)))
    rows = zip((100 * errors.distance).tolist(), errors.rotation_deg.tolist(), strict=True)
    return dict(zip(names, rows, strict=True))


def score_files(
    model: Path, truth: Path, protocol: Protocol, pairs: Path | None = None, also_registered: Path | None = None
) -> Score:
    """Score a model against the truth; both are whatever ``read_poses`` can read.

    ``pairs`` lists the pairs that count, two names of the truth per line. ``also_registered`` is another model: only
    pairs count for which it has both poses.
    """
    reference, estimate = read_poses(truth), read_largest(model)
    rows = join_rows(estimate, reference)
    poses = {reference.names[row]: estimate.cam_from_world[mine] for row, mine in rows.items()}
    counted = _counted_pairs(reference, pairs, also_registered)
    score = score_poses(poses, reference.names, reference.cam_from_world, protocol, counted)
    return Score(**{**score.__dict__, "num_strangers": len(estimate.names) - len(rows)})


def read_largest(path: Path) -> PoseFile:
    """Poses of a file, or of the largest of several COLMAP models: sparse/0, sparse/1, ..."""
    for parent in (path / "sparse", path):
        numbered = [model for model in parent.glob("*") if model.is_dir() and model.name.isdigit()]
        if len(numbered) > 1:
            models = [read_poses(model) for model in sorted(numbered, key=lambda model: int(model.name))]
            return max(models, key=lambda model: len(model.names))
    return read_poses(path)


def join_rows(estimate: PoseFile, truth: PoseFile) -> dict[int, int]:
    """Row of the truth to row of the estimate: by name, by time or, if one of them has neither, by order."""
    if "order" in (estimate.by, truth.by):
        if len(estimate.names) != len(truth.names):
            raise InputError(
                f"{estimate.path} has {len(estimate.names)} poses and {truth.path} has {len(truth.names)}; one of them"
                " has no names or times, so there must be as many to be joined in order"
            )
        return dict(zip(_in_order(truth), _in_order(estimate), strict=True))
    if "name" not in (estimate.by, truth.by):
        return _rows_by_stamp(estimate, truth)
    if truth.by == "name":
        row_of = {name: row for row, name in enumerate(truth.names)}
        return {row_of[name]: row for name, row in estimate.rows_of(truth.names).items()}
    mine = {name: row for row, name in enumerate(estimate.names)}
    return {row: mine[name] for name, row in truth.rows_of(estimate.names).items()}


def _rows_by_stamp(estimate: PoseFile, truth: PoseFile) -> dict[int, int]:
    """Rows of two trajectories matched by the nearest time stamp or the same number, each pose once."""
    stamps, true_stamps = (np.array([float(name) for name in file.names]) for file in (estimate, truth))
    nearest = np.abs(true_stamps[None] - stamps[:, None]).argmin(1)
    apart = np.abs(true_stamps[nearest] - stamps)
    rows: dict[int, int] = {}
    for row in np.argsort(apart):
        if apart[row] <= MAX_TIME_APART:
            rows.setdefault(int(nearest[row]), int(row))
    if not rows:
        raise InputError(f"{estimate.path}: no time stamp is within {MAX_TIME_APART} s of one of {truth.path}")
    return rows


def _in_order(file: PoseFile) -> list[int]:
    rows = list(range(len(file.names)))
    if file.by in ("time", "number"):
        return sorted(rows, key=lambda row: float(file.names[row]))
    return sorted(rows, key=lambda row: file.names[row]) if file.by == "name" else rows


def _counted_pairs(truth: PoseFile, pairs: Path | None, also_registered: Path | None) -> Int64[Tensor, "P 2"] | None:
    if pairs is None and also_registered is None:
        return None
    counted = all_pairs(len(truth.names)) if pairs is None else torch.from_numpy(read_pairs(pairs, truth.names))
    if also_registered is not None:
        other: Bool[Tensor, " N"] = torch.zeros(len(truth.names), dtype=torch.bool)
        other[list(join_rows(read_largest(also_registered), truth))] = True
        counted = counted[other[counted].all(-1)]
        if not len(counted):
            raise InputError(f"{also_registered}: has both poses of none of the pairs that count")
    return counted
