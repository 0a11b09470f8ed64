"""Result of re-localization: a pose or a reason per query, as COLMAP model, TUM trajectory and JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
from jaxtyping import Float64

from mbasfm.scene.formats import tum_text
from mbasfm.scene.report_file import reason_to_json
from mbasfm.types.cameras import Lens
from mbasfm.types.outcome import NoPose, Reason, View

MODEL, TRAJECTORY, REPORT = Path("sparse") / "0", "trajectory.tum", "localization.json"


@dataclass(frozen=True)
class Located:
    """Result for one query."""

    name: str
    cam_from_world: Float64[np.ndarray, "3 4"] | None
    """Pose in the map's world; None if the query could not be localized."""
    lens: Lens
    covariance: Float64[np.ndarray, "6 6"]
    """Covariance of the twist (omega [rad], tau [world length]) with T <- exp(xi) T; NaN if not localized."""
    num_inliers: int
    """Number of keypoints that agree with the pose."""
    inlier_share: float
    """Share of inliers among the keypoints that show a point of the map."""
    quarter_turns: int
    """Counter-clockwise quarter turns with which its features agree with the map's."""
    reason: Reason[NoPose] | None
    """Why the query is not localized, a sentence as text; None if it is."""

    @property
    def localized(self) -> bool:
        """Whether the query has a pose."""
        return self.cam_from_world is not None


@dataclass(frozen=True)
class Localization:
    """Poses of queries in the world of a map."""

    queries: tuple[Located, ...]
    report: dict[str, Any]
    """Stages and notes of the run."""

    @property
    def num_localized(self) -> int:
        """Number of queries with a pose."""
        return sum(query.localized for query in self.queries)

    def model(self) -> pycolmap.Reconstruction:
        """A COLMAP model of the localized queries, without points; image ids are numbers of queries plus one."""
        model = pycolmap.Reconstruction()
        for number, query in enumerate(self.queries, 1):
            if query.cam_from_world is not None:
                model.add_camera_with_trivial_rig(_camera(query.lens, number))
                image = pycolmap.Image(name=query.name, keypoints=np.zeros((0, 2)), camera_id=number, image_id=number)
                model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(query.cam_from_world))
        return model

    def save(self, folder: Path) -> None:
        """Write sparse/0, trajectory.tum and localization.json; those of an older run are replaced."""
        (folder / MODEL).mkdir(parents=True, exist_ok=True)
        self.model().write_binary(folder / MODEL)
        (folder / TRAJECTORY).write_text(tum_text(_views(self.queries), {}), encoding="utf-8")
        content = {**self.report, "queries": [_row(query) for query in self.queries]}
        (folder / REPORT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _camera(lens: Lens, number: int) -> pycolmap.Camera:
    camera: dict[str, Any] = lens.camera()
    return pycolmap.Camera(**camera, camera_id=number)


def _views(queries: Sequence[Located]) -> list[View]:
    return [
        View(q.name, number, q.cam_from_world, q.lens.focal, q.lens.center, tuple(q.lens.size.tolist()), number)
        for number, q in enumerate(queries)
        if q.cam_from_world is not None
    ]


def _row(query: Located) -> dict[str, Any]:
    pose = query.cam_from_world
    row: dict[str, Any] = {
        "name": query.name,
        "status": "localized" if query.localized else "not localized",
        **reason_to_json(query.reason),
        "inliers": query.num_inliers,
        "inlier_share": query.inlier_share,
        "quarter_turns": query.quarter_turns,
    }
    if pose is not None:
        row |= {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist(), "center": (-pose[:, :3].T @ pose[:, 3]).tolist()}
        row["K"] = [*query.lens.focal.tolist(), *query.lens.center.tolist()]
        known = np.isfinite(query.covariance).all()
        row["covariance"] = query.covariance.tolist() if known else None
        if known:
            sigma = np.sqrt(np.clip(np.diag(query.covariance), 0, None))
            row["sigma"] = {
                "rotation_deg": math.degrees(float(np.linalg.norm(sigma[:3]))),
                "translation": float(np.linalg.norm(sigma[3:])),
            }
    return row
