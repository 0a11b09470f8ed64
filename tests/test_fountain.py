"""A scene of real photographs, read as other programs do: COLMAP's model, nerfstudio's cameras, splatting's depth."""

import json
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest
from PIL import Image

from mbasfm import Config, reconstruct
from mbasfm.scene.derived import MAX_DISAGREEMENT
from mbasfm.scene.formats import read_ply

SHARED = Path(__file__).parents[2] / "shared"
PHOTOS, NETWORK = SHARED / "data" / "strecha_fountain11" / "images", SHARED / "weights" / "tiefenrausch.onnx"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    if not (PHOTOS.is_dir() and NETWORK.is_file()):
        pytest.skip(f"no photographs at {PHOTOS} or no network at {NETWORK}")
    folder = tmp_path_factory.mktemp("fountain")
    listing = folder / "list.txt"
    listing.write_text("".join(f"{path.resolve()}\n" for path in sorted(PHOTOS.iterdir())[3:7]))
    reconstruct(listing, folder / "scene", Config(depth=f"onnx:{NETWORK}", matcher="sift"))
    return folder / "scene"


def at(picture: np.ndarray, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Values of a picture that spans an image of the given size."""
    height, width = picture.shape[:2]
    column, row = np.floor(pixels / size * (width, height)).astype(int).T
    return picture[row.clip(0, height - 1), column.clip(0, width - 1)]


def test_the_model_opens_in_pycolmap(scene):
    model = pycolmap.Reconstruction(scene / "sparse" / "0")
    assert model.num_images() == 4 and model.num_points3D() > 1000
    assert model.compute_mean_reprojection_error() < 0.5
    assert {camera.model.name for camera in model.cameras.values()} == {"PINHOLE"}


def test_every_point_of_the_cloud_agrees_with_depth_and_colour_of_images_that_see_it(scene):
    """points.ply in the frames of transforms.json: in its own image and in at least one that confirms it."""
    content = json.loads((scene / "transforms.json").read_text())
    cloud = read_ply(scene / content["ply_file_path"])
    size = content["w"], content["h"]
    homogeneous = np.column_stack([cloud.points, np.ones(len(cloud.points))])
    agreeing, color_error = np.zeros(len(homogeneous), int), np.full(len(homogeneous), np.inf)
    for frame in content["frames"]:
        x, y, back, _ = np.linalg.inv(frame["transform_matrix"]) @ homogeneous.T  # OpenGL: y up, looking along -z
        pixels = np.stack(
            [content["fl_x"] * x / -back + content["cx"], content["fl_y"] * -y / -back + content["cy"]], -1
        )
        inside = (back < 0) & (pixels >= 0).all(1) & (pixels < size).all(1)
        steps = cv2.imread(str(scene / frame["depth_file_path"]), cv2.IMREAD_UNCHANGED)
        depth = at(steps, pixels, size) * content["depth_unit_scale_factor"]
        tolerance = MAX_DISAGREEMENT * depth + content["depth_unit_scale_factor"]
        agrees = inside & (depth > 0) & (np.abs(-back - depth) <= tolerance)
        with Image.open(scene / frame["file_path"]) as image:
            assert image.size == size
            difference = np.abs(at(np.asarray(image).astype(int), pixels, size) - cloud.colors).max(-1)
        color_error = np.where(agrees, np.minimum(color_error, difference), color_error)
        agreeing += agrees
    assert len(cloud.points) > 10_000
    assert (agreeing >= 2).mean() > 0.999
    assert (color_error <= 8).mean() > 0.99


def test_splatting_depth_meets_the_sparse_points_within_the_reported_error(scene):
    """Inverse depth = value / 65536 * scale + offset, as 3D Gaussian splatting reads it."""
    model = pycolmap.Reconstruction(scene / "sparse" / "0")
    params = json.loads((scene / "sparse" / "0" / "depth_params.json").read_text())
    reported = {row["name"]: row["depth_misfit"] for row in json.loads((scene / "report.json").read_text())["images"]}
    assert len(params) == model.num_images()
    for image in model.images.values():
        stem = Path(image.name).stem
        values = cv2.imread(str(scene / "depths" / f"{stem}.png"), cv2.IMREAD_UNCHANGED)
        seen = [point for point in image.points2D if point.has_point3D()]
        pixels, points = np.stack([p.xy for p in seen]), np.stack([model.points3D[p.point3D_id].xyz for p in seen])
        depth = (image.cam_from_world() * points)[:, 2]
        inverse = at(values, pixels, (image.camera.width, image.camera.height)) / 65536 * params[stem]["scale"]
        error = np.median(np.abs((inverse + params[stem]["offset"]) * depth - 1))
        assert error <= reported[image.name] + 5e-4 and 0 < reported[image.name] < 0.2
