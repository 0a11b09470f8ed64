"""Lenses that bend: the fisheye's own laws, and given or estimated lenses from keypoints to undistorted pictures."""

import json
from dataclasses import replace

import numpy as np
import pycolmap
import pytest
import test_derivatives
import torch
from helpers import assert_close
from made_up import make_lens, relief, true_cameras
from test_pipeline import auc_of, settings, write_scene
from torch.autograd.functional import jacobian

from mbasfm import reconstruct
from mbasfm.adjust.stage import SPLIT
from mbasfm.geometry.camera import pixel_rays, project
from mbasfm.geometry.fisheye import (
    MAX_ANGLE,
    distort_fisheye,
    fisheye_by_k1,
    fisheye_jacobian,
    fisheye_radius,
    undistort_fisheye,
)
from mbasfm.polish.colmap_mapper import Freedom, camera_of
from mbasfm.scene.derived import undistort_image, undistort_map
from mbasfm.types.cameras import Intrinsics

FISH = (0.05, -0.01, 0.003, -0.0004)
COEFFICIENTS = torch.tensor(FISH, dtype=torch.float64)
RAYS = torch.tensor([[0.0, 0.0], [0.3, -0.2], [1.5, 0.4], [-0.8, 3.0], [1e-9, 0.0]], dtype=torch.float64)


def test_undistort_inverts_distort_up_to_the_border():
    assert_close(undistort_fisheye(distort_fisheye(RAYS, COEFFICIENTS), COEFFICIENTS), RAYS, atol=1e-10)
    edge = fisheye_radius(torch.tensor(MAX_ANGLE, dtype=torch.float64), COEFFICIENTS)
    places = torch.stack([edge * torch.tensor([0.999, 1.001], dtype=torch.float64), torch.zeros(2).double()], -1)
    assert undistort_fisheye(places, COEFFICIENTS).isnan().tolist() == [[False, False], [True, True]]


def test_derivatives_are_those_of_the_lens():
    rays = RAYS[1:4]
    full = jacobian(lambda r: distort_fisheye(r, COEFFICIENTS), rays)
    assert_close(fisheye_jacobian(rays, COEFFICIENTS), torch.stack([full[n, :, n] for n in range(3)]))
    assert_close(fisheye_by_k1(rays), jacobian(lambda k: distort_fisheye(rays, k), COEFFICIENTS)[..., 0])
    distorted = distort_fisheye(rays, COEFFICIENTS).requires_grad_()
    assert torch.autograd.gradcheck(undistort_fisheye, (distorted, COEFFICIENTS.clone().requires_grad_()))


def two_lenses() -> Intrinsics:
    """A fisheye and a lens of the other kind."""
    rows = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).double()
    return Intrinsics(
        focal=400 * rows[:, 2:].expand(-1, 2).clone(),
        center=torch.tensor([[320.0, 240.0], [310.0, 250.0]]).double(),
        distortion=torch.tensor([FISH, (-0.1, 0.02, 0.001, -0.002)]).double(),
        sizes=torch.tensor([[640, 480], [640, 480]]),
        group=torch.tensor([0, 1]),
        is_fisheye=torch.tensor([True, False]),
    )


def test_both_kinds_agree_with_colmap():
    lenses, pixels = two_lenses(), torch.tensor([[320.0, 240.0], [20.0, 30.0], [600.0, 300.0]]).double()
    for frame, model in enumerate(("OPENCV_FISHEYE", "OPENCV")):
        camera = camera_of(lenses, frame, 1, Freedom(False, False))
        assert camera.model_name == model
        expected = torch.from_numpy(camera.cam_from_img(pixels.numpy()))
        rays = pixel_rays(pixels.expand(2, 3, 2), lenses, torch.tensor([[0], [1]]))[frame]
        assert_close(rays, expected, atol=1e-7)
        points = torch.cat([rays, torch.ones(3, 1).double()], -1)
        assert_close(project(2 * points, lenses, torch.tensor(frame)), pixels, atol=1e-7)


@pytest.mark.parametrize("kind, model", [("auto", "SIMPLE_RADIAL"), ("radial", "RADIAL"), ("opencv", "OPENCV")])
def test_a_lens_that_may_change_has_the_wanted_model(kind, model):
    straight = Intrinsics.pinhole(torch.tensor([900.0]), torch.tensor([[640, 480]]), torch.tensor([0]))
    assert camera_of(straight, 0, 1, Freedom(True, True, kind)).model_name == model
    assert camera_of(straight, 0, 1, Freedom(True, False, kind)).model_name == "SIMPLE_PINHOLE"


