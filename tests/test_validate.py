"""Bad input is refused with the frame or the array and what to do; hard input is not an error."""

import math
from dataclasses import replace

import pytest
import torch

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import COARSE, FINE, SPLIT
from mbasfm.errors import ConfigError, DegenerateError, InputError, MBAError
from mbasfm.geometry.rigid import exp_so3
from mbasfm.synthetic.cameras import perturb
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import Samples
from mbasfm.types.outcome import NoPose, Reason

STAGE = replace(FINE, max_steps=3, restarts=0)
STAGES = {
    "fine": STAGE,
    "coarse": replace(COARSE, max_steps=3, restarts=0),
    "split": replace(SPLIT, max_steps=3, restarts=0),
    "adam": replace(FINE, name="adam", solver="adam", max_steps=3, restarts=0),
}
all_stages = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())


@pytest.fixture
def cameras(noisy_problem) -> Cameras:
    return perturb(noisy_problem.truth, 0, 2.0, 0.05)


@pytest.fixture
def samples(noisy_problem) -> Samples:
    return noisy_problem.samples


def with_data(samples: Samples, edge: int, column: int, value: float) -> Samples:
    """One number of the sample 7 of an edge replaced."""
    data = samples.data.clone()
    data[edge, 7, column] = value
    return replace(samples, data=data)


def with_edge(samples: Samples, edge: int, i: int, j: int) -> Samples:
    edges = samples.edges.clone()
    edges[edge] = torch.tensor([i, j])
    return replace(samples, edges=edges)


def only(samples: Samples, keep: torch.Tensor) -> Samples:
    return Samples(samples.edges[keep], samples.data[keep], samples.weight[keep])


def edge_of(samples: Samples, i: int) -> int:
    """The first edge that starts at a frame."""
    return int(torch.nonzero(samples.edges[:, 0] == i)[0])


def frames(cameras: Cameras, count: int) -> Cameras:
    """The first frames."""
    intrinsics = replace(
        cameras.intrinsics, **{name: value[:count] for name, value in vars(cameras.intrinsics).items()}
    )
    rows = {name: value[:count] for name, value in vars(cameras).items() if name != "intrinsics"}
    return Cameras(intrinsics=intrinsics, **rows)


def set_row(values: torch.Tensor, row: int, value: float) -> torch.Tensor:
    changed = values.clone()
    changed[row] = value
    return changed


# Depth


@pytest.mark.parametrize("frame", [0, 4])
def test_nan_depth_names_the_frame(cameras, samples, frame):
    bad = with_data(samples, edge_of(samples, frame), 4, math.nan)
    with pytest.raises(InputError, match=rf"frame {frame}: its depth map is NaN .*mask .*\(1 samples on 1 edges"):
        adjust(cameras, bad, STAGE)


@pytest.mark.parametrize("value", [0.0, -2.0, -math.inf])
def test_depth_that_is_not_positive_names_the_frame(cameras, samples, value):
    bad = with_data(samples, edge_of(samples, 3), 4, value)
    with pytest.raises(InputError, match="frame 3: its depth map is zero or negative .*mask"):
        adjust(cameras, bad, STAGE)


@all_stages
def test_sky_is_welcome(cameras, samples, stage):
    edges = torch.nonzero(samples.edges[:, 0] == 3).flatten()
    data = samples.data.clone()
    data[edges, :10, 4] = math.inf
    result = adjust(cameras, replace(samples, data=data), stage)
    assert result.cameras.cam_from_world.isfinite().all() and result.cameras.depth_scale.isfinite().all()
    assert result.pose_covariance.isfinite().all()
    assert result.registered[3] and not torch.equal(result.cameras.cam_from_world[3], cameras.cam_from_world[3])


def test_disparity_may_be_zero_but_not_infinite(cameras, samples):
    as_disparity = replace(cameras, is_disparity=torch.ones(6, dtype=torch.bool))
    data = samples.data.clone()
    data[..., 4] = 1 / data[..., 4]
    far = with_data(replace(samples, data=data), edge_of(samples, 2), 4, 0.0)
    assert adjust(as_disparity, far, STAGE).cameras.cam_from_world.isfinite().all()
    near = with_data(replace(samples, data=data), edge_of(samples, 2), 4, math.inf)
    with pytest.raises(InputError, match="frame 2: its disparity is infinite .*mask"):
        adjust(as_disparity, near, STAGE)


