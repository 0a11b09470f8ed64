"""Everything in a scene folder, on a made-up surface of which depth and colour of every pixel are known."""

import json
import struct
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest
import torch
from made_up import all_views, keypoints_with, make_lens, orbit, photograph, true_cameras
from PIL import ExifTags, Image

from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.io.images import find_photos, read_upright
from mbasfm.polish.colmap_mapper import HELD, camera_of
from mbasfm.polish.polish import triangulate
from mbasfm.scene.derived import MIN_SHARED, NUM_NEIGHBOURS, neighbours_of, undistort_model
from mbasfm.scene.folder import KINDS, export_scene
from mbasfm.scene.formats import (
    Companions,
    depth_image,
    depth_unit,
    inverse_image,
    read_depth,
    read_ply,
    stems_of,
    thinned,
    transforms,
)
from mbasfm.scene.reconstruction import Reconstruction, refuse_overwriting, with_written, write_scene
from mbasfm.scene.report_file import write_report_json
from mbasfm.sfm.inputs import held_cameras
from mbasfm.sfm.pairs.pose_graph import pose_graph
from mbasfm.types.observations import DepthEstimate, Observations
from mbasfm.types.outcome import ImageRow, RunReport, View

NUM_FRAMES, SIZE, FOCAL, BENT = 5, (512, 384), 450.0, -0.08
MAP_SIZE = (128, 96)
NAMES = ("a/0.jpg", "a/1.png", "a/2.png", "b/3.png", "b/4.jpg")
ORIENTATION_6 = Image.Transpose.ROTATE_90
"""Turns an upright picture into one that the tag 6 turns back."""


def height(x, y):
    return 0.3 * np.sin(2 * x) * np.cos(1.5 * y)


def paint(points):
    """Colours change slowly, so that half a pixel does not matter."""
    x, y, z = points.T
    return (128 + 90 * np.stack([np.sin(2 * x), np.cos(2 * y), np.sin(3 * z)], -1)).round().astype(np.uint8)


def render(pose, camera, size):
    """Depth and colours of the pixels of a map that spans a photograph."""
    column, row = np.meshgrid((np.arange(size[0]) + 0.5) / size[0], (np.arange(size[1]) + 0.5) / size[1])
    pixels = np.stack([column.ravel() * camera.width, row.ravel() * camera.height], -1)
    rays = np.column_stack([camera.cam_from_img(pixels), np.ones(len(pixels))]) @ pose[:, :3]
    center = -pose[:, :3].T @ pose[:, 3]
    depth = np.full(len(rays), 4.0)
    for _ in range(25):
        x, y, _ = (center + depth[:, None] * rays).T
        depth = (height(x, y) - center[2]) / rays[:, 2]
    colors = paint(center + depth[:, None] * rays)
    return depth.reshape(size[::-1]), colors.reshape(*size[::-1], 3)


