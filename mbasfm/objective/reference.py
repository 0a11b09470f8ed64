"""Residuals of all samples, written to be read: the slow, differentiable twin of objective/edge_block.py; their noise.

Residuals are measured at a long side of 1024: px * (1024 / long side of image j).
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.geometry.camera import pixel_rays
from mbasfm.geometry.rigid import relative_poses
from mbasfm.objective.losses import Binning, Distribution, robust_sigma
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples

RATIO_BINNING = Binning(tau_max=2.0, num_bins=80, log_scale=0.01)
"""Bins of |along| / slope, the relative depth error of a sample."""
FIRST_NOISE = (1.0, 0.1)
"""Match error [px] and relative depth error assumed before anything has been measured."""
DEPTH_ERROR_RANGE = (0.01, 0.5)
MATCH_ERROR_RANGE_PX = (0.05, 10.0)
SHRINKAGE_SAMPLES = 20.0
"""Number of samples at which a frame's own depth error counts as much as the common one."""


@dataclass(frozen=True)
class NoiseScale:
    """Noise of matches and depths, as the split residual needs it."""

    match_px: float
    """Error sigma_m of a match across its epipolar line [px]."""
    depth: Float[Tensor, " N"]
    """Relative depth error sigma_d of each frame."""


def estimate_noise(across: Distribution, ratio: Distribution) -> NoiseScale:
    """Match noise from the across-part, and depth noise per frame, shrunk to the common one where samples are few."""
    match_px = float(robust_sigma(across, dimension=1)[0].clamp(*MATCH_ERROR_RANGE_PX))
    pooled = Distribution(ratio.binning, ratio.counts.sum(0, keepdim=True), ratio.total.sum(0, keepdim=True))
    if float(pooled.total[0]) < 1:
        return NoiseScale(match_px, torch.full((len(ratio.total),), 0.1, dtype=torch.float64))
    common, own = robust_sigma(pooled, dimension=1), robust_sigma(ratio, dimension=1)
    trust = ratio.total / (ratio.total + SHRINKAGE_SAMPLES)
    return NoiseScale(match_px, torch.exp(torch.lerp(common.log(), own.log(), trust)).clamp(*DEPTH_ERROR_RANGE))


@dataclass(frozen=True)
class EdgeRays:
    """Each sample in frame j, in centred pixels of the reference size: it projects to (start + rho * step) / z."""

    start: Float[Tensor, "E K 3"]
    """Direction K_j R_ji u of the pixel's ray."""
    step: Float[Tensor, "E 1 3"]
    """Vector K_j t_ji, which is added in proportion to inverse depth."""
    inverse_depth: Float[Tensor, "E K"]
    """Inverse depth rho; NaN where the corrected depth is not positive."""
    target: Float[Tensor, "E K 2"]
    """The match q."""


@dataclass(frozen=True)
class SplitResiduals:
    """The residual vector of each sample in two parts (both [px]), and the precision of each part."""

    across: Float[Tensor, "E K"]
    """Distance to the epipolar half-line, unaffected by depth errors. Infinite where nothing is in front."""
    along: Float[Tensor, "E K"]
    """Error along the line at the predicted depth. Infinite where the prediction is behind the camera."""
    spread: Float[Tensor, "E K"]
    """Expected size s of ``along`` from match and depth noise."""
    slope: Float[Tensor, "E K"]
    """Shift g of the prediction per unit of log depth."""
    place: Float[Tensor, "E K 2"]
    """Pair (c, d): ``across`` is measured at the point c * start + d * step of EdgeRays, which has z = 1."""
    normal: Float[Tensor, "E K 2"]
    """Direction in which ``across`` is measured."""


def inverse_depths(cameras: Cameras, samples: Samples) -> Float[Tensor, "E K"]:
    """Corrected inverse depth of each sample (eqn:depth_adjustment); NaN where the corrected depth is not positive."""
    i = samples.edges[:, 0]
    scale = cameras.depth_scale[i, None].to(samples.data)
    shift = cameras.depth_shift[i, None].to(samples.data)
    is_disparity = cameras.is_disparity[i, None]
    raw = samples.data[..., 4]
    zero = torch.zeros_like(raw)  # values of the other kind leave before any arithmetic: 0 * inf spoils gradients
    disparity = (scale * raw.where(is_disparity, zero) + shift).clamp_min(0)  # beyond infinity is infinity: sky
    inverse_raw = torch.where(is_disparity, zero, raw.reciprocal())  # 0 for sky
    denominator = scale + shift * inverse_raw
    depth_like = inverse_raw / denominator.where(denominator > 0, torch.full_like(denominator, torch.nan))
    return torch.where(is_disparity, disparity, depth_like)


def edge_rays(cameras: Cameras, samples: Samples) -> EdgeRays:
    """Rays, baselines and targets of all samples in the image of frame j."""
    intrinsics, dtype = cameras.intrinsics, samples.data
    i, j = samples.edges.unbind(-1)
    focal_j = intrinsics.focal[j] * cameras.intrinsics.reference_scale[j, None]
    to_pixels = torch.cat([focal_j, torch.ones_like(focal_j[:, :1])], -1)[..., None]
    projection = (to_pixels * relative_poses(cameras.cam_from_world, samples.edges)).to(dtype)
    rays_i = pixel_rays(samples.data[..., 0:2], intrinsics, i[:, None])
    start = torch.cat([rays_i, torch.ones_like(rays_i[..., :1])], -1) @ projection[..., :3].mT
    rays_j = pixel_rays(samples.data[..., 2:4], intrinsics, j[:, None])
    target = rays_j * focal_j[:, None].to(dtype)
    return EdgeRays(start, projection[:, None, :, 3], inverse_depths(cameras, samples), target)


