"""What the data cannot determine: the position and the size of each connected component."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.unknowns import SLOT_SCALE, SLOT_SHIFT, PriorTerm
from mbasfm.geometry.rigid import camera_centers
from mbasfm.objective.edge_block import blocks
from mbasfm.runtime.parallel import deal
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import SampleSource


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