def write_photos(folder, poses, camera, turned):
    for name, pose in zip(NAMES, poses, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture, exif = Image.fromarray(render(pose, camera, SIZE)[1]), Image.Exif()
        if name in turned:
            picture = picture.transpose(ORIENTATION_6)
            exif[ExifTags.Base.Orientation] = 6
        picture.save(path, quality=98, exif=exif)


def make_result(folder, distortion=0.0, is_disparity=False, has_depth=True, turned=()):
    """A finished reconstruction of the surface, with depth corrections that are ten per cent off."""
    generator = np.random.default_rng(3)
    x, y = generator.uniform([-1.6, -1.2], [1.6, 1.2], (400, 2)).T
    lens = make_lens(FOCAL, SIZE, (distortion, 0, 0, 0), offset=(6.0, -4.0))
    made = photograph(np.stack([x, y, height(x, y)], -1), orbit(NUM_FRAMES), lens, 3)
    cameras, keypoints, views = true_cameras(made), keypoints_with(made, made.depth), all_views(made)
    camera = camera_of(cameras.intrinsics, 0, 1, HELD)
    write_photos(folder / "photos", made.cam_from_world, camera, turned)
    photos, _ = find_photos(folder / "photos")
    depths = []
    for frame, pose in enumerate(made.cam_from_world):
        depth = render(pose, camera, MAP_SIZE)[0] if has_depth else np.ones((2, 2))
        value = 1 / depth if is_disparity else depth
        depths.append(DepthEstimate((value * (1 + frame)).astype(np.float32), is_disparity, False))
    scale = torch.tensor([1.1 / (1 + frame) for frame in range(NUM_FRAMES)], dtype=torch.float64)
    flags = torch.full((NUM_FRAMES,), is_disparity)
    cameras = type(cameras)(cameras.cam_from_world, cameras.intrinsics, scale, torch.zeros_like(scale), flags)
    model = triangulate(NAMES, range(NUM_FRAMES), cameras, views, keypoints)
    colors = [paint(made.points[chosen]) for chosen in made.point_of]
    observations = Observations(photos, depths, keypoints, colors, np.zeros((0, 2), np.int64), [])
    rows = tuple(ImageRow(photo.name, str(photo.path), 0) for photo in photos)
    component = torch.zeros(NUM_FRAMES, dtype=torch.int64)
    graph = pose_graph(views)
    result = Reconstruction(NAMES, graph, cameras, component == 0, component, (model,), RunReport(rows, ()))
    return made, result, observations


def save_scene(result, observations, folder):
    """As the pipeline does."""
    written = write_scene(result, observations, folder)
    write_report_json(with_written(result.report, written), folder)


KINDS_OF_SCENE = {
    "straight": {"turned": ("a/0.jpg", "a/1.png")},
    "bent": {"distortion": BENT, "turned": ("b/4.jpg",)},
    "disparity": {"distortion": BENT, "is_disparity": True},
    "flat": {"has_depth": False},
}


@pytest.fixture(scope="module", params=list(KINDS_OF_SCENE))
def scene(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    made, result, observations = make_result(folder, **KINDS_OF_SCENE[request.param])
    save_scene(result, observations, folder / "scene")
    return request.param, folder, made


def model_of(folder):
    return pycolmap.Reconstruction(folder / "scene" / "sparse" / "0")


def matrix_of(camera):
    return np.array([[camera["fl_x"], 0, camera["cx"]], [0, camera["fl_y"], camera["cy"]], [0, 0, 1]])


def test_the_model_is_pinhole_and_its_tracks_stay_right(scene):
    kind, folder, made = scene
    model = model_of(folder)
    assert {camera.model.name for camera in model.cameras.values()} <= {"PINHOLE", "SIMPLE_PINHOLE"}
    assert model.num_points3D() > 300 and model.compute_mean_reprojection_error() < 0.05
    for image in model.images.values():
        assert image.cam_from_world().matrix() == pytest.approx(made.cam_from_world[image.image_id - 1], abs=1e-9)
        seen = [point for point in image.points2D if point.has_point3D()]
        projected = [image.project_point(model.points3D[point.point3D_id].xyz) for point in seen]
        assert np.stack(projected) == pytest.approx(np.stack([point.xy for point in seen]), abs=0.5)
    before = folder / "scene" / "distorted" / "sparse" / "0"
    assert before.is_dir() == (kind in ("bent", "disparity"))
    if before.is_dir():
        original = pycolmap.Reconstruction(before)
        assert next(iter(original.cameras.values())).params[-1] == BENT
        pixels = np.stack([point.xy for point in original.images[1].points2D])
        assert pixels == pytest.approx(made.pixels[0], abs=1e-3)


def test_images_are_upright_and_show_what_the_model_says(scene):
    kind, folder, made = scene
    for image in model_of(folder).images.values():
        path = folder / "scene" / "images" / image.name
        with Image.open(path) as picture:
            assert picture.size == (image.camera.width, image.camera.height)
            assert picture.getexif().get(ExifTags.Base.Orientation, 1) == 1
        pixels = image.camera.img_from_cam(image.cam_from_world() * made.points)
        inside = (pixels > 2).all(1) & (pixels < np.array([image.camera.width, image.camera.height]) - 2).all(1)
        column, row = pixels[inside].astype(int).T
        shown = read_upright(path)[row, column].astype(int)
        assert np.median(np.abs(shown - paint(made.points[inside]))) <= 2
        original = folder / "photos" / image.name
        unchanged = kind in ("straight", "flat") and image.name not in KINDS_OF_SCENE[kind].get("turned", ())
        assert (path.read_bytes() == original.read_bytes()) == unchanged


def depth_rows(folder, sub, suffix):
    """Views with the values of a map at the sparse points that they see, and the true depth of those."""
    model = model_of(folder)
    for image in model.images.values():
        path = folder / "scene" / sub / Path(image.name).with_suffix(suffix)
        values = read_depth(path) if suffix == ".npz" else cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        seen = [point for point in image.points2D if point.has_point3D()]
        points = np.stack([model.points3D[point.point3D_id].xyz for point in seen])
        depth = (image.cam_from_world() * points)[:, 2]
        size = (image.camera.width, image.camera.height)
        column, row = (np.stack([p.xy for p in seen]) / size * values.shape[::-1]).astype(int).T
        yield image.name, values[row, column].astype(np.float64), depth


def test_depth_is_that_of_the_world(scene):
    kind, folder, _ = scene
    if kind == "flat":
        assert not (folder / "scene" / "depth").exists() and not (folder / "scene" / "depths").exists()
        return
    for _, found, depth in depth_rows(folder, "depth", ".npz"):
        assert np.quantile(np.abs(found / depth - 1), 0.9) < 0.01
    report = json.loads((folder / "scene" / "report.json").read_text())
    assert all(row["depth_misfit"] < 0.01 for row in report["images"])


def test_gaussian_splatting_reads_inverse_depth(scene):
    kind, folder, _ = scene
    path = folder / "scene" / "sparse" / "0" / "depth_params.json"
    assert path.exists() == (kind != "flat")
    if kind == "flat":
        return
    params = json.loads(path.read_text())
    assert set(params) == {str(Path(name).with_suffix("")) for name in NAMES}
    for name, value, depth in depth_rows(folder, "depths", ".png"):
        one = params[str(Path(name).with_suffix(""))]
        inverse = value / 65536 * one["scale"] + one["offset"]
        assert np.quantile(np.abs(inverse * depth - 1), 0.9) < 0.01


def test_nerfstudio_cameras_see_what_colmap_cameras_see(scene):
    kind, folder, _ = scene
    content = json.loads((folder / "scene" / "transforms.json").read_text())
    model, chosen = model_of(folder), read_ply(folder / "scene" / content["ply_file_path"]).points[::40]
    assert [frame["file_path"] for frame in content["frames"]] == [f"images/{name}" for name in NAMES]
    assert content["applied_transform"] == np.eye(4)[:3].tolist()
    for frame in content["frames"]:
        image = model.find_image_with_name(frame["file_path"].removeprefix("images/"))
        assert (content["w"], content["h"]) == (image.camera.width, image.camera.height)
        points = np.column_stack([chosen, np.ones(len(chosen))])
        x, y, back, _ = np.linalg.inv(frame["transform_matrix"]) @ points.T  # OpenGL: y up, looking along -z
        pixels = (matrix_of(content) @ np.stack([x, -y, -back])).T
        pixels = pixels[:, :2] / pixels[:, 2:]
        assert pixels == pytest.approx(np.stack([image.project_point(p) for p in chosen]), abs=1e-3)
        assert ("depth_file_path" in frame) == (kind != "flat")
    if kind != "flat":
        assert content["frames"][3]["depth_file_path"] == "depth/b/3.png"
        for _, steps, depth in depth_rows(folder, "depth", ".png"):
            assert np.quantile(np.abs(steps * content["depth_unit_scale_factor"] / depth - 1), 0.9) < 0.01


def test_the_cloud_lies_on_the_surface_in_its_colours(scene):
    kind, folder, _ = scene
    cloud = read_ply(folder / "scene" / "points.ply")
    x, y, z = cloud.points.T
    assert np.quantile(np.abs(z - height(x, y)), 0.9) < 0.05
    if kind != "flat":
        assert 5_000 < len(cloud.points) <= NUM_FRAMES * MAP_SIZE[0] * MAP_SIZE[1]
        assert np.median(np.abs(cloud.colors.astype(int) - paint(cloud.points))) <= 4
    else:
        assert len(cloud.points) == model_of(folder).num_points3D()


def test_the_trajectory_holds_camera_centres(scene):
    _, folder, made = scene
    rows = np.loadtxt(folder / "scene" / "trajectory.tum")
    assert rows[:, 0].tolist() == list(range(NUM_FRAMES))
    for row, pose in zip(rows, made.cam_from_world, strict=True):
        assert row[1:4] == pytest.approx(-pose[:, :3].T @ pose[:, 3], abs=1e-6)
        turn = pycolmap.Rotation3d(row[4:]).matrix()  # x y z w
        assert turn == pytest.approx(pose[:, :3].T, abs=1e-6)


def test_the_glb_is_a_valid_container(scene):
    _, folder, _ = scene
    data = (folder / "scene" / "scene.glb").read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data))
    size, kind = struct.unpack_from("<I4s", data, 12)
    content = json.loads(data[20 : 20 + size])
    binary_size, binary_kind = struct.unpack_from("<I4s", data, 20 + size)
    assert (kind, binary_kind) == (b"JSON", b"BIN\0") and 28 + size + binary_size == length
    assert size % 4 == binary_size % 4 == 0
    binary = data[28 + size :]
    for mesh, mode in zip(content["meshes"], (0, 1), strict=True):
        (part,) = mesh["primitives"]
        accessor = content["accessors"][part["attributes"]["POSITION"]]
        view = content["bufferViews"][accessor["bufferView"]]
        points = np.frombuffer(binary, "<f4", 3 * accessor["count"], view["byteOffset"]).reshape(-1, 3)
        assert part["mode"] == mode and points.min(0).tolist() == accessor["min"]
        assert view["byteOffset"] % 4 == 0 and view["byteLength"] == points.nbytes
    assert accessor["count"] == NUM_FRAMES * 16