def isotropic_residuals(cameras: Cameras, samples: Samples) -> Float[Tensor, "E K"]:
    """Distance between each projected sample and its match (eqn:residual_2d) [px at the reference size].

    A point that ends up behind camera j has no projection: its residual is infinite.
    """
    return reprojection_errors(edge_rays(cameras, samples))


def anchored_residuals(cameras: Cameras, samples: Samples, inverse_depth: Float[Tensor, " A"]) -> Float[Tensor, "E K"]:
    """The same distance with the inverse depth of each sample's anchor instead of the depth map's."""
    return reprojection_errors(replace(edge_rays(cameras, samples), inverse_depth=inverse_depth[samples.anchors]))


def reprojection_errors(rays: EdgeRays) -> Float[Tensor, "E K"]:
    """Distance of each sample from its match, given its inverse depth; infinite behind the camera."""
    points = rays.start + rays.inverse_depth.nan_to_num(nan=-1.0)[..., None] * rays.step
    front = (points[..., 2] > 0) & ~rays.inverse_depth.isnan()
    depth = points[..., 2:].where(front[..., None], torch.ones_like(points[..., 2:]))
    error = points[..., :2] / depth - rays.target
    # The square root has no derivative at 0; the tiny term gives it the derivative 0.
    length = (error.square().sum(-1) + 1e-24).sqrt()
    return length.where(front, torch.full_like(length, torch.inf))


def split_residuals(cameras: Cameras, samples: Samples, noise: NoiseScale) -> SplitResiduals:
    """Residuals split at the epipolar line: across it, and along it.

    Across is measured from the point of the half-line (depths from 0 to infinity, in front of the camera) that is most
    likely given the match, the predicted depth and their noise; it differs from the distance to the whole line only
    where that point lies beyond an end of the half-line.
    """
    rays = edge_rays(cameras, samples)
    start, step, target = rays.start, rays.step, rays.target
    line = torch.linalg.cross(start, step.expand_as(start))
    norm = line[..., :2].norm(dim=-1).clamp_min(torch.finfo(start.dtype).tiny)
    normal = line[..., :2] / norm[..., None]
    tangent = torch.stack([-normal[..., 1], normal[..., 0]], -1)
    distance = -((normal * target).sum(-1) + line[..., 2] / norm)
    foot = target + distance[..., None] * normal

    rho = rays.inverse_depth.nan_to_num(nan=-1.0)
    predicted = start + rho[..., None] * step
    front = (predicted[..., 2] > 0) & ~rays.inverse_depth.isnan()
    z = predicted[..., 2].where(front, torch.ones_like(rho))
    pixels = predicted[..., :2] / z[..., None]
    along = (tangent * (pixels - target)).sum(-1)
    slope = (rho / z * (tangent * (step[..., :2] - pixels * step[..., 2:])).sum(-1)).abs()
    spread_squared = noise.match_px**2 + (noise.depth.to(slope)[samples.edges[:, 0], None] * slope).square()
    keep = torch.where(front, noise.match_px**2 / spread_squared, torch.zeros_like(slope))  # 1 - kappa
    likely = foot + (keep * along.where(front, torch.zeros_like(along)))[..., None] * tangent

    offset, place = clamp_to_half_line(start, step, likely, tangent)
    signed = distance.where(offset == 0, (distance.square() + offset.square() + 1e-24).sqrt())
    vector = distance[..., None] * normal + offset[..., None] * tangent
    direction = torch.where((offset == 0)[..., None], normal, vector / signed[..., None])
    infinite = torch.full_like(along, torch.inf)
    across = signed.where(offset.isfinite(), infinite)
    return SplitResiduals(across, along.where(front, infinite), spread_squared.sqrt(), slope, place, direction)


def clamp_to_half_line(
    start: Float[Tensor, "E K 3"],
    step: Float[Tensor, "E 1 3"],
    likely: Float[Tensor, "E K 2"],
    tangent: Float[Tensor, "E K 2"],
) -> tuple[Float[Tensor, "E K"], Float[Tensor, "E K 2"]]:
    """Distance along the tangent that a point of the line must move to have positive depth, and where it ends up.

    The half-line runs from the image of ``start`` (infinitely far) to that of ``step`` (infinitely near). The way is
    infinite where neither end is in front of the camera and the point itself is not either. The place is given by
    (c, d), so that c * start + d * step is the point with z = 1.
    """
    to_start = (tangent * (start[..., :2] - likely * start[..., 2:])).sum(-1)
    to_step = (tangent * (step[..., :2] - likely * step[..., 2:])).sum(-1)
    z = start[..., 2] * to_step - step[..., 2] * to_start  # start * to_step - step * to_start projects to likely
    inside = (to_step * z > 0) & (-to_start * z >= 0)
    zero, infinite = torch.zeros_like(z), torch.full_like(z, torch.inf)
    far = torch.where(start[..., 2] > 0, to_start / start[..., 2], infinite)
    near = torch.where(step[..., 2] > 0, to_step / step[..., 2], infinite)
    is_far = far.abs() <= near.abs()
    offset = torch.where(inside, zero, torch.where(is_far, far, near))
    end = torch.stack(
        [
            torch.where(is_far, 1 / start[..., 2], zero),
            torch.where(is_far, zero, (1 / step[..., 2]).expand_as(zero)),
        ],
        -1,
    )
    place = torch.stack([to_step, -to_start], -1) / z.where(inside, torch.ones_like(z))[..., None]
    return offset, torch.where(inside[..., None], place, end)
