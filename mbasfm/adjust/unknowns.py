"""Unknowns of the cameras and their priors, and what no data determines: position and size of each component."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.stage import Priors
from mbasfm.geometry.rigid import camera_centers, compose, exp_se3, orthonormalize
from mbasfm.objective.edge_block import FRAME_COLUMNS, POSE_COLUMNS, Columns, blocks
from mbasfm.runtime.parallel import deal
from mbasfm.types.cameras import Cameras, Fixed, Intrinsics
from mbasfm.types.observations import SampleSource

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


def typical_raw_values(samples: SampleSource, num_frames: int) -> Float[Tensor, " N"]:
    """Median raw depth (or disparity) of each frame over the medians of its edges; 1 for frames without any."""
    per_edge = torch.zeros(samples.num_edges, dtype=torch.float64)
    share = deal(blocks(samples), at_random=False)
    for chunk in share.blocks:
        raw = samples.rows(chunk).data[..., 4].nan_to_num(posinf=torch.nan)
        per_edge[chunk] = raw.nanmedian(dim=-1).values.double()
    share.total(per_edge)
    order = per_edge.argsort()
    source, values = samples.edges[order, 0].numpy(), per_edge[order].numpy()
    by_frame = np.argsort(source, kind="stable")
    starts = np.searchsorted(source[by_frame], np.arange(num_frames + 1))
    middle = (starts[:-1] + starts[1:]) // 2
    known = starts[1:] > starts[:-1]
    typical = np.ones(num_frames)
    typical[known] = values[by_frame[middle[known]]]
    return torch.from_numpy(np.where(np.isfinite(typical) & (typical != 0), typical, 1.0))


@dataclass(frozen=True)
class Gauge:
    """Gauge of each connected component: its root and whether its scale is free."""

    component: Int[Tensor, " N"]
    root: Int[Tensor, " G"]
    """Frame that is held: a fixed one, or the one with the most edges."""
    scale_is_free: Bool[Tensor, " G"]
    typical_raw: Float[Tensor, " N"]

    def growth(self, cameras: Cameras) -> Float[Tensor, " G"]:
        """Factor for each component, 1 where its scale is not free, that makes the mean depth that of the model."""
        raw, disparity = self.typical_raw, cameras.is_disparity
        corrected = cameras.depth_scale * raw + cameras.depth_shift
        ratio = torch.where(disparity, raw / corrected, corrected / raw)  # corrected depth over raw depth
        factor = torch.ones(len(self.root), dtype=torch.float64)
        for number in torch.nonzero(self.scale_is_free).flatten():
            inside = ratio[(self.component == number) & (ratio > 0) & ratio.isfinite()]
            if len(inside):
                factor[number] = 1 / inside.median()
        return factor

    def split(self, priors: PosePriors | None) -> tuple[PosePriors, ...]:
        """Priors of poses by component; components with too few to constrain them get none."""
        if priors is None:
            return ()
        parts = (priors.of(self.component == number) for number in range(len(self.root)))
        return tuple(part for part in parts if part is not None)

    def rescale(self, cameras: Cameras, priors: PriorTerm, factor: Float[Tensor, " G"]) -> tuple[Cameras, PriorTerm]:
        """Enlarge each component about its root, along with the depth priors, so that nothing pulls it back."""
        s = factor[self.component]
        centers = camera_centers(cameras.cam_from_world)
        pivot = centers[self.root][self.component]
        center = pivot + s[:, None] * (centers - pivot)
        translation = -(cameras.cam_from_world[..., :3] @ center[..., None])
        moved = torch.cat([cameras.cam_from_world[..., :3], translation], -1)
        still = (s == 1) | (torch.arange(len(s)) == self.root[self.component])
        pose = torch.where(still[:, None, None], cameras.cam_from_world, moved)
        depth_factor = torch.where(cameras.is_disparity, 1 / s, s)
        scaled = replace(
            cameras,
            cam_from_world=pose,
            depth_scale=cameras.depth_scale * depth_factor,
            depth_shift=cameras.depth_shift * depth_factor,
        )
        prior_center, precision = priors.center.clone(), priors.precision.clone()
        prior_center[:, SLOT_SCALE] += depth_factor.log()
        prior_center[:, SLOT_SHIFT] *= depth_factor
        precision[:, SLOT_SHIFT] /= depth_factor.square()
        return scaled, replace(priors, center=prior_center, precision=precision)


def find_gauge(samples: SampleSource, fixed: Fixed) -> Gauge:
    """Connected components with their roots. A fixed depth or two fixed poses determine the scale."""
    num_frames = len(fixed.pose)
    i, j = samples.edges.numpy().T
    links = coo_matrix((np.ones(len(i)), (i, j)), shape=(num_frames, num_frames))
    num_components, labels = connected_components(links, directed=False)
    component = torch.from_numpy(labels).long()
    degree = torch.bincount(samples.edges.flatten(), minlength=num_frames)
    preference = degree + fixed.pose * (int(degree.max()) + 1)
    order = preference.argsort(descending=True, stable=True)
    root = torch.empty(num_components, dtype=torch.long)
    root[component[order].flip(0)] = order.flip(0)  # the last write, by the most preferred frame, stays
    ones = torch.zeros(num_components, dtype=torch.long)
    num_fixed = ones.index_add(0, component, fixed.pose.long())
    fixed_depths = ones.index_add(0, component, (fixed.scale & (degree > 0)).long())
    return Gauge(component, root, (num_fixed <= 1) & (fixed_depths == 0), typical_raw_values(samples, num_frames))


def fix_roots(fixed: Fixed, gauge: Gauge) -> Fixed:
    """Hold the root of each component where it is."""
    pose = fixed.pose.clone()
    pose[gauge.root] = True
    return replace(fixed, pose=pose)
