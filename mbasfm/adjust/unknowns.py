"""The unknowns: their numbering, how a step changes the cameras, and priors."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.stage import Priors
from mbasfm.geometry.rigid import compose, exp_se3, orthonormalize
from mbasfm.objective.edge_block import FRAME_COLUMNS, POSE_COLUMNS, Columns
from mbasfm.types.cameras import Cameras, Fixed, Intrinsics

Slots = Float[Tensor, "N D"]

SLOT_SCALE, SLOT_SHIFT, SLOT_INTRINSIC = 6, 7, 8


@dataclass(frozen=True)
class Unknowns:
    """Numbering of the free unknowns: the column of the reduced system for each slot of each frame."""

    columns: Columns
    index: Int[Tensor, "N D"]
    """Column, or -1 for a fixed slot."""
    count: int

    @property
    def slots(self) -> int:
        """Number of unknowns D that a frame could have."""
        return self.index.shape[1]


def retract(cameras: Cameras, unknowns: Unknowns, step: Float[Tensor, " U"]) -> Cameras:
    """Cameras after T <- exp(xi) T, factors on alpha and focal, sums for beta and k1; the fixed stay bit for bit."""
    free = unknowns.index >= 0
    slots = torch.where(free, step[unknowns.index.clamp_min(0)], 0.0)
    moved = compose(exp_se3(slots[:, :POSE_COLUMNS]), cameras.cam_from_world)
    moved = torch.cat([orthonormalize(moved[..., :3]), moved[..., 3:]], -1)
    pose = torch.where(free[:, :1, None], moved, cameras.cam_from_world)
    scale = torch.where(free[:, SLOT_SCALE], cameras.depth_scale * slots[:, SLOT_SCALE].exp(), cameras.depth_scale)
    shift = torch.where(free[:, SLOT_SHIFT], cameras.depth_shift + slots[:, SLOT_SHIFT], cameras.depth_shift)
    intrinsics = cameras.intrinsics
    slot = SLOT_INTRINSIC
    if unknowns.columns.focal:
        focal = intrinsics.focal * slots[:, slot, None].exp()
        intrinsics = replace(intrinsics, focal=torch.where(free[:, slot, None], focal, intrinsics.focal))
        slot += 1
    if unknowns.columns.radial:
        distortion = intrinsics.distortion.clone()
        distortion[:, 0] += slots[:, slot]
        intrinsics = replace(intrinsics, distortion=distortion)
    return replace(cameras, cam_from_world=pose, intrinsics=intrinsics, depth_scale=scale, depth_shift=shift)


@dataclass(frozen=True)
class PriorTerm:
    """Gaussian priors around the start, in the slots of the unknowns, and priors of poses."""

    center: Slots
    precision: Slots
    poses: tuple[PosePriors, ...] = ()
    """Priors of poses, one per component that has enough of them."""

    def evaluate(self, cameras: Cameras, unknowns: Unknowns) -> tuple[float, Tensor, Tensor]:
        """Loss, gradient and diagonal of the Hessian in the free unknowns."""
        offset = slot_values(cameras, unknowns) - self.center
        free = unknowns.index >= 0
        index, zeros = unknowns.index[free], torch.zeros(unknowns.count, dtype=torch.float64)
        # A shared unknown has one prior, not one per frame that shares it.
        sharing = zeros.index_add(0, index, torch.ones_like(index, dtype=torch.float64))
        precision = self.precision[free] / sharing[index]
        gradient = zeros.index_add(0, index, precision * offset[free])
        loss = float(0.5 * (precision * offset[free].square()).sum())
        diagonal = zeros.index_add(0, index, precision)
        own, moves = unknowns.index[:, :POSE_COLUMNS], free[:, :POSE_COLUMNS]
        for priors in self.poses:
            pose_loss, pose_gradient, pose_diagonal = priors.evaluate(cameras.cam_from_world)
            loss += pose_loss
            gradient.index_add_(0, own[moves], pose_gradient[moves])
            diagonal.index_add_(0, own[moves], pose_diagonal[moves])
        return loss, gradient, diagonal


def slot_values(cameras: Cameras, unknowns: Unknowns) -> Slots:
    """Values of the unknowns that can have a prior; zero for poses."""
    values = [torch.zeros(cameras.num_frames, POSE_COLUMNS, dtype=torch.float64)]
    values += [cameras.depth_scale.log()[:, None], cameras.depth_shift[:, None]]
    if unknowns.columns.focal:
        values.append(cameras.intrinsics.focal[:, :1].log())
    if unknowns.columns.radial:
        values.append(cameras.intrinsics.distortion[:, :1])
    return torch.cat(values, -1)


def make_priors(cameras: Cameras, unknowns: Unknowns, priors: Priors, typical_raw: Float[Tensor, " N"]) -> PriorTerm:
    """Priors around the present cameras."""
    sigma = torch.full(unknowns.index.shape, torch.inf, dtype=torch.float64)
    typical = (cameras.depth_scale * typical_raw + cameras.depth_shift).abs().clamp_min(1e-12)
    sigma[:, SLOT_SCALE] = priors.log_scale
    sigma[:, SLOT_SHIFT] = priors.shift * typical
    intrinsic = [priors.log_focal] * unknowns.columns.focal + [priors.radial] * unknowns.columns.radial
    for number, value in enumerate(intrinsic):
        sigma[:, SLOT_INTRINSIC + number] = value
    return PriorTerm(slot_values(cameras, unknowns), sigma.square().reciprocal())


def number_unknowns(fixed: Fixed, intrinsics: Intrinsics) -> Unknowns:
    """Number the free unknowns: those of frames first, then those shared by camera groups."""
    num_frames = len(fixed.pose)
    _, group = intrinsics.group.unique(return_inverse=True)
    num_groups = int(group.max()) + 1 if num_frames else 0
    free_focal = ~_any_in_group(fixed.focal, group, num_groups)
    free_radial = ~_any_in_group(fixed.radial, group, num_groups)
    columns = Columns(focal=bool(free_focal.any()), radial=bool(free_radial.any()))
    free = torch.zeros(num_frames, FRAME_COLUMNS, dtype=torch.bool)
    free[:, :POSE_COLUMNS] = ~fixed.pose[:, None]
    free[:, SLOT_SCALE] = ~fixed.scale
    free[:, SLOT_SHIFT] = ~fixed.shift
    index = torch.where(free, free.flatten().cumsum(0).view_as(free) - 1, -1)
    count = int(free.sum())
    for is_refined, is_free in ((columns.focal, free_focal), (columns.radial, free_radial)):
        if is_refined:
            shared = torch.where(is_free, is_free.cumsum(0) - 1 + count, -1)
            index = torch.cat([index, shared[group][:, None]], -1)
            count += int(is_free.sum())
    return Unknowns(columns, index, count)


def _any_in_group(flag: Tensor, group: Tensor, num_groups: int) -> Tensor:
    return torch.zeros(num_groups, dtype=torch.long).index_add_(0, group, flag.long()) > 0
