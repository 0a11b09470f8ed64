"""A block of edges for fast kernels: cameras, rays, prediction with analytic derivatives, rows and Gram matrices.

A block holds a cache-sized number of edges as planes (e, K). All lengths are centred pixels of the reference size, in
which frame j sees the sample at Y = start + rho * step (start = K_j R u, step = K_j t), projected to (Y_x, Y_y) / Y_z.
Derivatives are taken in the relative pose (zeta), so that an edge needs 8 columns plus two per intrinsic unknown.

Rows are (e, C + 1, 2, K): C columns and, last, the residual; two components per sample. Columns are the relative pose
zeta (6), log alpha, beta, then a pair (frame i, frame j) for each intrinsic unknown.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.geometry.camera import bend_by_k1, bend_jacobian, solve_2x2, straighten
from mbasfm.geometry.rigid import relative_poses
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples, SampleSource

POSE_COLUMNS = 6
DEPTH_COLUMNS = 2
FRAME_COLUMNS = POSE_COLUMNS + DEPTH_COLUMNS


@dataclass(frozen=True)
class Columns:
    """Which intrinsic unknowns get derivatives; each needs one column for frame i and one for frame j."""

    focal: bool
    radial: bool

    @property
    def num_intrinsic(self) -> int:
        """Number of intrinsic unknowns per frame."""
        return int(self.focal) + int(self.radial)

    @property
    def total(self) -> int:
        """Number of columns of a Jacobian row: zeta, scale, shift, then (i, j) for each intrinsic unknown."""
        return FRAME_COLUMNS + 2 * self.num_intrinsic


@dataclass(frozen=True)
class EdgeCameras:
    """The cameras as the kernels need them, one row per edge, in the precision of the samples."""

    projection: Float[Tensor, "E 3 4"]
    """Matrix K_j [R | t]."""
    line: Float[Tensor, "E 3 3"]
    """Maps a ray of frame i to its epipolar line in frame j: start x step."""
    focal_i: Float[Tensor, "E 2 1"]
    center_i: Float[Tensor, "E 2 1"]
    focal_j: Float[Tensor, "E 2 1"]
    """Focal length at the reference size."""
    center_j: Float[Tensor, "E 2 1"]
    scale_i: Float[Tensor, "E 1 1"]
    """Factor from the frame's pixels to those at the reference size."""
    scale_j: Float[Tensor, "E 1 1"]
    depth_scale: Float[Tensor, "E 1"]
    depth_shift: Float[Tensor, "E 1"]
    is_disparity: Bool[Tensor, "E 1"]
    distortion_i: Float[Tensor, "E 1 4"]
    distortion_j: Float[Tensor, "E 1 4"]
    fisheye_i: Bool[Tensor, "E 1"]
    fisheye_j: Bool[Tensor, "E 1"]
    is_distorted: bool


def edge_cameras(cameras: Cameras, edges: Int[Tensor, "E 2"], dtype: torch.dtype) -> EdgeCameras:
    """Cameras of both ends of every edge."""
    intrinsics = cameras.intrinsics
    i, j = edges.unbind(-1)
    scale_i, scale = intrinsics.reference_scale[edges].unbind(-1)
    focal_j = intrinsics.focal[j] * scale[:, None]
    to_pixels = torch.cat([focal_j, torch.ones_like(focal_j[:, :1])], -1)
    projection = to_pixels[..., None] * relative_poses(cameras.cam_from_world, edges)
    line = torch.linalg.cross(projection[..., :3], projection[..., 3:].expand(-1, -1, 3), dim=1)
    return EdgeCameras(
        projection.to(dtype),
        line.to(dtype),
        intrinsics.focal[i, :, None].to(dtype),
        intrinsics.center[i, :, None].to(dtype),
        focal_j[..., None].to(dtype),
        intrinsics.center[j, :, None].to(dtype),
        scale_i[:, None, None].to(dtype),
        scale[:, None, None].to(dtype),
        cameras.depth_scale[i, None].to(dtype),
        cameras.depth_shift[i, None].to(dtype),
        cameras.is_disparity[i, None],
        intrinsics.distortion[i, None].to(dtype),
        intrinsics.distortion[j, None].to(dtype),
        intrinsics.fisheye[i, None],
        intrinsics.fisheye[j, None],
        not intrinsics.is_straight,
    )


