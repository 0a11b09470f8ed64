"""Simulated output of a depth model in a made-up scene.

The observed depth is a fixed function of frame and pixel, so that all edges of a frame meet the same error of
its depth map. All zero gives exact data.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.geometry.rigid import camera_centers
from mbasfm.synthetic.cameras import pixel_centers, pixel_grid, ray_directions, visible_points
from mbasfm.synthetic.solids import Scene, first_hit, hash_unit, seeded, uniform
from mbasfm.types.cameras import Cameras

NUM_DISCS = 6
"""Discs of gross depth error in a frame."""
GROSS_FACTOR = (1.6, 2.5)
"""Depth within a disc is too large or too small by a factor from this range."""
SAFE_SHIFT = 0.25
"""Largest shift as a share of the nearest depth."""
FIELD_TERMS = (4, 5)
"""Cosine terms of the smooth depth error, down and across."""


@dataclass(frozen=True)
class DepthError:
    """How an estimated depth map differs from the truth; all zero is exact."""

    scale: float = 0.2
    """Standard deviation of the logarithm of a frame's scale."""
    shift: float = 0.05
    """Standard deviation of a frame's shift, as a share of its median depth (or disparity)."""
    smooth: float = 0.05
    """Root mean square over the image of a slowly varying relative error."""
    edge_blur_px: float = 1.5
    """Radius within which disparity is averaged: edges of objects are soft."""
    outliers: float = 0.02
    """Share of the image, in discs, whose depth is wrong by a large factor."""
    noise: float = 0.0
    """Standard deviation of an independent relative error of each pixel."""


def draw_depth_affine(scene: Scene, cameras: Cameras, error: DepthError, seed: int, disparity: bool = False) -> Cameras:
    """The cameras with the scale and shift that correct each frame's observed depth (or disparity)."""
    frame = torch.arange(cameras.num_frames)
    _, depth = visible_points(scene, cameras, frame, pixel_grid(cameras.intrinsics, frame, (40, 30)))
    nearest = depth.amin(-1)
    median = depth.where(depth.isfinite(), torch.nan).nanmedian(-1).values.nan_to_num(1.0)
    draws = torch.randn(2, cameras.num_frames, generator=seeded(seed, 5), dtype=torch.float64)
    shift = error.shift * draws[1]
    # Raw depth stays positive, even where a gross error makes it small.
    shift = shift / median if disparity else torch.minimum(shift * median, SAFE_SHIFT * nearest)
    return replace(
        cameras,
        depth_scale=(error.scale * draws[0]).exp(),
        depth_shift=shift,
        is_disparity=torch.full_like(cameras.is_disparity, disparity),
    )


def observe_depth(
    scene: Scene,
    cameras: Cameras,
    frame: Int[Tensor, " B"],
    pixels: Float[Tensor, "B K 2"],
    error: DepthError,
    seed: int,
) -> Float[Tensor, "B K"]:
    """Simulated depth at the given pixels.

    The cameras' own scale and shift lead back to the depth that the rest of the error left: infinite in the sky,
    whose disparity is 0 before scale and shift.
    """
    inverse = _inverse_depth(scene, cameras, frame, pixels, error.edge_blur_px)
    inverse = inverse * (-_log_error(cameras, frame, pixels, error, seed)).exp()
    scale, shift = (column[frame, None].to(pixels) for column in (cameras.depth_scale, cameras.depth_shift))
    is_disparity = cameras.is_disparity[frame, None]
    # Division by 0 is meant: the sky.
    return torch.where(is_disparity, (inverse - shift) / scale, ((1 / inverse - shift) / scale).clamp_min(1e-3))


def observe_depth_map(scene: Scene, cameras: Cameras, frame: int, error: DepthError, seed: int) -> Float[Tensor, "H W"]:
    """Simulated depth map of a frame, float32."""
    pixels = pixel_centers(cameras.intrinsics, frame)
    depth = observe_depth(scene, cameras, torch.tensor([frame]), pixels.reshape(1, -1, 2), error, seed)
    return depth.reshape(pixels.shape[:2]).float()


