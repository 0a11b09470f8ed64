"""From photographs of a made-up corner to poses in its map: files in, files out."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest
from corner import FOCAL, MAP, QUERIES, SIZE, see
from made_up import angle_deg
from PIL import Image

from mbasfm import Config, InputError, LocalizeConfig, Map, relocalize
from mbasfm.cli import main
from mbasfm.extend import extend
from mbasfm.localization.prepared_map import MANY_POINTS, aligned
from mbasfm.localize import Names
from mbasfm.matching.inference import turned_back
from mbasfm.models.depth.flat import FlatDepth
from mbasfm.models.matchers.sift import SiftMatcher

SHARED = Path(__file__).parents[2] / "shared" / "data"
STRANGER = "stranger.png"
CONFIG = LocalizeConfig(matcher="sift", focal=FOCAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A map with gt.json and depth, and photographs to localize."""
    root = tmp_path_factory.mktemp("corner")
    for sub in ("map/images", "map/depth", "queries"):
        (root / sub).mkdir(parents=True)
    truth = {}
    for name, pose in MAP.items():
        image, depth = see(pose, 0)
        Image.fromarray(image).save(root / "map/images" / name)
        np.save(root / "map/depth" / name.replace("png", "npy"), depth.astype(np.float32))
        intrinsics = {"K": [FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2], "width": SIZE[0], "height": SIZE[1]}
        truth[name] = {**intrinsics, "R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
    (root / "map/gt.json").write_text(json.dumps({"images": truth}))
    for name, pose in QUERIES.items():
        Image.fromarray(see(pose, 0)[0]).save(root / "queries" / name)
    Image.fromarray(see(QUERIES["a.png"], 1)[0]).save(root / "queries" / STRANGER)
    return root


@pytest.fixture(scope="module")
def result(folder):
    return relocalize(folder / "map", folder / "queries", folder / "out", CONFIG)


def error_of(located, pose):
    """Distance of centres, and angle in degrees."""
    found = located.cam_from_world
    distance = np.linalg.norm(found[:, :3].T @ found[:, 3] - pose[:, :3].T @ pose[:, 3])
    return distance, angle_deg(found[:, :3], pose[:, :3])


def test_queries_are_where_they_were_taken_and_a_stranger_is_nowhere(result):
    by_name = {query.name: query for query in result.queries}
    for name, pose in QUERIES.items():
        distance, angle = error_of(by_name[name], pose)
        assert distance < 0.02 and angle < 0.2
    assert not by_name[STRANGER].localized and by_name[STRANGER].reason
    assert result.num_localized == len(QUERIES)


def test_files_say_the_same(folder, result):
    rows = {row["name"]: row for row in json.loads((folder / "out/localization.json").read_text())["queries"]}
    model = pycolmap.Reconstruction(folder / "out/sparse/0")
    assert {image.name for image in model.images.values()} == set(QUERIES)
    for image in model.images.values():
        pose = np.column_stack([rows[image.name]["R"], rows[image.name]["t"]])
        np.testing.assert_allclose(image.cam_from_world().matrix(), pose, atol=1e-9)
        assert np.shape(rows[image.name]["covariance"]) == (6, 6) and rows[image.name]["inlier_share"] > 0.3
    assert rows[STRANGER]["status"] == "not localized" and "R" not in rows[STRANGER]
    lines = (folder / "out/trajectory.tum").read_text().splitlines()
    centre = np.array(lines[1].split()[1:4], float)
    np.testing.assert_allclose(centre, rows["a.png"]["center"], atol=1e-8)


def test_a_prepared_map_is_not_described_again(folder, result, monkeypatch):
    seen, describe = [], SiftMatcher.describe

    def watched(self, photo, image):
        seen.append(photo)
        return describe(self, photo, image)

    def never(*_):
        raise AssertionError("map work was done again")

    monkeypatch.setattr(SiftMatcher, "describe", watched)
    monkeypatch.setattr("mbasfm.models.depth.files.FilesDepth.estimate", never)
    monkeypatch.setattr("mbasfm.localization.prepared_map.learn_words", never)
    chart = Map.load(folder / "map", CONFIG)
    assert not seen
    chart.localize(folder / "queries/a.png")
    assert {photo.name for photo in seen} == {"a.png"}


def test_a_resident_map_says_the_same_as_a_batch(folder, result):
    chart = Map.load(folder / "map", CONFIG)
    pixels = np.asarray(Image.open(folder / "queries/b.png"))
    for image in (folder / "queries/b.png", pixels):
        located = chart.localize(image)
        batch = next(query for query in result.queries if query.name == "b.png")
        assert np.abs(located.cam_from_world - batch.cam_from_world).max() < 0.01
    alone = relocalize(folder / "map", folder / "queries", None, replace(CONFIG, independent=True))
    same = next(query for query in alone.queries if query.name == "b.png")
    np.testing.assert_array_equal(located.cam_from_world, same.cam_from_world)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_pixels_of_a_turned_picture_find_back(turns):
    image = np.zeros((30, 40), np.uint8)
    image[7, 33] = 1
    row, column = np.argwhere(np.rot90(image, turns))[0]
    found = turned_back(np.array([[column + 0.5, row + 0.5]], np.float32), (40, 30), turns)
    np.testing.assert_array_equal(found, [[33.5, 7.5]])


class UprightSift(SiftMatcher):
    """SIFT that does not turn with the picture, as most networks do not."""

    key = "upright-sift"

    def describe(self, photo, image):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        detector = cv2.SIFT.create()
        keypoints = [cv2.KeyPoint(*point.pt, point.size, 0.0) for point in detector.detect(grey, None)]
        keypoints, descriptors = detector.compute(grey, keypoints)
        pixels = np.array([point.pt for point in keypoints], np.float32) + 0.5
        length = np.linalg.norm(descriptors, axis=1, keepdims=True)
        return replace(super().describe(photo, image), pixels=pixels, descriptors=descriptors / length)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_phone_held_sideways_or_upside_down_is_found(folder, tmp_path, monkeypatch, turns):
    monkeypatch.setattr("mbasfm.matching.observe.load_model", lambda kind, spec: UprightSift())
    image, _ = see(QUERIES["a.png"], 0)
    Image.fromarray(np.rot90(image, turns)).save(tmp_path / "turned.png")
    located = Map.load(folder / "map", CONFIG, tmp_path / "cache").localize(tmp_path / "turned.png")
    assert located.quarter_turns == 4 - turns
    turn = np.linalg.matrix_power(np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1]]), turns)
    distance, angle = error_of(located, turn @ QUERIES["a.png"])
    assert distance < 0.03 and angle < 0.3


