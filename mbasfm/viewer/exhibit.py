"""Contents of a scene folder for the viewer, as plain values: components, links, numbers, points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from mbasfm.geometry.camera import values_at
from mbasfm.io.colmap_model import read_model
from mbasfm.io.images import read_first_small
from mbasfm.report.record import THUMBNAIL_SIDES_PX, image_rows
from mbasfm.report.verdict import Verdict, judge
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.derived import MAX_JUMP, Upright, depth_edges, frustum_size, stand_up
from mbasfm.scene.folder import Scene, points_seen, read_scenes
from mbasfm.scene.formats import read_depth, read_ply
from mbasfm.scene.report_file import damaged_report_as_error, read_report
from mbasfm.types.outcome import Cloud, PairColumns, RunReport, View

OUTSIDE = 8.0
"""Points further from the middle are left out [radii]: a few wrong ones may be anywhere."""
SHOWN_NEIGHBOURS = 5
UNKNOWN = "unknown"
BY_INLIERS, BY_ERROR = "by inliers", "by residual"
LINK_COLORS = np.array([[224, 82, 40], [240, 180, 60], [42, 157, 200]], dtype=np.float64)
"""From weak to strong; legible on black and on white."""


@dataclass(frozen=True)
class Link:
    """Two photographs that the pose graph connects."""

    i: int
    j: int
    inliers: int
    error_px: float
    """Median reprojection error of the shared points in the two photographs; NaN without such points."""


@dataclass(frozen=True)
class Component:
    """Photographs that share a world."""

    scene: Scene
    upright: Upright
    size: float
    """Size of a drawn camera, for a scene of radius 1."""
    errors_px: tuple[Float64[np.ndarray, " _"], ...]
    """Reprojection errors of each view's points, in the order of ``scene.seen``."""
    links: tuple[Link, ...]
    clouds: Mapping[str, Cloud]
    """Points of radius 1 by kind: fused (where there is depth), sparse."""

    @property
    def views(self) -> tuple[View, ...]:
        """Cameras of the component."""
        return self.scene.views

    def pose(self, view: View) -> Float64[np.ndarray, "3 4"]:
        """Pose of a camera in the upright scene."""
        return self.upright.pose(view.world_from_cam)


@dataclass(frozen=True)
class Shot:
    """A photograph, with or without a pose."""

    number: int
    name: str
    component: int
    """Number of the component; negative without a pose."""
    facts: tuple[tuple[str, str], ...]
    """Names and values to show."""
    thumbnail: UInt8[np.ndarray, "_ _ 3"] | None
    paths: tuple[Path, ...]
    """Paths at which the photograph may be."""


@dataclass(frozen=True)
class Exhibit:
    """Everything that the viewer shows."""

    title: str
    verdict: Verdict
    shots: tuple[Shot, ...]
    components: tuple[Component, ...]
    missing: tuple[tuple[str, str], ...]
    """Names and reasons of photographs without pose and of files that were left out."""


def read_exhibit(folder: Path, max_points: int) -> Exhibit:
    """Read a scene folder; clouds are thinned to a number of points each."""
    scenes, report = read_scenes(folder), read_report(folder)
    with damaged_report_as_error(folder):
        components = tuple(_component(scene, report.pairs, max_points) for scene in scenes)
        missing = [(row.name, str(row.reason)) for row in report.images if not row.registered]
        missing += [(item.name, item.reason) for item in report.skipped]
        return Exhibit(
            title="/".join(folder.resolve().parts[-2:]),
            verdict=judge(report),
            shots=_shots(folder, report, components),
            components=components,
            missing=tuple(missing),
        )


def depth_cloud(component: Component, view: View, count: int) -> Cloud | None:
    """At most ``count`` points of one aligned depth map in the upright scene, without edges, where maps smear."""
    path = component.scene.depth_file(view)
    if not path.is_file():
        return None
    depth = read_depth(path)
    height, width = depth.shape
    row, column = np.nonzero(~depth_edges(depth, MAX_JUMP))
    chosen = _evenly(len(row), count)
    row, column = row[chosen], column[chosen]
    relative = np.stack([(column + 0.5) / width, (row + 0.5) / height], -1)
    points = view.lift(relative * view.size, depth[row, column].astype(np.float64))
    image = read_first_small((component.scene.folder / "images" / view.name,), max(height, width))
    shade = np.full((1, 1, 3), 128, np.uint8) if image is None else image
    return _standing(Cloud(points, values_at(shade, relative.astype(np.float32))), component.upright)


def link_strengths(links: tuple[Link, ...], mode: str) -> tuple[Float64[np.ndarray, " L"], tuple[str, str]]:
    """Quality of each link from 0 to 1, by inliers or by residual, and the values at 0 and 1."""
    if mode == BY_INLIERS:
        value = np.log([max(link.inliers, 1) for link in links])
        names = [f"{np.exp(end):.0f}" for end in (value.min(initial=np.inf), value.max(initial=0))]
    else:
        value = -np.array([link.error_px for link in links])
        value = np.where(np.isnan(value), np.nanmin(value, initial=0), value)
        names = [f"{-end:.2f} px" for end in (value.min(initial=0), value.max(initial=-np.inf))]
    span = np.ptp(value) if len(value) else 0.0
    strength = (value - value.min()) / span if span > 0 else np.ones(len(value))
    return strength, (names[0], names[1])