def test_export_makes_the_same_files_again(scene):
    _, folder, _ = scene
    report = json.loads((folder / "scene" / "report.json").read_text())
    assert set(report["outputs"]) == set(KINDS)
    paths = [path for paths in report["outputs"].values() for path in paths]
    before = {path: (folder / "scene" / path).read_bytes() for path in paths}
    for path in paths:
        if not path.endswith(".npz"):
            (folder / "scene" / path).unlink()
    assert main(["export", str(folder / "scene")]) == 0
    assert {path: (folder / "scene" / path).read_bytes() for path in paths} == before


def test_little_memory_gives_the_same_files(scene, monkeypatch):
    """One map at a time, and views compared two by two."""
    _, folder, _ = scene
    report = json.loads((folder / "scene" / "report.json").read_text())
    paths = [folder / "scene" / path for paths in report["outputs"].values() for path in paths]
    before = {path: path.read_bytes() for path in paths}
    monkeypatch.setattr("mbasfm.scene.folder.MAPS_IN_MEMORY", 1)
    monkeypatch.setattr("mbasfm.scene.derived.VIEWS_AT_ONCE", 2)
    export_scene(folder / "scene")
    assert {path: path.read_bytes() for path in paths} == before


def test_neighbours_are_those_that_share_most_points(monkeypatch):
    generator = np.random.default_rng(0)
    seen = [np.flatnonzero(generator.random(200) < share) for share in generator.uniform(0.0, 0.6, 11)]
    monkeypatch.setattr("mbasfm.scene.derived.VIEWS_AT_ONCE", 3)
    for own, found in enumerate(neighbours_of(seen)):
        shared = {k: len(np.intersect1d(seen[own], seen[k])) for k in range(11) if k != own}
        ranked = sorted((k for k in shared if shared[k] >= MIN_SHARED), key=lambda k: (-shared[k], k))
        assert found == ranked[:NUM_NEIGHBOURS]


