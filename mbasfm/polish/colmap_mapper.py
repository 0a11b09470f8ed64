"""Triangulation and bundle adjustment by COLMAP's own parts, and conversion of our cameras to COLMAP's and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pycolmap
import torch
from jaxtyping import Float64, Int64

from mbasfm.adjust.pose_priors import CAUCHY, PosePriors
from mbasfm.config import LensKind
from mbasfm.geometry.rigid import camera_centers
from mbasfm.polish.depth import VIRTUAL, DepthTerms, take_back, with_depth
from mbasfm.types.cameras import Cameras, Intrinsics
from mbasfm.types.observations import Keypoints, TwoView

MAX_ERROR_PX = 4.0
"""Largest error of an observation that is kept, before the noise is known [px at a long side of 1024]."""
MIN_ANGLE_DEG = 1.5
MIN_NOISE_PX = 0.05
LOSS_SIGMAS = 2.385
"""Residual, in sigmas, at which the Cauchy loss sets in: 95 % efficient on normal errors."""
RAYLEIGH_MEDIAN = 1.1774
"""Median length of a 2-vector of standard normal numbers."""
ROUGH_TOLERANCE, FINE_TOLERANCES = 1e-6, (1e-7, 1e-8)
"""Relative change of the cost. Where few tracks hold two halves of a scene together, cameras turn by degrees while the
cost hardly falls; if stopped too early, filters cut the tracks that would have pulled them further."""
MAX_ITERATIONS = 1000
"""Far more than needed: a result that depends on where adjustment is cut off depends on rounding."""
CENTER_SIGMA = 0.01
"""Standard deviation of the principal point [share of the long side]: real lenses are some pixels off centre."""
RADIAL_SIGMA = 0.1
TINY_SHARE = 1e-6
FOCAL_SIGMA = 0.2
"""Relative standard deviation of the focal length from adjustment or search, where tracks do not determine it."""
SPREAD_FACTOR = 3.0
"""Factor on the spread that bundle adjustment states, which is too small because feature errors are dependent."""


@dataclass(frozen=True)
class Freedom:
    """Which intrinsics bundle adjustment may change."""

    focal: bool
    lens: bool
    """Whether principal point and distortion may change, under a prior."""
    model: LensKind = "auto"
    """Distortion model of lenses that may change; auto is one radial term."""


HELD = Freedom(False, False)


def camera_of(intrinsics: Intrinsics, frame: int, camera_id: int, freedom: Freedom) -> pycolmap.Camera:
    """The simplest COLMAP camera that holds a frame's intrinsics and those that may still change."""
    width, height = intrinsics.sizes[frame].tolist()
    fx, fy = intrinsics.focal[frame].tolist()
    cx, cy = intrinsics.center[frame].tolist()
    lens = intrinsics.distortion[frame].tolist()
    square = fx == fy
    if bool(intrinsics.fisheye[frame]):
        model, params = "OPENCV_FISHEYE", [fx, fy, cx, cy, *lens]
    elif any(lens[2:]) or freedom.lens and freedom.model == "opencv" or not square and (freedom.lens or any(lens)):
        model, params = "OPENCV", [fx, fy, cx, cy, *lens]
    elif lens[1] or freedom.lens and freedom.model == "radial":
        model, params = "RADIAL", [fx, cx, cy, *lens[:2]]
    elif lens[0] or freedom.lens:
        model, params = "SIMPLE_RADIAL", [fx, cx, cy, lens[0]]
    else:
        model, params = ("SIMPLE_PINHOLE", [fx, cx, cy]) if square else ("PINHOLE", [fx, fy, cx, cy])
    return pycolmap.Camera(model=model, width=width, height=height, params=params, camera_id=camera_id)


