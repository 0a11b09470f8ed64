"""Checks of input data before any mathematics: each names the frame and says what to do."""

import torch
from torch import Tensor

from mbasfm.adjust.stage import Stage
from mbasfm.errors import ConfigError, DegenerateError, InputError
from mbasfm.objective.edge_block import blocks
from mbasfm.objective.losses import LOSSES
from mbasfm.objective.registry import KINDS
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import Samples, SampleSource

ROTATION_TOLERANCE = 1e-3


def check_inputs(cameras: Cameras, samples: SampleSource, fixed: Fixed, needs_depth: bool = True) -> None:
    """Raise InputError for data that contradicts itself, DegenerateError for a graph without edges."""
    _check_shapes(cameras, samples, fixed)
    if samples.num_edges == 0 or samples.samples_per_edge == 0 or not bool(samples.edge_mass().any()):
        raise DegenerateError("the pose graph is empty: no edge has a sample; add matches or lower min_covisibility")
    _check_edges(cameras, samples)
    _check_cameras(cameras)
    for chunk in blocks(samples):
        _check_data(cameras, samples.rows(chunk), needs_depth)


def check_stage(stage: Stage) -> None:
    """Raise ConfigError for a setting that is unknown or out of range."""
    allowed = {"residual": tuple(KINDS), "solver": ("lm", "adam"), "loss": tuple(LOSSES)}
    for name, choices in allowed.items():
        value = getattr(stage, name)
        if value not in choices:
            raise ConfigError(f"stage {stage.name!r}: {name} is {value!r}; choose one of {', '.join(choices)}")
    positive = {"tau_max": stage.tau_max, "num_bins": stage.num_bins - 1, "learning_rate": stage.learning_rate}
    if stage.log_scale is not None:
        positive["log_scale"] = stage.log_scale
    positive |= {f"priors.{name}": value for name, value in vars(stage.priors).items()}
    for name, value in positive.items():
        if not value > 0:
            raise ConfigError(f"stage {stage.name!r}: {name} is too small; it must be positive (num_bins at least 2)")
    if stage.max_steps < 0 or stage.restarts < 0:
        raise ConfigError(f"stage {stage.name!r}: max_steps and restarts must not be negative")
    if stage.per_star and not KINDS[stage.residual].can_be_per_star:
        able = ", ".join(name for name, kind in KINDS.items() if kind.can_be_per_star)
        hint = f"leave it False with {stage.residual}, or choose {able}"
        raise ConfigError(f"stage {stage.name!r}: the {stage.residual} residual cannot be per_star; {hint}")


def _check_shapes(cameras: Cameras, samples: SampleSource, fixed: Fixed) -> None:
    num_frames = cameras.num_frames
    intrinsics = cameras.intrinsics
    expected = {
        "cameras.cam_from_world": (cameras.cam_from_world, (num_frames, 3, 4)),
        "cameras.depth_scale": (cameras.depth_scale, (num_frames,)),
        "cameras.depth_shift": (cameras.depth_shift, (num_frames,)),
        "cameras.is_disparity": (cameras.is_disparity, (num_frames,)),
        "intrinsics.focal": (intrinsics.focal, (num_frames, 2)),
        "intrinsics.center": (intrinsics.center, (num_frames, 2)),
        "intrinsics.distortion": (intrinsics.distortion, (num_frames, 4)),
        "intrinsics.sizes": (intrinsics.sizes, (num_frames, 2)),
        "intrinsics.group": (intrinsics.group, (num_frames,)),
        "intrinsics.is_fisheye": (intrinsics.fisheye, (num_frames,)),
        **{f"fixed.{name}": (value, (num_frames,)) for name, value in vars(fixed).items()},
    }
    if isinstance(samples, Samples):
        num_edges, per_edge = samples.data.shape[:2]
        expected["samples.edges"] = (samples.edges, (num_edges, 2))
        expected["samples.data"] = (samples.data, (num_edges, per_edge, 5))
        expected["samples.weight"] = (samples.weight, (num_edges, per_edge))
    for name, (value, shape) in expected.items():
        if tuple(value.shape) != shape:
            raise InputError(f"{name} has shape {tuple(value.shape)}; {shape} was expected from the other arrays")