def test_units_of_many_maps_come_from_evenly_spaced_values():
    depth = np.linspace(1, 3, 600, dtype=np.float32).reshape(20, 30)
    depth[0] = np.nan
    few = thinned(depth, 50)
    assert len(few) == 50 and few[0] == depth[1, 0] and few[-1] == 3
    assert np.array_equal(thinned(depth, 1000), depth[1:].ravel())
    assert np.median(few) == pytest.approx(np.nanmedian(depth), rel=0.02)


# ----------------------------------------------------------------------------------------------------------------
# What is in the way


def test_a_second_result_removes_what_the_first_wrote_and_nothing_else(tmp_path):
    _, result, observations = make_result(tmp_path)
    scene = tmp_path / "scene"
    save_scene(result, observations, scene)
    (scene / "images" / "mine.txt").write_text("keep")
    flat = [DepthEstimate(np.ones((2, 2), np.float32), True, False)] * NUM_FRAMES
    save_scene(result, Observations(observations.photos, flat, *vars_of(observations)), scene)
    assert not list((scene / "depth").rglob("*.npz")) and not list((scene / "depths").rglob("*.png"))
    assert (scene / "images" / "mine.txt").is_file() and (scene / "images" / NAMES[0]).is_file()
    assert "depth_file_path" not in json.loads((scene / "transforms.json").read_text())["frames"][0]