def blocks(samples: SampleSource) -> list[slice]:
    """Blocks of edges; always the same for the same samples, so that sums are reproducible.

    Edges are sorted by source frame, and a star stays in one block, whatever its size.
    """
    source, count = samples.edges[:, 0], samples.num_edges
    borders = torch.cat([torch.zeros(1).long(), torch.nonzero(source.diff()).flatten() + 1, torch.tensor([count])])
    cuts = [0]
    while cuts[-1] < count:
        last = int(torch.searchsorted(borders, cuts[-1] + samples.block_edges, right=True)) - 1
        cuts.append(int(borders[last]) if int(borders[last]) > cuts[-1] else int(borders[last + 1]))
    return [slice(low, high) for low, high in zip(cuts[:-1], cuts[1:], strict=True)]


@dataclass(frozen=True)
class IntrinsicStep:
    """Effect of one intrinsic unknown: in frame i it moves the ray, in frame j the image and the target."""

    start: Float[Tensor, "e 3 K"]
    """Derivative d start / d unknown of i."""
    target: Float[Tensor, "e 2 K"] | None
    """Derivative d target / d unknown of j; None where it is zero."""
    scales_image: bool
    """Whether the unknown of j scales the image (log focal)."""


@dataclass(frozen=True)
class Block:
    """A block of samples as planes."""

    cameras: EdgeCameras
    rays: Float[Tensor, "e 4 K"]
    """Rays u = (x/z, y/z, 1) of the pixels in frame i, and space for rho, which predict() writes."""
    target: Float[Tensor, "e 2 K"]
    """Match q, undistorted and centred."""
    raw: Float[Tensor, "e K"]
    """Depth or disparity before correction."""
    weight: Float[Tensor, "e K"]
    intrinsic_steps: list[IntrinsicStep]

    @property
    def step(self) -> Float[Tensor, "e 3 1"]:
        """Vector K_j t."""
        return self.cameras.projection[..., 3:]


def load_block(cameras: Cameras, samples: Samples, columns: Columns) -> Block:
    """Block of undistorted samples, with the derivatives of the lenses that ``columns`` asks for."""
    edge = edge_cameras(cameras, samples.edges, samples.dtype)
    planes = samples.data.mT.contiguous()
    rays = torch.empty_like(planes[:, :4])
    torch.sub(planes[:, 0:2], edge.center_i, out=rays[:, :2]).mul_(1 / edge.focal_i)
    rays[:, 2] = 1
    target = (planes[:, 2:4] - edge.center_j).mul_(edge.scale_j)
    weight = samples.weight.to(planes)
    if columns.radial or edge.is_distorted:
        return _load_distorted(edge, rays, target, planes[:, 4], weight, columns)
    steps: list[IntrinsicStep] = []
    if columns.focal:  # u = p / f: d start = -K_j R (u_x, u_y, 0)
        steps.append(IntrinsicStep(torch.bmm(-edge.projection[..., :2], rays[:, :2]), None, True))
    return Block(edge, rays, target, planes[:, 4], weight, steps)


def _load_distorted(
    edge: EdgeCameras, rays: Tensor, target: Tensor, raw: Tensor, weight: Tensor, columns: Columns
) -> Block:
    """Block through lenses with distortion: d = lens(u) is inverted, its derivatives follow implicitly."""
    ray_i, focal_step_i, radial_step_i = _through_lens(rays[:, :2], edge.distortion_i, edge.fisheye_i)
    ray_j, focal_step_j, radial_step_j = _through_lens(target / edge.focal_j, edge.distortion_j, edge.fisheye_j)
    rays[:, :2] = ray_i
    to_start = edge.projection[..., :2]
    steps: list[IntrinsicStep] = []
    if columns.focal:
        target_step = edge.focal_j * (ray_j + focal_step_j)
        steps.append(IntrinsicStep(torch.bmm(to_start, focal_step_i), target_step, True))
    if columns.radial:
        steps.append(IntrinsicStep(torch.bmm(to_start, radial_step_i), edge.focal_j * radial_step_j, False))
    return Block(edge, rays, edge.focal_j * ray_j, raw, weight, steps)


