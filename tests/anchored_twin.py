"""Made-up scenes of anchors, and the anchored residual written to be read and differentiated."""

from dataclasses import replace

import numpy as np
import torch
from made_up import MadeUp, all_views, keypoints_with, make_lens, orbit, photograph, relief, true_cameras
from torch import Tensor

from mbasfm.adjust.levenberg_marquardt import Problem
from mbasfm.adjust.unknowns import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT, Unknowns
from mbasfm.geometry.rigid import compose, exp_se3, relative_poses
from mbasfm.objective.anchor_block import look, weights_of
from mbasfm.objective.anchored import AnchoredForm, FrozenAnchored
from mbasfm.objective.reference import edge_rays, inverse_depths
from mbasfm.objective.residual_kind import NO_INTRINSICS
from mbasfm.polish.tracks import draw_anchors
from mbasfm.synthetic.cameras import perturb
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples

NUM_FRAMES = 5


def make_scene(points: int = 40, noise_px: float = 0.5, distortion=(0.0, 0.0, 0.0, 0.0), depth_error=0.05) -> MadeUp:
    """Frames around some points, with depths that are off by some percent, each in a scale of its own."""
    lens = make_lens(distortion=distortion)
    made = photograph(relief(points, 1), orbit(NUM_FRAMES), lens, 2, noise_px)
    generator = np.random.default_rng(3)
    depth = [
        (1 + 0.1 * frame) * values * np.exp(depth_error * generator.standard_normal(len(values)))
        for frame, values in enumerate(made.depth)
    ]
    return replace(made, depth=depth)


def draw(made: MadeUp, tracks_per_frame: int = 30) -> Samples:
    """Anchors in double precision."""
    return double(draw_anchors(all_views(made), keypoints_with(made, made.depth), tracks_per_frame, 5, 0))


def double(samples: Samples) -> Samples:
    return replace(samples, data=samples.data.double(), weight=samples.weight.double())


def without_depth(samples: Samples, share: float) -> Samples:
    """Some anchors without depth."""
    data = samples.data.clone()
    number = samples.anchors
    data[..., 4] = torch.where(number % round(1 / share) == 0, torch.nan, data[..., 4])
    return replace(samples, data=data)


def start_of(made: MadeUp) -> Cameras:
    return perturb(true_cameras(made), 5, 1.0, 0.03)


# ----------------------------------------------------------------------------------------------------------------
# The same, written to be read


def nearby(cameras: Cameras, unknowns: Unknowns, step: Tensor) -> Cameras:
    """retract() written to be differentiated."""
    slots = torch.where(unknowns.index >= 0, step[unknowns.index.clamp_min(0)], 0.0)
    intrinsics, slot = cameras.intrinsics, SLOT_INTRINSIC
    if unknowns.columns.focal:
        intrinsics = replace(intrinsics, focal=intrinsics.focal * slots[:, slot, None].exp())
        slot += 1
    if unknowns.columns.radial:
        bent = intrinsics.distortion + torch.nn.functional.pad(slots[:, slot, None], (0, 3))
        intrinsics = replace(intrinsics, distortion=bent)
    return replace(
        cameras,
        cam_from_world=compose(exp_se3(slots[:, :6]), cameras.cam_from_world),
        depth_scale=cameras.depth_scale * slots[:, SLOT_SCALE].exp(),
        depth_shift=cameras.depth_shift + slots[:, SLOT_SHIFT],
        intrinsics=intrinsics,
    )


def errors(cameras: Cameras, samples: Samples, latent: Tensor) -> Tensor:
    """Reprojection errors (E, K, 2) of anchors with the given inverse depths and, below, offsets of pixels."""
    rays, own = edge_rays(cameras, samples), latent[:, samples.anchors]
    start = rays.start
    if len(latent) == 3:
        focal, i = cameras.intrinsics.focal * cameras.intrinsics.reference_scale[:, None], samples.edges
        turned = own[1:].movedim(0, -1) / focal[i[:, 0]][:, None]
        to_pixels = torch.cat([focal, torch.ones_like(focal[:, :1])], -1)[i[:, 1], :, None]
        projection = to_pixels * relative_poses(cameras.cam_from_world, i)[..., :2]
        start = start + turned @ projection.mT
    points = start + own[0][..., None] * rays.step
    return points[..., :2] / points[..., 2:] - rays.target


def prior_depths(cameras: Cameras, form: AnchoredForm) -> Tensor:
    """Inverse depth of each anchor by the map; 1 where there is none."""
    edges, data = torch.stack([form.frame, form.frame], -1), torch.zeros(len(form.frame), 1, 5, dtype=torch.float64)
    data[:, 0, 4] = form.raw.nan_to_num(1.0)
    return inverse_depths(cameras, Samples(edges, data, torch.ones_like(data[..., 0])))[:, 0]


def explicit(
    problem: Problem, cameras: Cameras, frozen: FrozenAnchored, weight: Tensor, host: Tensor
) -> tuple[Tensor, Tensor]:
    """All residuals, weighted, and their derivatives by the unknowns of the cameras and, last, by the latents."""
    form, shape = problem.form, frozen.latent.shape
    known = form.raw.isfinite()
    root = (frozen.trust.weight[known]).sqrt() / frozen.unit[known]

    def residuals(values: Tensor) -> Tensor:
        step, latent = values[: problem.unknowns.count], values[problem.unknowns.count :].view(shape)
        moved = nearby(cameras, problem.unknowns, step)
        seen = (errors(moved, form.samples, latent) * weight.sqrt()[..., None]).flatten()
        of_map = (latent[0] - prior_depths(moved, form))[known] * root
        return torch.cat([seen, of_map, (latent[1:] * host.sqrt()).flatten()])

    values = torch.cat([torch.zeros(problem.unknowns.count, dtype=torch.float64), frozen.latent.flatten()])
    return residuals(values), torch.autograd.functional.jacobian(residuals, values, vectorize=True)


def observation_weights(problem: Problem, cameras: Cameras, frozen: FrozenAnchored) -> tuple[Tensor, Tensor]:
    """Weights of all observations and of the anchors' own, as the form uses them."""
    seen, hosts = [], []
    for _, some, anchors in problem.form._stream(cameras, NO_INTRINSICS):
        sight = look(anchors, frozen.latent[:, some])
        seen.append(weights_of(frozen.table, sight.squared, anchors.weight))
        hosts.append(weights_of(frozen.table, sight.host_squared, anchors.host_weight))
    return torch.cat(seen), torch.cat(hosts)