def vars_of(observations):
    return observations.keypoints, observations.colors, observations.pairs, observations.matches


def test_links_to_originals_are_replaced_and_originals_stay(tmp_path):
    _, result, observations = make_result(tmp_path, distortion=BENT, has_depth=False)
    original, link = tmp_path / "photos" / NAMES[1], tmp_path / "scene" / "images" / NAMES[1]
    link.parent.mkdir(parents=True)
    link.symlink_to(original)
    before = original.read_bytes()
    save_scene(result, observations, tmp_path / "scene")
    assert original.read_bytes() == before and not link.is_symlink()


def test_photographs_of_several_cameras_carry_their_own_intrinsics():
    pose = orbit(2)
    wide = View("a.jpg", 0, pose[0], np.array([400.0, 410.0]), np.array([200.0, 150.0]), (400, 300), 1)
    tall = View("b.jpg", 1, pose[1], np.array([900.0, 900.0]), np.array([300.0, 400.0]), (600, 800), 2)
    content = transforms([wide, tall], Companions(["images/a.jpg", "images/b.jpg"]))
    assert "fl_x" not in content and "ply_file_path" not in content and "depth_file_path" not in content["frames"][0]
    assert [(frame["fl_y"], frame["w"], frame["cx"]) for frame in content["frames"]] == [
        (410, 400, 200),
        (900, 600, 300),
    ]


def test_a_missing_image_without_its_original_is_named(tmp_path):
    _, result, observations = make_result(tmp_path, has_depth=False)
    save_scene(result, observations, tmp_path / "scene")
    (tmp_path / "scene" / "images" / NAMES[2]).unlink()
    (tmp_path / "photos" / NAMES[2]).unlink()
    with pytest.raises(InputError, match=r"a/2.png.*put it back"):
        export_scene(tmp_path / "scene", ["images"])
    assert export_scene(tmp_path / "scene", ["tum"]) == {"tum": ["trajectory.tum"]}