def _through_lens(distorted: Tensor, coefficients: Tensor, is_fisheye: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Undistorted rays (e, 2, K) and their derivatives by log focal and by k1."""
    distorted = distorted.mT
    rays = straighten(distorted, coefficients, is_fisheye)
    jacobian = bend_jacobian(rays, coefficients, is_fisheye)
    focal_step = -solve_2x2(jacobian, distorted)
    radial_step = -solve_2x2(jacobian, bend_by_k1(rays, is_fisheye))
    return rays.mT, focal_step.mT, radial_step.mT


# ----------------------------------------------------------------------------------------------------------------
# Prediction


@dataclass(frozen=True)
class Prediction:
    """Position of each sample in image j according to its corrected depth."""

    pixel: Float[Tensor, "e 2 K"]
    inverse_z: Float[Tensor, "e K"]
    rho: Float[Tensor, "e K"]
    rho_by_scale: Float[Tensor, "e K"]
    """Derivative d rho / d log alpha."""
    rho_by_shift: Float[Tensor, "e K"]
    """Derivative d rho / d beta."""
    behind: Bool[Tensor, "e K"]
    """Whether the corrected depth is not positive or the point is behind camera j."""


def inverse_depth(block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inverse depth rho, its derivatives by log alpha and by beta, and where it is invalid."""
    edge = block.cameras
    if edge.is_disparity.all():
        return _from_disparity(block.raw, edge.depth_scale, edge.depth_shift)
    if not edge.is_disparity.any():
        return _from_depth(block.raw, edge.depth_scale, edge.depth_shift)
    pair = zip(
        _from_disparity(block.raw, edge.depth_scale, edge.depth_shift),
        _from_depth(block.raw, edge.depth_scale, edge.depth_shift),
        strict=True,
    )
    rho, by_scale, by_shift, invalid = (torch.where(edge.is_disparity, a, b) for a, b in pair)
    return rho, by_scale, by_shift, invalid


def _from_depth(raw: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for depth: rho = 1 / (alpha D + beta), through 1 / D so that D = inf (sky) is exact."""
    inverse_raw = raw.reciprocal()
    denominator = torch.addcmul(scale, shift, inverse_raw)
    invalid = denominator <= 0
    inverse = denominator.reciprocal_().masked_fill_(invalid, 0)
    rho = inverse_raw.mul_(inverse)
    by_scale = (rho * inverse).mul_(-scale)
    return rho, by_scale, -(rho * rho), invalid


def _from_disparity(raw: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for disparity: rho = alpha d + beta, clamped to 0 (sky)."""
    scaled = scale * raw
    rho = scaled + shift
    positive = (rho > 0).to(raw)
    return rho.clamp_min_(0), scaled * positive, positive, torch.zeros_like(rho, dtype=torch.bool)


def predict(block: Block) -> Prediction:
    """Projection of every sample with its corrected depth."""
    rho, by_scale, by_shift, invalid = inverse_depth(block)
    block.rays[:, 3] = rho
    point = torch.bmm(block.cameras.projection, block.rays)
    behind = (point[:, 2] <= 0).logical_or_(invalid)
    # Finite numbers even behind the camera: such samples get no weight, and 0 * inf would be NaN.
    inverse_z = point[:, 2].reciprocal().masked_fill_(behind, 0)
    return Prediction(point[:, :2] * inverse_z[:, None], inverse_z, rho, by_scale, by_shift, behind)


def start_points(block: Block) -> Float[Tensor, "e 3 K"]:
    """Points K_j R u."""
    return torch.bmm(block.cameras.projection[..., :3], block.rays[:, :3])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Product a . b over the two components of (e, 2, K) planes."""
    return torch.addcmul(a[:, 0] * b[:, 0], a[:, 1], b[:, 1])


def wedge(n: Tensor, a: Tensor) -> Tensor:
    """Product tangent . a over planes as in dot(), the tangent being n turned by a right angle: (-n_y, n_x)."""
    return torch.addcmul(n[:, 0] * a[:, 1], n[:, 1], a[:, 0], value=-1)


def fill_depth(rows: Tensor, by_rho: Tensor, prediction: Prediction) -> None:
    """Fill the columns of the depth correction, given the derivative by inverse depth."""
    torch.mul(by_rho, prediction.rho_by_scale[:, None], out=rows[:, POSE_COLUMNS])
    torch.mul(by_rho, prediction.rho_by_shift[:, None], out=rows[:, POSE_COLUMNS + 1])


def fill_row(
    out: Tensor, block: Block, direction: Tensor, point: Tensor, place: tuple[Tensor, Tensor]
) -> Float[Tensor, "e K"]:
    """Fill the pose and intrinsic columns of direction . pixel at the point place[0] * start + place[1] * step.

    Returns the derivative by rho, times z.
    """
    place_start, place_step = place
    h = direction * block.cameras.focal_j
    h_z = dot(direction, point).neg_()
    a, b = (point / block.cameras.focal_j).unbind(1)
    torch.mul(b, h_z, out=out[:, 0]).sub_(h[:, 1])  # rotation: (a, b, 1) x h
    torch.addcmul(h[:, 0], a, h_z, value=-1, out=out[:, 1])
    torch.mul(a, h[:, 1], out=out[:, 2]).addcmul_(b, h[:, 0], value=-1)
    torch.mul(h, place_step[:, None], out=out[:, 3:5])  # translation
    torch.mul(h_z, place_step, out=out[:, 5])
    for number, intrinsic in enumerate(block.intrinsic_steps):
        column = FRAME_COLUMNS + 2 * number
        moved = dot(direction, intrinsic.start).addcmul_(h_z, intrinsic.start[:, 2])
        torch.mul(moved, place_start, out=out[:, column])
        out[:, column + 1] = -h_z if intrinsic.scales_image else 0
        if intrinsic.target is not None:
            out[:, column + 1].sub_(dot(direction, intrinsic.target))
    return dot(direction, block.step).addcmul_(h_z, block.step[:, 2])


def fill_reprojection(
    rows: Tensor, block: Block, pixel: Tensor, place: tuple[Tensor, Tensor], root_weight: Tensor, intrinsic: int
) -> None:
    """Fill the columns of relative pose and, from column ``intrinsic`` on, of intrinsics for both components of pixels.

    The pixels are those of place[0] * start + place[1] * step; rows come out scaled by the root of the weight.
    """
    root, inverse_z, place_step = root_weight[:, None], place[0][:, None], place[1][:, None]
    # All columns are linear in the pair (focal, pixel): scaled once, the rows come out scaled.
    ray, focal, pixel = pixel / block.cameras.focal_j, block.cameras.focal_j * root, pixel * root
    torch.mul(pixel, -ray[:, 1:], out=rows[:, 0])  # rotation: (a, b, 1) x (f_x, f_y, -pixel) by component
    rows[:, 0, 1].sub_(focal[:, 1])
    torch.mul(pixel, ray[:, :1], out=rows[:, 1])
    rows[:, 1, 0].add_(focal[:, 0])
    torch.mul(focal[:, 0], -ray[:, 1], out=rows[:, 2, 0])
    torch.mul(focal[:, 1], ray[:, 0], out=rows[:, 2, 1])
    rows[:, 3, 1] = rows[:, 4, 0] = 0  # translation
    torch.mul(focal[:, :1], place_step, out=rows[:, 3, :1])
    torch.mul(focal[:, 1:], place_step, out=rows[:, 4, 1:])
    torch.mul(pixel, -place_step, out=rows[:, 5])
    for number, unknown in enumerate(block.intrinsic_steps):
        column = intrinsic + 2 * number
        moved = (unknown.start[:, :2] * root).addcmul_(pixel, unknown.start[:, 2:], value=-1)
        torch.mul(moved, inverse_z, out=rows[:, column])
        rows[:, column + 1] = pixel if unknown.scales_image else 0
        if unknown.target is not None:
            rows[:, column + 1].addcmul_(unknown.target, root, value=-1)


def empty_rows(block: Block) -> Tensor:
    """Uninitialised rows of a block."""
    num_edges, num_samples = block.raw.shape
    num_columns = FRAME_COLUMNS + 2 * len(block.intrinsic_steps)
    return block.raw.new_empty(num_edges, num_columns + 1, 2, num_samples)


def gram(rows: Float[Tensor, "e C1 2 K"]) -> Float[Tensor, "e C1 C1"]:
    """Gram matrix of each edge, J^T W J, J^T W r and r^T W r, from rows scaled by the root of their weight."""
    flat = rows.flatten(2)
    return torch.bmm(flat, flat.mT).double()