def test_a_colmap_model_without_depth_is_a_map_too(folder, tmp_path):
    """Points are triangulated from its poses."""
    (tmp_path / "sparse/0").mkdir(parents=True)
    (tmp_path / "images").symlink_to(folder / "map/images")
    model = pycolmap.Reconstruction()
    params = [FOCAL, SIZE[0] / 2, SIZE[1] / 2]
    model.add_camera_with_trivial_rig(
        pycolmap.Camera(model="SIMPLE_PINHOLE", width=SIZE[0], height=SIZE[1], params=params, camera_id=1)
    )
    for number, (name, pose) in enumerate(MAP.items(), 1):
        image = pycolmap.Image(name=name, keypoints=np.zeros((0, 2)), camera_id=1, image_id=number)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pose))
    model.write_binary(tmp_path / "sparse/0")
    chart = Map.load(tmp_path, CONFIG)
    np.testing.assert_allclose(chart.prepared.cameras.cam_from_world.numpy(), np.stack([*MAP.values()]), atol=1e-14)
    for name, pose in QUERIES.items():
        distance, angle = error_of(chart.localize(folder / "queries" / name), pose)
        assert distance < 0.05 and angle < 0.5


def test_points_fill_the_holes_of_a_sensor(folder, tmp_path):
    """Where the sensor says something it is taken as it is, elsewhere what the poses triangulate."""
    for sub in ("images", "gt.json"):
        (tmp_path / sub).symlink_to(folder / "map" / sub)
    (tmp_path / "depth").mkdir()
    half = SIZE[0] // 2
    for path in (folder / "map/depth").iterdir():
        depth = np.load(path)
        depth[:, :half] = 0
        np.save(tmp_path / "depth" / path.name, depth)
    whole, holed = (Map.load(place, CONFIG, tmp_path / "cache").prepared for place in (folder / "map", tmp_path))
    for true, found in zip(whole.keypoints, holed.keypoints, strict=True):
        is_hole = true.pixels[:, 0] < half
        np.testing.assert_array_equal(found.raw_depth[~is_hole], true.raw_depth[~is_hole])
        filled = found.raw_depth[is_hole] / true.raw_depth[is_hole]
        assert np.isfinite(filled).mean() > 0.2 and abs(np.nanmedian(filled) - 1) < 0.01