def build_model(
    names: Sequence[str], frames: Sequence[int], cameras: Cameras, keypoints: Sequence[Keypoints], freedom: Freedom
) -> pycolmap.Reconstruction:
    """A COLMAP model with cameras and images but no points; image ids are frame numbers plus one."""
    model = pycolmap.Reconstruction()
    for frame in frames:
        group = int(cameras.intrinsics.group[frame]) + 1
        if group not in model.cameras:
            model.add_camera_with_trivial_rig(camera_of(cameras.intrinsics, frame, group, freedom))
        image = pycolmap.Image(
            name=names[frame],
            keypoints=keypoints[frame].pixels.astype(np.float64),
            camera_id=group,
            image_id=frame + 1,
        )
        pose = pycolmap.Rigid3d(cameras.cam_from_world[frame].numpy())
        model.add_image_with_trivial_frame(image, pose)
    return model


def read_back(model: pycolmap.Reconstruction, cameras: Cameras) -> Cameras:
    """Cameras with the model's poses and intrinsics; frames that the model does not contain are unchanged."""
    pose = cameras.cam_from_world.clone()
    old = cameras.intrinsics
    focal, center, distortion = old.focal.clone(), old.center.clone(), old.distortion.clone()
    for image_id, image in model.images.items():
        if image.has_pose:
            frame = image_id - 1
            pose[frame] = torch.from_numpy(image.cam_from_world().matrix())
            camera = model.cameras[image.camera_id]
            focal[frame] = torch.tensor([camera.focal_length_x, camera.focal_length_y], dtype=torch.float64)
            center[frame] = torch.tensor([camera.principal_point_x, camera.principal_point_y], dtype=torch.float64)
            extra = list(camera.params[camera.extra_params_idxs()])
            distortion[frame] = torch.tensor([*extra, 0.0, 0.0, 0.0, 0.0][:4], dtype=torch.float64)
    return replace(
        cameras, cam_from_world=pose, intrinsics=replace(old, focal=focal, center=center, distortion=distortion)
    )