def test_the_depth_model_is_the_source_frames_own(cameras, samples):
    # Infinite values are sky for frames of depth and wrong for the one frame of disparity.
    mixed = replace(cameras, is_disparity=torch.arange(6) == 5)
    bad = with_data(with_data(samples, edge_of(samples, 1), 4, math.inf), edge_of(samples, 5), 4, math.inf)
    with pytest.raises(InputError, match=r"frame 5: its disparity .*\(1 samples"):
        adjust(mixed, bad, STAGE)


# Matches


@pytest.mark.parametrize("column", [0, 1, 2, 3])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_pixels_must_be_finite(cameras, samples, column, value):
    edge = edge_of(samples, 2)
    other = int(samples.edges[edge, 1])
    with pytest.raises(InputError, match=rf"frame 2 \(edge to frame {other}\): .*not a finite pixel; remove it"):
        adjust(cameras, with_data(samples, edge, column, value), STAGE)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_weights_must_be_finite_and_not_negative(cameras, samples, value):
    weight = samples.weight.clone()
    weight[edge_of(samples, 1), 0] = value
    with pytest.raises(InputError, match=r"frame 1 \(edge to frame \d\): .*weight is negative or not finite"):
        adjust(cameras, replace(samples, weight=weight), STAGE)


def test_some_weights_may_be_zero(cameras, samples):
    weight = samples.weight.clone()
    weight[:, ::2] = 0
    assert adjust(cameras, replace(samples, weight=weight), STAGE).registered.all()


@all_stages
def test_no_weight_at_all_is_refused(cameras, samples, stage):
    with pytest.raises(MBAError):
        adjust(cameras, replace(samples, weight=torch.zeros_like(samples.weight)), stage)


# Graph


@pytest.mark.parametrize("pair", [(0, 6), (-1, 2), (99, 0)])
def test_edges_to_missing_frames_are_refused(cameras, samples, pair):
    with pytest.raises(InputError, match=rf"edge 4 is \({pair[0]}, {pair[1]}\), .*only frames 0 to 5"):
        adjust(cameras, with_edge(samples, 4, *pair), STAGE)


def test_samples_of_more_frames_than_cameras_are_refused(cameras, samples):
    with pytest.raises(InputError, match="only frames 0 to 4"):
        adjust(frames(cameras, 5), samples, STAGE)


def test_an_edge_to_itself_is_refused(cameras, samples):
    with pytest.raises(InputError, match="frame 3 has an edge to itself; leave it out"):
        adjust(cameras, with_edge(samples, 4, 3, 3), STAGE)


def test_an_empty_graph_is_degenerate(cameras, samples):
    with pytest.raises(DegenerateError, match="pose graph is empty.*add matches or lower min_covisibility"):
        adjust(cameras, only(samples, torch.zeros(samples.num_edges, dtype=torch.bool)), STAGE)
    with pytest.raises(DegenerateError, match="pose graph is empty"):
        adjust(cameras, Samples(samples.edges, samples.data[:, :0], samples.weight[:, :0]), STAGE)


# Cameras


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_poses_must_be_finite(cameras, samples, value):
    poses = cameras.cam_from_world.clone()
    poses[2, 1, 3] = value
    with pytest.raises(InputError, match="frame 2: the pose is .*give it a finite"):
        adjust(replace(cameras, cam_from_world=poses), samples, STAGE)


@pytest.mark.parametrize("value", [-500.0, 0.0, math.nan, math.inf])
def test_focal_lengths_must_be_positive(cameras, samples, value):
    intrinsics = replace(cameras.intrinsics, focal=set_row(cameras.intrinsics.focal, 4, value))
    with pytest.raises(InputError, match="frame 4: the focal length is .*give it a finite"):
        adjust(replace(cameras, intrinsics=intrinsics), samples, STAGE)


@pytest.mark.parametrize(
    "name, what, value",
    [("center", "the principal point", math.nan), ("distortion", "the distortion", math.nan)],
)
def test_other_intrinsics_must_be_finite(cameras, samples, name, what, value):
    intrinsics = replace(cameras.intrinsics, **{name: set_row(getattr(cameras.intrinsics, name), 1, value)})
    with pytest.raises(InputError, match=f"frame 1: {what} is .*give it a finite"):
        adjust(replace(cameras, intrinsics=intrinsics), samples, STAGE)


def test_images_must_have_a_size(cameras, samples):
    intrinsics = replace(cameras.intrinsics, sizes=set_row(cameras.intrinsics.sizes, 5, 0))
    with pytest.raises(InputError, match="frame 5: the image size is .*give it a finite, sensible value"):
        adjust(replace(cameras, intrinsics=intrinsics), samples, STAGE)