@pytest.mark.parametrize("count", [MANY_POINTS - 1, MANY_POINTS])
def test_a_network_fills_in_only_where_points_are_few(count):
    depth = np.linspace(1.0, 5.0, 200)
    known = np.where(np.arange(200) % 3 == 0, depth, np.nan)
    known[np.flatnonzero(np.isfinite(known))[count:]] = np.nan
    found = aligned(False, (0.5 * depth).astype(np.float32), known)
    has_point = np.isfinite(known)
    np.testing.assert_allclose(found[has_point], depth[has_point], rtol=1e-6)
    if count < MANY_POINTS:
        np.testing.assert_allclose(found, depth, rtol=1e-4)
    else:
        assert np.isnan(found[~has_point]).all()


class WatchedDepth(FlatDepth):
    """Remembers what it was asked for."""

    key = "watched"

    def __init__(self):
        self.asked = []

    def estimate(self, photo, image):
        self.asked.append(photo.name)
        return super().estimate(photo, image)


@pytest.mark.parametrize("many", ["none has", "some have", "all have"])
def test_a_network_is_asked_only_for_photographs_with_few_points(folder, tmp_path, monkeypatch, many):
    for sub in ("images", "gt.json"):
        (tmp_path / sub).symlink_to(folder / "map" / sub)
    points = {}

    def counted(is_disparity, raw, known):
        points[len(points)] = int(np.isfinite(known).sum())
        return aligned(is_disparity, raw, known)

    network = WatchedDepth()
    monkeypatch.setattr(
        "mbasfm.matching.observe.load_model", lambda kind, _: network if kind == "depth" else SiftMatcher()
    )
    monkeypatch.setattr("mbasfm.localization.prepared_map.aligned", counted)
    Map.load(tmp_path, CONFIG)
    assert min(points.values()) >= MANY_POINTS and network.asked == []
    numbers = sorted(points.values())
    limit = {"none has": numbers[-1] + 1, "some have": numbers[2], "all have": numbers[0]}[many]
    expected = [name for name, number in zip(MAP, points.values(), strict=True) if number < limit]
    monkeypatch.setattr("mbasfm.localization.prepared_map.MANY_POINTS", limit)
    for _ in range(2):  # the second time it is in the cache
        Map.load(tmp_path, CONFIG)
        assert network.asked == expected


def test_an_unknown_focal_length_is_found(folder, result):
    chart = Map.load(folder / "map", replace(CONFIG, focal=None))
    located = chart.localize(folder / "queries/a.png")
    assert abs(located.lens.focal[0] / FOCAL - 1) < 0.03
    assert error_of(located, QUERIES["a.png"])[0] < 0.1