def shade(strength: Float64[np.ndarray, " L"]) -> UInt8[np.ndarray, "L 3"]:
    """Colours from weak to strong."""
    position = strength * (len(LINK_COLORS) - 1)
    planes = [np.interp(position, np.arange(len(LINK_COLORS)), column) for column in LINK_COLORS.T]
    return np.stack(planes, -1).round().astype(np.uint8)


# ----------------------------------------------------------------------------------------------------------------
# Components


def _component(scene: Scene, pairs: PairColumns, max_points: int) -> Component:
    world_from_cam = np.stack([view.world_from_cam for view in scene.views])
    upright = stand_up(scene.sparse.points, world_from_cam)
    size = frustum_size(world_from_cam[:, :, 3], upright.radius) / upright.radius
    clouds = {"sparse": scene.sparse}
    if scene.file("points.ply").is_file():
        clouds = {"fused": read_ply(scene.file("points.ply"))} | clouds
    standing = {kind: _standing(_thinned(cloud, max_points), upright) for kind, cloud in clouds.items()}
    errors_px = _errors_px(scene)
    return Component(scene, upright, size, errors_px, _links(scene, errors_px, pairs), standing)


def _standing(cloud: Cloud, upright: Upright) -> Cloud:
    points = upright.points(cloud.points)
    near = np.linalg.norm(points, axis=1) < OUTSIDE
    return Cloud(points[near], cloud.colors[near])


def _thinned(cloud: Cloud, count: int) -> Cloud:
    chosen = _evenly(len(cloud.points), count)
    return Cloud(cloud.points[chosen], cloud.colors[chosen])


def _evenly(total: int, count: int) -> np.ndarray:
    return np.linspace(0, max(total - 1, 0), min(total, count)).round().astype(np.int64)


def _links(scene: Scene, errors_px: Sequence[Float64[np.ndarray, " _"]], pairs: PairColumns) -> tuple[Link, ...]:
    """The edges of the pose graph between photographs of this component."""
    index = {view.number: position for position, view in enumerate(scene.views)}
    links = []
    for i, j, inliers, used in zip(pairs.i, pairs.j, pairs.inliers, pairs.used, strict=True):
        if used and i in index and j in index:
            first, second = index[i], index[j]
            _, at_first, at_second = np.intersect1d(scene.seen[first], scene.seen[second], return_indices=True)
            both = np.concatenate([errors_px[first][at_first], errors_px[second][at_second]])
            links.append(Link(i, j, inliers, float(np.median(both)) if len(both) else float("nan")))
    return tuple(links)


def _errors_px(scene: Scene) -> tuple[Float64[np.ndarray, " _"], ...]:
    model, errors = read_model(scene.model), []
    for view in scene.views:
        pixels, points = points_seen(model, model.images[view.number + 1])
        errors.append(np.linalg.norm(view.project(points)[0] - pixels, axis=1))
    return tuple(errors)


# ----------------------------------------------------------------------------------------------------------------
# Photographs


def _shots(folder: Path, report: RunReport, components: Sequence[Component]) -> tuple[Shot, ...]:
    rows = image_rows(report, [None] * len(report.images))
    paths = [(folder / "images" / row.name, Path(row.source)) for row in report.images]
    side = next((side for count, side in THUMBNAIL_SIDES_PX if len(rows) <= count), THUMBNAIL_SIDES_PX[-1][1])
    facts = {number: text for component in components for number, text in _facts(component, rows).items()}
    pictures = in_parallel(lambda places: read_first_small(places, side), paths)
    return tuple(
        Shot(number, row["name"], row["component"], facts.get(number, (("reason", row["reason"]),)), picture, places)
        for number, (row, places, picture) in enumerate(zip(rows, paths, pictures, strict=True))
    )


def _facts(component: Component, rows: Sequence[dict[str, Any]]) -> dict[int, tuple[tuple[str, str], ...]]:
    """Facts to show about each camera of a component."""
    found = {}
    for view, errors_px in zip(component.views, component.errors_px, strict=True):
        row = rows[view.number]
        height_deg = np.rad2deg(2 * np.arctan(view.size[1] / 2 / view.focal[1]))
        known = {
            "size": f"{view.size[0]} x {view.size[1]} px",
            "focal length": f"{view.focal[0]:.1f} px ({height_deg:.0f}° high)",
            "inlier share": _percent(row["inlier_share"]),
            "sigma of direction": _sigma(row["sigma_deg"], "°"),
            "sigma of position": _sigma(row["sigma_length"], ""),
            "depth error": _percent(row["depth_error"]),
            "points": f"{len(errors_px):,}",
            "off by": f"{np.median(errors_px):.2f} px (median)" if len(errors_px) else UNKNOWN,
            "neighbours": _neighbours(component, view, rows),
        }
        found[view.number] = tuple(known.items())
    return found


def _neighbours(component: Component, view: View, rows: Sequence[dict[str, Any]]) -> str:
    """Number of neighbours, and the strongest ones by name."""
    links = [link for link in component.links if view.number in (link.i, link.j)]
    best = sorted(links, key=lambda link: -link.inliers)[:SHOWN_NEIGHBOURS]
    names = [f"{rows[link.i + link.j - view.number]['name']} ({link.inliers})" for link in best]
    more = [f"{len(links) - len(best)} more"] if len(links) > len(best) else []
    return f"{len(links)}: " + ", ".join(names + more) if links else "none"


def _sigma(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.2g}{unit}" if value else "0 (it defines the world)"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"