@pytest.mark.parametrize("name, value", [("scale", -1.0), ("scale", 0.0), ("scale", math.nan), ("shift", math.nan)])
def test_depth_correction_must_make_sense(cameras, samples, name, value):
    changed = {f"depth_{name}": set_row(getattr(cameras, f"depth_{name}"), 2, value)}
    with pytest.raises(InputError, match=f"frame 2: the depth {name} is .*give it a finite"):
        adjust(replace(cameras, **changed), samples, STAGE)


def test_the_first_bad_frame_is_named(cameras, samples):
    focal = set_row(set_row(cameras.intrinsics.focal, 4, -1.0), 2, -1.0)
    with pytest.raises(InputError, match="frame 2: the focal length"):
        adjust(replace(cameras, intrinsics=replace(cameras.intrinsics, focal=focal)), samples, STAGE)


# Shapes across objects


def test_fixed_of_another_number_of_frames_is_refused(cameras, samples):
    with pytest.raises(InputError, match=r"fixed.pose has shape \(5,\); \(6,\) was expected"):
        adjust(cameras, samples, STAGE, Fixed.build(5))


def test_intrinsics_of_another_number_of_frames_are_refused(cameras, samples):
    short = frames(cameras, 5).intrinsics
    with pytest.raises(InputError, match=r"intrinsics.focal has shape \(5, 2\); \(6, 2\) was expected"):
        adjust(replace(cameras, intrinsics=short), samples, STAGE)


# Nothing to do, and hard input


@all_stages
def test_all_fixed_is_degenerate(cameras, samples, stage):
    everything = Fixed.build(6, pose=True, focal=True, radial=True, scale=True, shift=True)
    with pytest.raises(DegenerateError, match="every unknown is fixed.*free some frames in `fixed`"):
        adjust(cameras, samples, stage, everything)


@all_stages
def test_a_frame_without_edges_is_marked_and_left_alone(cameras, samples, stage):
    result = adjust(cameras, only(samples, (samples.edges != 5).all(-1)), stage)
    assert result.registered.tolist() == [True] * 5 + [False]
    assert result.reason == (None, None, None, None, None, Reason(NoPose.NO_EDGE))
    assert torch.equal(result.cameras.cam_from_world[5], cameras.cam_from_world[5])
    moved = (result.cameras.cam_from_world != cameras.cam_from_world).flatten(1).any(-1)
    assert moved[:5].sum() == 4, "all but the root"


@all_stages
def test_a_camera_that_looks_away_is_marked(cameras, samples, stage):
    # Turned by 180 degrees all its matches lie behind it: no residual, no gradient, no way back without a restart.
    poses = cameras.cam_from_world.clone()
    poses[2] = exp_so3(torch.tensor([0, math.pi, 0], dtype=torch.float64)) @ poses[2]
    result = adjust(replace(cameras, cam_from_world=poses), samples, stage)
    assert not result.registered[2] and str(result.reason[2]).startswith("only 0.0 % of its matches agree")
    assert result.cameras.cam_from_world.isfinite().all()
    assert result.diagnosis.inlier_share[2] < 0.01 < result.diagnosis.inlier_share[0]


@all_stages
def test_inputs_are_not_changed(cameras, samples, stage):
    poses, scale, data = cameras.cam_from_world.clone(), cameras.depth_scale.clone(), samples.data.clone()
    adjust(cameras, samples, stage)
    assert torch.equal(cameras.cam_from_world, poses) and torch.equal(cameras.depth_scale, scale)
    assert torch.equal(samples.data, data)


@pytest.mark.parametrize(
    "change",
    [
        {"residual": "splt"},
        {"solver": "ADAM"},
        {"loss": "foo"},
        {"tau_max": 0.0},
        {"tau_max": -1.0},
        {"tau_max": float("nan")},
        {"num_bins": 0},
        {"log_scale": 0.0},
        {"max_steps": -1},
        {"residual": "split", "per_star": True},
    ],
)
def test_a_wrong_setting_is_refused_by_name(noisy_problem, change):
    stage = object.__new__(type(FINE))  # past the type checker of the tests: users have none
    for name, value in {**vars(FINE), **change}.items():
        object.__setattr__(stage, name, value)
    with pytest.raises(ConfigError, match=next(iter(change))):
        adjust(noisy_problem.truth, noisy_problem.samples, stage)