def test_the_command_localizes_what_lists_name(folder, tmp_path, capsys):
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps({"map": [*MAP][1:], "query": ["a.png"]}))
    arguments = ["localize", folder / "map", folder / "queries", "--output", tmp_path / "out", "--json", "--quiet"]
    arguments += ["--map-list", lists, "--query-list", lists, "--matcher", "sift", "--focal", FOCAL, "--independent"]
    assert main([str(argument) for argument in arguments]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["queries"] == summary["localized"] == 1


def test_nothing_localized_is_exit_code_3(folder, tmp_path):
    (tmp_path / "one.txt").write_text(STRANGER)
    arguments = ["localize", folder / "map", folder / "queries", "--output", tmp_path / "out", "--quiet"]
    arguments += ["--query-list", tmp_path / "one.txt", "--matcher", "sift", "--focal", FOCAL]
    assert main([str(argument) for argument in arguments]) == 3


def test_bad_input_is_explained(folder, tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        relocalize(tmp_path / "nowhere", folder / "queries")
    with pytest.raises(InputError, match=r"no usable photograph missing\.png"):
        relocalize(folder / "map", folder / "queries", None, CONFIG, None, Names(["missing.png"], None))
    with pytest.raises(InputError, match="no usable photograph"):
        relocalize(folder / "map", tmp_path)
    (tmp_path / "torn.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"torn\.png: cannot be decoded"):
        Map.load(folder / "map", CONFIG).localize(tmp_path / "torn.png")


def test_a_scene_grows_by_photographs_and_keeps_its_poses(folder, tmp_path):
    scene, grown = tmp_path / "scene", tmp_path / "grown"
    common = ["--matcher", "sift", "--focal", FOCAL, "--quiet"]
    depth = ["--depth", f"files:{folder / 'map/depth'}"]
    assert main([str(word) for word in ["sfm", folder / "map/images", "--output", scene, *common, *depth]]) == 0
    assert main([str(word) for word in ["sfm", folder / "queries", "--add", scene, "--output", grown, *common]]) == 0
    old, new = (pycolmap.Reconstruction(path / "sparse/0") for path in (scene, grown))
    poses = {image.name: image.cam_from_world().matrix() for image in new.images.values()}
    assert set(poses) == {*MAP, *QUERIES}
    for image in old.images.values():
        np.testing.assert_allclose(poses[image.name], image.cam_from_world().matrix(), atol=1e-14)
    seen = {image.name: image.num_points3D for image in new.images.values()}
    assert min(seen.values()) > 20
    rows = {row["name"]: row for row in json.loads((grown / "report.json").read_text())["images"]}
    assert rows[STRANGER]["status"] == "not registered" and rows[STRANGER]["reason"]
    assert (grown / "images/a.png").is_file() and (grown / "report.html").is_file()
    with pytest.raises(InputError, match="already"):
        extend(grown, folder / "queries", tmp_path / "third", Config())
    with pytest.raises(InputError, match="stays as it is"):
        extend(scene, folder / "queries", scene, Config())


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "tum_fr1_rpy").is_dir(), reason="no photographs in ../shared/data")
def test_real_queries_are_localized_in_a_map_of_another_day(tmp_path):
    """Twelve map photographs with Kinect depth, three queries of another sequence, and one of another room."""
    chosen, queries = SHARED / "tum_fr1_xyz", SHARED / "tum_fr1_rpy"
    lists = json.loads((queries / "reloc.json").read_text())
    truth = json.loads((queries / "gt.json").read_text())["images"]
    config = LocalizeConfig(matcher="sift", cameras=str(queries / "gt.json"))
    chart = Map.load(chosen, config, tmp_path, lists["map"][::6])
    for name in lists["query"][5:35:10]:
        pose = np.column_stack([truth[name]["R"], truth[name]["t"]])
        distance, angle = error_of(chart.localize(queries / "images" / name), pose)
        assert distance < 0.1 and angle < 5
    elsewhere = replace(chart, config=replace(config, cameras=None, focal=525.0))
    assert not elsewhere.localize(SHARED / "sevenscenes_redkitchen/images/frame-000300.jpg").localized