def _inverse_depth(
    scene: Scene, cameras: Cameras, frame: Int[Tensor, " B"], pixels: Float[Tensor, "B K 2"], blur_px: float
) -> Float[Tensor, "B K"]:
    """Disparity, averaged over a small cross of rays: on a plane the average is exact, at an edge it is soft."""
    centers = camera_centers(cameras.cam_from_world[frame]).to(pixels)[:, None]
    cross = blur_px * torch.tensor([[0.0, 0.0], [0.8, 0.6], [-0.6, 0.8], [-0.8, -0.6], [0.6, -0.8]]).to(pixels)
    offsets = cross if blur_px else cross[:1]
    taps = [1 / first_hit(scene, centers, ray_directions(cameras, frame, pixels + offset))[0] for offset in offsets]
    return torch.stack(taps).mean(0)


def _log_error(
    cameras: Cameras, frame: Int[Tensor, " B"], pixels: Float[Tensor, "B K 2"], error: DepthError, seed: int
) -> Float[Tensor, "B K"]:
    """Logarithm of observed over true depth, without scale and shift."""
    place = pixels / cameras.intrinsics.sizes[frame, None].to(pixels)
    total = torch.zeros_like(pixels[..., 0])
    if error.smooth:
        total = error.smooth * _smooth_field(cameras, frame, place, seed)
    if error.outliers:
        total = total + _disc_field(cameras, frame, place, error.outliers, seed)
    if error.noise:
        steps = (pixels.double() * 64).round().long().unbind(-1)
        one, two = (hash_unit(seed, frame[:, None], *steps, torch.tensor(part)) for part in (1, 2))
        normal = (-2 * (1 - one).log()).sqrt() * (2 * math.pi * two).cos()  # G. Box, M. Muller, 1958
        total = total + error.noise * normal.to(pixels)
    return total


def _smooth_field(
    cameras: Cameras, frame: Int[Tensor, " B"], place: Float[Tensor, "B K 2"], seed: int
) -> Float[Tensor, "B K"]:
    """Sum of a few cosines; they are orthogonal, so mean 0 and variance 1 over each image hold in closed form."""
    down, across = (torch.arange(count) for count in FIELD_TERMS)
    weight = torch.randn(cameras.num_frames, *FIELD_TERMS, generator=seeded(seed, 6), dtype=torch.float64)
    weight = weight / (1 + down[:, None] + across)
    weight[:, 0, 0] = 0
    power = 0.5 ** ((down > 0).double()[:, None] + (across > 0))
    weight = (weight / (weight.square() * power).sum((1, 2), keepdim=True).sqrt()).to(place)
    cosine_x, cosine_y = (math.pi * place[..., :1] * across).cos(), (math.pi * place[..., 1:] * down).cos()
    return ((cosine_y @ weight[frame]) * cosine_x).sum(-1)


def _disc_field(
    cameras: Cameras, frame: Int[Tensor, " B"], place: Float[Tensor, "B K 2"], share: float, seed: int
) -> Float[Tensor, "B K"]:
    """Logarithm of the gross error: discs that wrap around the image, so that each pixel is hit alike."""
    generator = seeded(seed, 7)
    centers = uniform(generator, 0.0, 1.0, NUM_DISCS, cameras.num_frames, 1, 2).to(place)
    factor = uniform(generator, *GROSS_FACTOR, NUM_DISCS, cameras.num_frames, 1).to(place)
    sign = (uniform(generator, 0.0, 1.0, NUM_DISCS, cameras.num_frames, 1) < 0.5).to(place) * 2 - 1
    sizes = cameras.intrinsics.sizes[frame, None].to(place)
    # Discs may overlap: 1 - (1 - area)^n of the image is covered.
    squared_radius = (1 - (1 - share) ** (1 / NUM_DISCS)) * sizes.prod(-1) / math.pi
    total = torch.zeros_like(place[..., 0])
    for disc in range(NUM_DISCS):
        away = place - centers[disc, frame]
        is_inside = ((away - away.round()) * sizes).square().sum(-1) < squared_radius
        total = torch.where(is_inside, (sign * factor.log())[disc, frame], total)
    return total