def test_gradients_are_exact_with_fisheyes_among_other_lenses(monkeypatch):
    usual = test_derivatives.make_state

    def some_fisheyes(depth_kind, k1):
        cameras, samples = usual(depth_kind, k1)
        is_fisheye = torch.arange(cameras.num_frames) % 2 == 0
        return replace(cameras, intrinsics=replace(cameras.intrinsics, is_fisheye=is_fisheye)), samples

    monkeypatch.setattr(test_derivatives, "make_state", some_fisheyes)
    test_derivatives.test_gradient_equals_autograd_of_the_frozen_loss(SPLIT, "depth", -0.08, True)
    test_derivatives.test_kernels_equal_their_readable_twin("depth", -0.08)


def test_dots_on_a_photograph_stay_on_their_rays(tmp_path):
    camera = pycolmap.Camera(model="OPENCV_FISHEYE", width=640, height=480, params=[300, 305, 322, 238, *FISH])
    rays = np.array([[x, y] for x in (-0.6, 0.0, 0.5) for y in (-0.4, 0.1, 0.4)])
    picture = np.zeros((480, 640, 3), np.uint8)
    for x, y in camera.img_from_cam(np.column_stack([rays, np.ones(9)])):
        picture[int(y) - 2 : int(y) + 3, int(x) - 2 : int(x) + 3] = 255
    straight = undistort_image(picture, camera)
    pinhole = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)
    assert pinhole.model_name == "PINHOLE" and straight.shape[:2] == (pinhole.height, pinhole.width)
    seen = pinhole.img_from_cam(np.column_stack([rays, np.ones(9)])).astype(int)
    assert (straight[seen[:, 1], seen[:, 0]] > 128).all() and straight.mean() < 10
    dots = undistort_map(picture[..., 0].astype(np.float32), camera, pinhole)
    places = (seen / (pinhole.width, pinhole.height) * (640, 480)).astype(int)
    assert (dots[places[:, 1], places[:, 0]] > 128).all()


def test_a_given_fisheye_from_keypoints_to_pictures(tmp_path):
    """A focal length of 0.4 image widths: the corners look 80 degrees to the side."""
    made = write_scene(tmp_path, lens=make_lens(420.0, distortion=FISH, is_fisheye=True), distance=2.2)[0]
    entry = {"model": "OPENCV_FISHEYE", "fx": 420, "fy": 420, "cx": 512, "cy": 384, "width": 1024, "height": 768}
    entry |= dict(zip(("k1", "k2", "k3", "k4"), FISH, strict=True))
    (tmp_path / "cameras.json").write_text(json.dumps(entry))
    config = settings(tmp_path, cameras=str(tmp_path / "cameras.json"))
    result = reconstruct(tmp_path / "images", tmp_path / "out", config)
    assert result.registered.all() and auc_of(result, made) > 0.9
    assert result.cameras.intrinsics.distortion.tolist() == [list(FISH)] * 6  # held
    model = pycolmap.Reconstruction(tmp_path / "out" / "sparse" / "0")
    bent = pycolmap.Reconstruction(tmp_path / "out" / "distorted" / "sparse" / "0")
    assert [c.model_name for c in model.cameras.values()] == ["PINHOLE"]
    assert [c.model_name for c in bent.cameras.values()] == ["OPENCV_FISHEYE"]
    assert bent.compute_mean_reprojection_error() < 0.5
    assert len(list((tmp_path / "out" / "images").iterdir())) == 6


@pytest.mark.parametrize(
    "kind, lens, distance",
    [
        ("radial", make_lens(700.0, distortion=(-0.25, 0.06, 0.0, 0.0)), 2.6),
        ("fisheye", make_lens(420.0, distortion=(0.03, 0.0, 0.0, 0.0), is_fisheye=True), 2.2),
    ],
)
def test_an_unknown_lens_is_found(tmp_path, kind, lens, distance):
    made = write_scene(tmp_path, lens=lens, distance=distance)[0]
    result = reconstruct(tmp_path / "images", None, settings(tmp_path, lens=kind))
    assert result.registered.all() and auc_of(result, made) > 0.85
    found, truth = result.cameras.intrinsics, true_cameras(made).intrinsics
    assert found.fisheye.all() == (kind == "fisheye")
    # What counts is where rays of the scene are seen.
    points = torch.from_numpy(relief(200, 5) + [0, 0, distance])
    frame = torch.tensor(0)
    error = (project(points, found, frame) - project(points, truth, frame)).norm(dim=-1)
    assert float(error.median()) < 2
