"""The world of the result: levelled, in metres on the earth, or that of another model."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pycolmap
import torch
from jaxtyping import Bool, Float

from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.geometry.rigid import camera_centers
from mbasfm.geometry.similarity import Pairs, Similarity, find_up, is_line, robust_similarity, turn_to_z
from mbasfm.runtime.progress import say, stage
from mbasfm.scene.reconstruction import Reconstruction
from mbasfm.sfm.user_files import World
from mbasfm.types.outcome import ImageRow, Sigma

AGREES = 0.5
"""Least weight of a camera that counts as agreeing."""


def align_world(result: Reconstruction, world: World | None) -> Reconstruction:
    """Reconstruction in the wanted world; a component that shares too few cameras with it stays where it is."""
    if world is None:
        return result
    rows, facts_of = result.report.images, []
    cameras, models = result.cameras, [copy.deepcopy(model) for model in result.models]
    with stage("align") as facts:
        for number, model in enumerate(models):
            chosen = result.component == number
            fit = _fit(cameras.cam_from_world, chosen, world)
            facts_of.append({"component": number, "aligned": fit is not None} | (fit.facts if fit else {}))
            if fit is None:
                say(f"component {number} shares too few cameras with the wanted world; it stays in its own")
                continue
            cameras = fit.new_from_old.cameras(cameras, chosen)
            move_model(model, fit.new_from_old)
            rows = _with_scaled_spreads(rows, number, float(fit.new_from_old.scale))
        facts["aligned"] = sum(row["aligned"] for row in facts_of)
    facts_of_world = {"frame": world.frame, **world.facts, "components": facts_of}
    report = replace(result.report, images=rows, world=facts_of_world)
    return replace(result, cameras=cameras, models=tuple(models), report=report)


def move_model(model: pycolmap.Reconstruction, new_from_old: Similarity) -> None:
    """Transform poses and points of a COLMAP model, in place."""
    rotation = pycolmap.Rotation3d(new_from_old.rigid[:, :3].numpy())
    model.transform(pycolmap.Sim3d(float(new_from_old.scale), rotation, new_from_old.rigid[:, 3].numpy()))


@dataclass(frozen=True)
class _Fit:
    new_from_old: Similarity
    facts: dict[str, Any]


def _level(cam_from_world: Float[torch.Tensor, "M 3 4"]) -> _Fit:
    """Rotation of the world that makes z point up; origin and size stay."""
    up = find_up(cam_from_world[..., :3].mT)
    roll = torch.asin((cam_from_world[..., 0, :3] @ up).clamp(-1, 1)).abs().rad2deg()
    turn = Similarity.build(1.0, turn_to_z(up), torch.zeros(3, dtype=torch.float64))
    return _Fit(turn, {"scale": 1.0, "images": len(roll), "median_roll_deg": float(roll.median())})


def _fit(cam_from_world: Float[torch.Tensor, "N 3 4"], chosen: Bool[torch.Tensor, " N"], world: World) -> _Fit | None:
    if world.frame == "up":
        return _level(cam_from_world[chosen])
    if world.priors is not None:
        return _to_priors(cam_from_world, world.priors.of(chosen))
    frames = [frame for frame in world.positions if chosen[frame]]
    if len(frames) < world.min_cameras:
        return None
    source, target = cam_from_world[frames], torch.stack([world.positions[frame] for frame in frames])
    if world.poses:
        pairs = Pairs.of_poses(source, torch.stack([world.poses[frame] for frame in frames]))
    else:
        pairs = _with_up(camera_centers(source), target, cam_from_world[chosen])
    if bool((pairs.source - pairs.source[0]).norm(dim=-1).max() == 0):
        return None
    new_from_old, weight = robust_similarity(pairs)
    return _Fit(new_from_old, _facts(new_from_old, weight, pairs))


def _to_priors(cam_from_world: Float[torch.Tensor, "N 3 4"], priors: PosePriors | None) -> _Fit | None:
    if priors is None:
        return None
    new_from_old, weight = priors.similarity(cam_from_world)
    pairs = priors.pairs(cam_from_world)
    return _Fit(new_from_old, _facts(new_from_old, weight, pairs))


def _facts(new_from_old: Similarity, weight: Float[torch.Tensor, " M"], pairs: Pairs) -> dict[str, Any]:
    error = (new_from_old.points(pairs.source) - pairs.target).norm(dim=-1)
    return {
        "scale": float(new_from_old.scale),
        "images": len(weight),
        "agreeing": int((weight > AGREES).sum()),
        "median_error": float(error.median()),
    }


def _with_up(
    source: Float[torch.Tensor, "M 3"], target: Float[torch.Tensor, "M 3"], all_poses: Float[torch.Tensor, "P 3 4"]
) -> Pairs:
    """Pairs of positions, with the up direction added if they lie on a line, which leaves the turn about it open."""
    if not is_line(source):
        return Pairs(source, target)
    axes = torch.zeros(len(source), 3, 3, dtype=torch.float64)
    axes[..., 0] = find_up(all_poses[..., :3].mT)
    level = torch.zeros_like(axes)
    level[:, 2, 0] = 1
    return Pairs(source, target, axes, level)


def _with_scaled_spreads(rows: Sequence[ImageRow], component: int, scale: float) -> tuple[ImageRow, ...]:
    """Rows with standard deviations of positions scaled along with the world."""

    def scaled(sigma: Sigma) -> Sigma:
        return replace(sigma, translation=tuple(None if x is None else scale * x for x in sigma.translation))

    return tuple(
        replace(row, sigma=scaled(row.sigma)) if row.component == component and row.sigma is not None else row
        for row in rows
    )