class Mapper:
    """Triangulation and bundle adjustment of one model, by COLMAP's own parts."""

    def __init__(
        self,
        model: pycolmap.Reconstruction,
        views: Sequence[TwoView],
        matches: Sequence[np.ndarray],
        prior_focal: Mapping[int, float] | None = None,
        priors: PosePriors | None = None,
    ):
        """``prior_focal``: expected focal length of each camera; by default its present one."""
        self.model, self._priors = model, priors
        self.depth: DepthTerms | None = None
        self._prior_focal = prior_focal or focals_of(model)
        graph = pycolmap.CorrespondenceGraph()
        for image_id, image in model.images.items():
            graph.add_image(image_id, len(image.points2D))
        for view, pairs in zip(views, matches, strict=True):
            geometry = pycolmap.TwoViewGeometry()
            geometry.inlier_matches = pairs.astype(np.uint32)
            graph.add_two_view_geometry(view.i + 1, view.j + 1, geometry)
        graph.finalize()
        self._graph = graph  # the parts below refer to it without keeping it alive
        self.observations = pycolmap.ObservationManager(model, graph)
        self._triangulator = pycolmap.IncrementalTriangulator(graph, model, self.observations)
        self._options = pycolmap.IncrementalTriangulatorOptions()
        self._options.random_seed = 0
        self._options.ignore_two_view_tracks = False

    def triangulate(self) -> None:
        """Triangulate points from all images, then complete and merge tracks."""
        for image_id in sorted(self.model.images):
            self._triangulator.triangulate_image(self._options, image_id)
        self.complete()

    def complete(self) -> None:
        """Extend and merge tracks where that fits the present cameras."""
        self._triangulator.complete_all_tracks(self._options)
        self._triangulator.merge_all_tracks(self._options)

    def adjust(self, freedom: Freedom, noise_px: float, tolerance: float) -> pycolmap.CeresBundleAdjuster:
        """Move cameras and points to the minimum of the robust reprojection error.

        Depth is used only where intrinsics are held: it was corrected with the present ones, and would hold on to them.
        Where positions are known, these determine the scale and depth is left out.
        """
        options = pycolmap.BundleAdjustmentOptions()
        options.refine_focal_length = freedom.focal
        options.refine_extra_params = freedom.lens
        options.refine_principal_point = freedom.lens
        options.refine_sensor_from_rig = False
        options.print_summary = False
        options.min_track_length = 2
        options.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
        options.ceres.loss_function_scale = LOSS_SIGMAS * noise_px
        options.ceres.auto_select_solver_type = True
        options.ceres.solver_options.function_tolerance = tolerance
        options.ceres.solver_options.max_num_iterations = MAX_ITERATIONS
        options.ceres.solver_options.num_threads = 1  # with more, the order of sums would vary
        depth = self.depth if freedom == HELD and self._priors is None else None
        model = with_depth(self.model, depth, max(self.noise_px(), MIN_NOISE_PX)) if depth else self.model
        config = pycolmap.BundleAdjustmentConfig()
        for image_id in model.images:
            config.add_image(image_id)
        for camera_id in model.cameras:
            if camera_id >= VIRTUAL:
                config.set_constant_cam_intrinsics(camera_id)
        if self._priors is not None:
            how, positions = position_priors(self._priors, model, noise_px)
            adjuster = pycolmap.create_pose_prior_ceres_bundle_adjuster(options, how, config, positions, model)
            adjuster.solve()
            return adjuster
        if depth:
            config.set_constant_rig_from_world_pose(min(model.frames))  # depth determines the scale
        else:
            config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        adjuster = pycolmap.create_default_ceres_bundle_adjuster(options, config, model)
        adjuster.solve()
        if depth:
            take_back(self.model, model)
        return adjuster

    def noise_px(self) -> float:
        """Standard deviation of an image coordinate, from the median error of the points.

        A point uses up three of the 2n coordinates of its track: short tracks fit far better than they should.
        """
        self.model.update_point_3d_errors()
        points = self.model.points3D.values()
        errors = [point.error / np.sqrt(1 - 1.5 / point.track.length()) for point in points]
        return float(np.median(errors)) / RAYLEIGH_MEDIAN if errors else 1.0

    def settle(self, freedom: Freedom, px: float) -> None:
        """Adjust and filter, first roughly, then at the scale of the estimated noise."""
        self.adjust(replace(freedom, lens=False), px / LOSS_SIGMAS, ROUGH_TOLERANCE)
        self.filter(MAX_ERROR_PX * px)
        for tolerance in FINE_TOLERANCES:
            noise = max(self.noise_px(), MIN_NOISE_PX * px)
            adjuster = self.adjust(freedom, noise, tolerance)
            if freedom == HELD:
                self.filter(max(4 * noise, px))
        if freedom != HELD:
            self.shrink(adjuster, freedom, noise)
            self.adjust(HELD, noise, FINE_TOLERANCES[-1])
            self.filter(max(4 * noise, px))

    def filter(self, max_error_px: float) -> None:
        """Extend tracks, then remove observations that do not fit and points seen under a tiny angle."""
        self.complete()
        self.observations.filter_all_points3D(max_error_px, MIN_ANGLE_DEG)

    def shrink(self, adjuster: pycolmap.CeresBundleAdjuster, freedom: Freedom, noise_px: float) -> None:
        """Pull intrinsics towards their prior, as far as the data leaves them undetermined."""
        covariance = pycolmap.estimate_ba_covariance(pycolmap.BACovarianceOptions(), self.model, adjuster)
        for number, camera in self.model.cameras.items():
            spread = None if covariance is None else covariance.get_other_params_cov(camera.params)
            scaled = None if spread is None else spread * (SPREAD_FACTOR * noise_px) ** 2
            shrink_camera(camera, self._prior_focal[number], freedom, scaled)