def test_what_is_not_a_scene_is_refused_in_one_line(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--format", "ply"]) == 2
    assert "give the --output of mba sfm" in capsys.readouterr().err


def test_input_in_the_place_of_output_is_refused(tmp_path):
    Image.new("RGB", (80, 80)).save(tmp_path / "1.png")
    photos, _ = find_photos(tmp_path)
    refuse_overwriting(tmp_path / "scene", photos, f"files:{tmp_path / 'depth'}", {}, False)
    with pytest.raises(InputError, match="move your maps"):
        refuse_overwriting(tmp_path, photos, f"files:{tmp_path / 'depth'}?disparity", {}, False)
    (tmp_path / "images").mkdir()
    (tmp_path / "1.png").rename(tmp_path / "images" / "1.png")
    photos, _ = find_photos(tmp_path / "images")
    with pytest.raises(InputError, match="say --lens pinhole if they have no distortion, else move them to .*input"):
        refuse_overwriting(tmp_path, photos, "flat", {}, False)
    refuse_overwriting(tmp_path, photos, "flat", {}, True)
    refuse_overwriting(tmp_path, photos, "flat", held_cameras(photos, None, 80.0), False)
    (tmp_path / "bent.json").write_text('{"focal": 80, "k1": 0.1}')
    with pytest.raises(InputError, match="undistorted photographs are written"):
        refuse_overwriting(tmp_path, photos, "flat", held_cameras(photos, str(tmp_path / "bent.json"), None), True)
    above, _ = find_photos(tmp_path)  # named images/1.png, so it would be written to images/images/1.png
    with pytest.raises(InputError, match="images/1.png lies in"):
        refuse_overwriting(tmp_path, above, "flat", {}, True)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (80, 90)).save(tmp_path / "images" / "1.png", exif=exif)
    with pytest.raises(InputError, match="not stored upright"):
        refuse_overwriting(tmp_path, photos, "flat", {}, True)


def test_keypoints_that_the_lens_cannot_have_seen_leave_the_image():
    model = pycolmap.Reconstruction()
    params = [600, 500, 400, -0.3]  # bends back before the corners of the image
    camera = pycolmap.Camera(model="SIMPLE_RADIAL", width=1000, height=800, params=params, camera_id=1)
    model.add_camera_with_trivial_rig(camera)
    keypoints = np.array([[0.0, 0.0], [500.0, 400.0], [600.0, 400.0]])
    for number in (1, 2):
        image = pycolmap.Image(name=str(number), keypoints=keypoints, camera_id=1, image_id=number)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(orbit(2)[number - 1]))
    for index in range(3):
        track = pycolmap.Track()
        for number in (1, 2):
            track.add_element(number, index)
        model.add_point3D(np.zeros(3), track)
    straight = undistort_model(model)
    pixels = np.stack([point.xy for point in straight.images[1].points2D])
    assert pixels[0].tolist() == [-1, -1] and np.isfinite(pixels).all()
    assert [point.has_point3D() for point in straight.images[1].points2D] == [False, True, True]
    assert model.num_points3D() == 3 and straight.num_points3D() == 2


# ----------------------------------------------------------------------------------------------------------------
# Numbers in images


def test_names_lose_their_ending_unless_two_would_become_one():
    names = ["a/1.jpg", "a/1.png", "a/2.b.jpg", "1.png"]
    assert stems_of(names) == {"a/1.jpg": "a/1.jpg", "a/1.png": "a/1.png", "a/2.b.jpg": "a/2.b", "1.png": "1"}


@pytest.mark.parametrize("factor, unit", [(1.0, 1e-3), (0.1, 1e-3), (10.0, 1e-2), (1000.0, 1.0), (1e-3, 1e-6)])
def test_the_unit_of_depth_images_suits_the_world(factor, unit):
    depth = (factor * np.linspace(1.0, 4.0, 600)).reshape(20, 30).astype(np.float32)
    assert depth_unit([depth]) == unit
    assert depth_image(depth, unit) * unit == pytest.approx(depth, rel=5e-3)


def test_unknown_and_endless_depth_is_zero_in_images():
    depth = np.array([[np.nan, np.inf, 2.0, 1e9]], np.float32)
    assert depth_image(depth, 1e-3).tolist() == [[0, 0, 2000, 0]]
    assert inverse_image(depth, 1.0).tolist() == [[0, 0, 32768, 0]]
    assert inverse_image(np.array([[0.5]], np.float32), 1.0).tolist() == [[65535]]