def _check_edges(cameras: Cameras, samples: SampleSource) -> None:
    i, j = samples.edges.unbind(-1)
    outside = (samples.edges < 0) | (samples.edges >= cameras.num_frames)
    if bool(outside.any()):
        edge = int(torch.nonzero(outside.any(-1))[0])
        pair = tuple(samples.edges[edge].tolist())
        last = cameras.num_frames - 1
        raise InputError(f"edge {edge} is {pair}, but there are only frames 0 to {last}; remove it or add its cameras")
    if bool((i == j).any()):
        raise InputError(f"frame {int(i[i == j][0])} has an edge to itself; leave it out")


def _check_cameras(cameras: Cameras) -> None:
    intrinsics = cameras.intrinsics
    for name, values in (("cam_from_world", cameras.cam_from_world), ("intrinsics.focal", intrinsics.focal)):
        if values.dtype != torch.float64:
            raise InputError(f"cameras.{name} is {values.dtype}; cameras are float64, so call .double() on it")
    checks = (
        (cameras.cam_from_world.flatten(1), "the pose", False),
        (intrinsics.focal, "the focal length", True),
        (intrinsics.center, "the principal point", False),
        (intrinsics.distortion, "the distortion", False),
        (intrinsics.sizes.double(), "the image size", True),
        (cameras.depth_scale[:, None], "the depth scale", True),
        (cameras.depth_shift[:, None], "the depth shift", False),
    )
    for values, what, must_be_positive in checks:
        bad = ~values.isfinite().all(-1)
        if must_be_positive:
            bad |= ~(values > 0).all(-1)
        if bool(bad.any()):
            frame = int(torch.nonzero(bad)[0])
            raise InputError(f"frame {frame}: {what} is {values[frame].tolist()}; give it a finite, sensible value")
    rotation = cameras.cam_from_world[..., :3]
    error = (rotation @ rotation.mT - torch.eye(3, dtype=rotation.dtype)).abs().amax((-1, -2))
    bad = (error > ROTATION_TOLERANCE) | (torch.linalg.det(rotation) < 0)
    if bool(bad.any()):
        frame = int(torch.nonzero(bad)[0])
        raise InputError(f"frame {frame}: the first three columns of its pose are not a rotation; orthonormalize them")


def _check_data(cameras: Cameras, samples: Samples, needs_depth: bool) -> None:
    i, j = samples.edges.unbind(-1)
    pixels, raw = samples.data[..., :4], samples.data[..., 4]
    is_depth = ~cameras.is_disparity[i, None]
    bad_pixels = ~pixels.isfinite().all(-1)
    _raise_for(bad_pixels, i, "a match is not a finite pixel; remove it before sampling", j)
    if needs_depth:
        _raise_for(raw.isnan(), i, "its depth map is NaN at a sample; mask such pixels before sampling", None)
    _raise_for((raw <= 0) & is_depth, i, "its depth map is zero or negative at a sample; mask such pixels", None)
    _raise_for(raw.isinf() & ~is_depth, i, "its disparity is infinite at a sample; mask such pixels", None)
    bad_weight = ~(samples.weight.isfinite() & (samples.weight >= 0))
    _raise_for(bad_weight, i, "a sample's weight is negative or not finite; set it to 0 to ignore the sample", j)


def _raise_for(bad: Tensor, i: Tensor, what: str, j: Tensor | None) -> None:
    edges = torch.nonzero(bad.any(-1)).flatten()
    if len(edges):
        edge = int(edges[0])
        where = f"frame {int(i[edge])}" + (f" (edge to frame {int(j[edge])})" if j is not None else "")
        raise InputError(f"{where}: {what} ({int(bad.sum())} samples on {len(edges)} edges in all)")
