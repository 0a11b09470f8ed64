"""Pictures of an adjustment. matplotlib is imported inside the functions: only those who draw need it."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from mbasfm.errors import MissingExtraError
from mbasfm.geometry import invert
from mbasfm.pictures import depth_picture
from mbasfm.scenery import Scene

Axes = Any
"""matplotlib's Axes; the name cannot be imported where matplotlib is missing."""
TRUTH_COLOR = "#9aa0a6"
INK = "#202124"
FIGURE_INCHES = (13.6, 7.9)
DOTS_PER_INCH = 100
NUM_COLORS = 256
"""Of the PNG: a palette makes it three times smaller."""
RESIDUAL_RANGE_PX = (0.03, 3000.0)


@dataclass(frozen=True)
class Track:
    """One set of cameras among those compared in a picture."""

    label: str
    color: str
    cam_from_world: Float[Tensor, "N 3 4"]
    """Aligned to the truth."""
    residuals: Float[Tensor, " M"]
    """eqn:residual_2d of all samples [px]."""
    across: Float[Tensor, " M"]
    """Distance of all matches to their epipolar lines [px]."""
    errors_deg: tuple[float, ...]
    """Median pose error before the first step and after each."""
    center_share: float
    """Median distance of camera centres to the true ones over the size of the scene."""


@dataclass(frozen=True)
class Picture:
    """Everything that the figure of a made-up scene shows."""

    scene: Scene
    photographs: tuple[UInt8[Tensor, "H W 3"], ...]
    depth_maps: tuple[Float[Tensor, "H W"], ...]
    """What the depth model says of each photograph; may be infinite (sky)."""
    frames: tuple[int, ...]
    """Their numbers."""
    truth: Float[Tensor, "N 3 4"]
    start: Track
    results: tuple[Track, ...]
    tau_max: float
    """Where the fine stage cuts residuals off [px]."""


def require_matplotlib() -> None:
    """Say which extra to install where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Drawing", "plots") from error


def save_picture(path: Path, picture: Picture) -> None:
    """Draw the figure and write it as PNG."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 10, "axes.titlesize": 11, "axes.edgecolor": "#80868b", "text.color": INK}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=FIGURE_INCHES, dpi=DOTS_PER_INCH, facecolor="white", layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.08), hspace=0.03)
        top, bottom = halves
        _draw_images(top, picture)
        before, after, spread, progress = bottom.subplots(1, 4, width_ratios=(1, 1, 1.05, 1.0))
        draw_cameras(before, picture.scene, picture.truth, (picture.start,))
        before.set_title("Cameras from above: start")
        draw_cameras(after, picture.scene, picture.truth, picture.results)
        after.set_title("Cameras from above: adjusted")
        draw_residuals(spread, (picture.start, *picture.results), picture.tau_max)
        draw_progress(progress, picture.results)
        buffer = BytesIO()
        figure.savefig(buffer, format="png")
    image = Image.open(buffer).convert("RGB")
    palette = image.quantize(NUM_COLORS, kmeans=1)
    image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, format="PNG", optimize=True)


def _draw_images(figure: Any, picture: Picture) -> None:
    grid = figure.subplots(2, len(picture.frames), squeeze=False)
    for column, (photograph, depth) in enumerate(zip(picture.photographs, picture.depth_maps, strict=True)):
        grid[0, column].imshow(photograph.numpy(), interpolation="antialiased")
        grid[0, column].set_title(f"frame {picture.frames[column]}", color="#5f6368", fontsize=9.5)
        grid[1, column].imshow(depth_picture(depth), cmap="magma_r", interpolation="antialiased")
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    grid[0, 0].set_ylabel("photographs", fontsize=11)
    grid[1, 0].set_ylabel("simulated depth", fontsize=11)


def draw_cameras(
    axes: Axes, scene: Scene, truth: Float[Tensor, "N 3 4"], tracks: tuple[Track, ...], fov_ratio: float = 0.55
) -> None:
    """Cameras seen from above as wedges, each tied to where it really is; the scene's solids below."""
    from matplotlib.collections import LineCollection

    true_center = invert(truth)[:, :2, 3].numpy()
    # Far cameras of a bad start would make the picture small: the truth decides what is shown.
    extent = 0.7 * float(np.ptp(true_center, axis=0).max())
    middle = 0.5 * (true_center.max(0) + true_center.min(0))
    _draw_solids(axes, scene)
    wedge = 0.13 * extent
    axes.add_collection(LineCollection(_wedges(truth, 1.5 * wedge, fov_ratio), colors=TRUTH_COLOR, linewidths=2.6))
    axes.plot([], [], color=TRUTH_COLOR, linewidth=2.6, label="truth")
    for track in tracks:
        center = invert(track.cam_from_world)[:, :2, 3].numpy()
        ties = np.stack([true_center, center], 1)
        axes.add_collection(LineCollection(list(ties), colors=track.color, linewidths=0.9, linestyles=":"))
        wedges = _wedges(track.cam_from_world, wedge, fov_ratio)
        axes.add_collection(LineCollection(wedges, colors=track.color, linewidths=1.3))
        label = f"{track.label}, {100 * track.center_share:.2f} % off"
        axes.plot([], [], color=track.color, linewidth=1.6, label=label)
    axes.set(xlim=(middle[0] - extent, middle[0] + extent), ylim=(middle[1] - extent, middle[1] + extent))
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("#dadce0")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        handlelength=1.1,
        columnspacing=1.0,
    )