def shrink_camera(camera: pycolmap.Camera, focal: float, freedom: Freedom, spread: np.ndarray | None) -> None:
    """Move one camera's free parameters to their expected values; without spread, to the prior.

    Rows of the spread are in the order of the free parameters.
    """
    long_side = max(camera.width, camera.height)
    kinds = [(camera.focal_length_idxs(), freedom.focal, [focal] * 2, FOCAL_SIGMA * focal)]
    kinds += [
        (camera.principal_point_idxs(), freedom.lens, [camera.width / 2, camera.height / 2], CENTER_SIGMA * long_side)
    ]
    kinds += [(camera.extra_params_idxs(), freedom.lens, [0.0] * 4, RADIAL_SIGMA)]
    rows = [
        (index, mean, sigma, kind)
        for kind, (indices, free, means, sigma) in enumerate(kinds)
        if free
        for index, mean in zip(indices, means, strict=False)
    ]
    rows.sort()
    index, prior, sigma, kind = (np.array(column) for column in zip(*rows, strict=True))
    params = np.array(camera.params)
    if spread is None or spread.shape[0] != len(index) or not np.isfinite(spread).all():
        params[index] = prior
    else:
        params[index] = prior + believed_difference(params[index] - prior, spread, sigma, kind)
    camera.params = params.tolist()


def believed_difference(
    found: Float64[np.ndarray, " P"],
    spread: Float64[np.ndarray, "P P"],
    sigma: Float64[np.ndarray, " P"],
    kind: Int64[np.ndarray, " P"],
) -> Float64[np.ndarray, " P"]:
    """Expected part of a difference from nominal intrinsics, given that it was found with this spread.

    Most lenses are as they should be. So a kind of parameter (1: principal point, 2: distortion) is either exactly
    nominal or spread around it by ``sigma``; kind 0 is never nominal. The mean over all such models, each weighted by
    how probable it makes what was found, goes continuously from nothing, where the data cannot tell, to all of it.
    Without nominal models, a principal point that tracks hardly constrain drifts by pixels, and cameras turn with it.
    """
    spread = spread + np.diag((TINY_SHARE * sigma) ** 2)  # exactly known parameters would give NaN
    estimates, evidence = [], []
    for centre, bent in product((False, True), repeat=2):
        believed = np.diag(np.where(np.array([True, centre, bent])[kind], sigma, 0.0) ** 2)
        total = believed + spread
        surprise = np.linalg.solve(total, found)
        estimates.append(believed @ surprise)
        evidence.append(-0.5 * (found @ surprise + np.linalg.slogdet(total)[1]))
    weight = np.exp(np.array(evidence) - max(evidence))
    return weight @ np.array(estimates) / weight.sum()


def focals_of(model: pycolmap.Reconstruction) -> dict[int, float]:
    """Mean focal length of every camera [px]."""
    return {number: camera.mean_focal_length() for number, camera in model.cameras.items()}


def position_priors(
    priors: PosePriors, model: pycolmap.Reconstruction, noise_px: float
) -> tuple[pycolmap.PosePriorBundleAdjustmentOptions, list[pycolmap.PosePrior]]:
    """Position priors for COLMAP's bundle adjustment, with sigmas converted to pixels, as its cost is in pixels."""
    options = pycolmap.PosePriorBundleAdjustmentOptions()
    options.alignment_ransac.random_seed = 0
    options.ceres.prior_position_loss_function_type = pycolmap.LossFunctionType.CAUCHY
    options.ceres.prior_position_loss_scale = CAUCHY * noise_px
    found = []
    for frame, pose, sigma in zip(priors.frame.tolist(), priors.cam_from_world, priors.sigma.tolist(), strict=True):
        if frame + 1 in model.images:
            found.append(
                pycolmap.PosePrior(
                    corr_data_id=model.images[frame + 1].data_id,
                    position=camera_centers(pose).numpy(),
                    position_covariance=np.eye(3) * (sigma / noise_px) ** 2,
                    coordinate_system=pycolmap.PosePriorCoordinateSystem.CARTESIAN,
                )
            )
    return options, found