def _wedges(cam_from_world: Float[Tensor, "N 3 4"], length: float, fov_ratio: float) -> list[np.ndarray]:
    """Triangles from the camera's centre to the sides of its view, seen from above."""
    world_from_cam = invert(cam_from_world)
    sides = torch.tensor([[0.0, 0.0, 0.0], [-fov_ratio, 0.0, 1.0], [fov_ratio, 0.0, 1.0], [0.0, 0.0, 0.0]]).double()
    corners = length * sides @ world_from_cam[..., :3].mT + world_from_cam[:, None, :, 3]
    return list(corners[..., :2].numpy())


def _draw_solids(axes: Axes, scene: Scene) -> None:
    """Outlines of boxes and balls from above."""
    from matplotlib.patches import Circle, Polygon

    unit = torch.tensor([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]]).double()
    for box, (half_size, is_hollow) in enumerate(zip(scene.half_size, scene.is_hollow, strict=True)):
        world_from_box = scene.world_from_box[box]
        corners = (unit * half_size) @ world_from_box[:, :3].T + world_from_box[:, 3]
        face = "none" if is_hollow else "#f1f3f4"
        axes.add_patch(Polygon(corners[:, :2].numpy(), facecolor=face, edgecolor="#dadce0", linewidth=1.0, zorder=0))
    for center, radius in zip(scene.sphere_center, scene.sphere_radius, strict=True):
        place = center[:2].tolist()
        axes.add_patch(Circle(place, float(radius), facecolor="#f1f3f4", edgecolor="#dadce0", linewidth=1.0, zorder=0))


def draw_residuals(axes: Axes, tracks: tuple[Track, ...], tau_max: float) -> None:
    """Empirical distributions F of the residual (solid) and of its part across the epipolar line (dashed)."""
    grid = np.geomspace(*RESIDUAL_RANGE_PX, 300)
    for track in tracks:
        for values, style in ((track.residuals, "-"), (track.across, "--")):
            ordered = values.abs().double().sort().values.numpy()
            share = np.searchsorted(ordered, grid) / max(len(ordered), 1)
            label = track.label if style == "-" else None
            axes.plot(grid, share, color=track.color, linestyle=style, linewidth=1.8, label=label)
    axes.axvline(tau_max, color=TRUTH_COLOR, linewidth=1.0, zorder=0)
    axes.text(tau_max * 1.2, 0.97, f"{tau_max:g} px", color="#5f6368", fontsize=8.5, va="top")
    axes.plot([], [], color=INK, linestyle="--", linewidth=1.2, label="across")
    axes.set(xscale="log", xlim=RESIDUAL_RANGE_PX, ylim=(0, 1.04), xlabel="residual r [px]")
    axes.set_title("Share of residuals below r")
    axes.legend(loc="upper left", frameon=False, fontsize=8.5, handlelength=1.7)
    axes.grid(alpha=0.25)


def draw_progress(axes: Axes, tracks: tuple[Track, ...]) -> None:
    """Median pose error over the steps of the solver."""
    longest = max(len(track.errors_deg) for track in tracks) - 1
    for track in tracks:
        steps, last = range(len(track.errors_deg)), track.errors_deg[-1]
        axes.plot(steps, track.errors_deg, color=track.color, linewidth=1.8)
        axes.plot(steps[-1], last, "o", color=track.color, markersize=5)
        offset, side = ((0, 14), "right") if steps[-1] > longest / 2 else ((9, -3), "left")
        style: dict[str, Any] = {"textcoords": "offset points", "color": track.color, "ha": side}
        axes.annotate(f"{track.label}, {last:.2f}\u00b0", (steps[-1], last), xytext=offset, **style)
    axes.margins(x=0.06, y=0.1)
    axes.set(yscale="log", xlabel="steps of the solver")
    axes.set_title("Median pose error of pairs [deg]")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25, which="both")
