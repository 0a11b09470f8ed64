"""From photographs to a COLMAP model: made-up features first, then real photographs."""

import json
import shutil
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pycolmap
import pytest
import torch
from made_up import make_lens, orbit, photograph, relief, true_matches
from PIL import Image

from mbasfm import Config, pose_auc, reconstruct
from mbasfm.cli import main
from mbasfm.errors import ConfigError, InputError
from mbasfm.io.files import read_config, write_config
from mbasfm.io.images import find_photos
from mbasfm.matching.observe import WantedPairs, load_depth, load_matchers, merge, observe, weak_frames
from mbasfm.models.base import JOINT
from mbasfm.reconstruct import place
from mbasfm.sfm.inputs import UserFiles, read_given
from mbasfm.types.observations import Keypoints, Observations, Photo
from mbasfm.types.outcome import NoPose, NotPolished, Reason

SHARED = Path(__file__).parents[2] / "shared" / "data"
FOCAL = 900.0
COLOURS = [(200, 40 + 10 * number, 90) for number in range(20)]


def write_scene(folder, parts=1, num_frames=6, alone=0, noise_px=0.2, lens=None, distance=4.0):
    """Photographs of one colour each, with features, matches and depth of made-up points in files."""
    lens, poses = lens or make_lens(FOCAL), orbit(num_frames, distance=distance)
    scenes = [photograph(relief(400, part), poses, lens, part, noise_px) for part in range(parts)]
    names = [f"{part}_{frame}.png" for part in range(parts) for frame in range(num_frames)]
    names += [f"alone_{number}.png" for number in range(alone)]
    for sub in ("images", "files/features", "files/matches", "depth"):
        (folder / sub).mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (1024, 768), COLOURS[number]).save(folder / "images" / name)
        if name.startswith("alone"):
            np.savez(folder / "files/features" / f"{name}.npz", pixels=np.full((5, 2), 100.0))
            np.save(folder / "depth" / name.replace("png", "npy"), np.ones((24, 32)))
            continue
        scene, frame = scenes[number // num_frames], number % num_frames
        np.savez(folder / "files/features" / f"{name}.npz", pixels=scene.pixels[frame])
        np.save(folder / "depth" / name.replace("png", "npy"), np.full((24, 32), np.median(scene.depth[frame])))
        for other in range(frame + 1, num_frames):
            target = folder / "files/matches" / name
            target.mkdir(exist_ok=True)
            np.savez(target / f"{number // num_frames}_{other}.png.npz", indices=true_matches(scene, frame, other))
    return scenes


def settings(folder, **changes):
    return Config(**({"matcher": f"files:{folder / 'files'}", "depth": f"files:{folder / 'depth'}"} | changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    scene = write_scene(folder)[0]
    result = reconstruct(folder / "images", folder / "scene", settings(folder, focal=FOCAL))
    return folder, scene, result


def auc_of(result, scene, threshold=1.0):
    truth = torch.from_numpy(scene.cam_from_world)
    return pose_auc(result.cameras.cam_from_world, truth, result.registered, (threshold,))[0]


def test_poses_equal_the_truth_and_all_are_registered(made):
    _, scene, result = made
    assert result.registered.all() and (result.component == 0).all()
    assert auc_of(result, scene) > 0.9


def test_the_model_opens_in_colmap_with_real_tracks_and_colours(made):
    folder, scene, result = made
    model = pycolmap.Reconstruction(folder / "scene" / "sparse" / "0")
    assert model.num_images() == scene.num_frames and model.num_points3D() > 300
    assert model.compute_mean_track_length() > 4
    image = model.find_image_with_name("0_2.png")
    assert image.cam_from_world().matrix() == pytest.approx(result.cameras.cam_from_world[2].numpy(), abs=1e-9)
    observations = [point for point in image.points2D if point.has_point3D()]
    projected = image.project_point(model.points3D[observations[0].point3D_id].xyz)
    assert projected == pytest.approx(observations[0].xy, abs=1.5)
    for point in list(model.points3D.values())[:50]:
        seen = np.mean([COLOURS[element.image_id - 1] for element in point.track.elements], axis=0)
        assert point.color == pytest.approx(seen, abs=1)


def test_the_report_says_what_became_of_every_photograph(made):
    folder, scene, _ = made
    report = json.loads((folder / "scene" / "report.json").read_text())
    assert [row["status"] for row in report["images"]] == ["registered"] * scene.num_frames
    assert all(row["inlier_share"] > 0.9 and len(row["sigma"]["rotation_deg"]) == 3 for row in report["images"])
    stages = {stage["name"]: stage for stage in report["stages"]}
    assert {"photos", "features", "depth", "matching", "verify", "graph", "adjust", "settle", "polish"} <= set(stages)
    assert all(stage["seconds"] >= 0 and stage["peak_memory_mb"] > 0 for stage in report["stages"])
    (row,) = stages["polish"]["components"]
    assert not row["polished"] and row["reason"] == str(Reason(NotPolished.NOTHING_TO_ADD))


@pytest.mark.parametrize("changes", [{}, {"focal": FOCAL, "objective": "paper"}])
def test_points_polish_where_intrinsics_are_open_or_nothing_has_settled(made, changes):
    folder, _, _ = made
    report = reconstruct(folder / "images", None, settings(folder, **changes)).report
    (row,) = report.components
    assert row.polished and row.held_out_px[1] < row.held_out_px[0]
    assert ("settle" in {stage.name for stage in report.stages}) == (changes == {})


def test_an_unknown_focal_length_is_found(made):
    folder, scene, _ = made
    result = reconstruct(folder / "images", None, settings(folder))
    assert float(result.cameras.intrinsics.focal[0, 0]) == pytest.approx(FOCAL, rel=0.02)
    assert auc_of(result, scene, 3.0) > 0.9


def test_a_focal_length_that_point_maps_know_is_where_the_search_begins(made, tmp_path):
    folder, scene, _ = made
    u, v = ((np.arange(size) + 0.5) / size - 0.5 for size in (32, 24))
    x, y = np.meshgrid(u * 1024 / (0.95 * FOCAL), v * 768 / (0.95 * FOCAL))
    for frame in range(scene.num_frames):
        rays = np.stack([x, y, np.ones_like(x)], -1) * np.median(scene.depth[frame])
        np.savez(tmp_path / f"0_{frame}.npz", points=rays)
    config = settings(folder, depth=f"files:{tmp_path}")
    photos, _ = find_photos(folder / "images")
    observations = observe(photos, load_depth(config.depth), load_matchers(config.matcher), WantedPairs())
    start = place(observations, read_given(photos, config.part(UserFiles)), config).start
    assert start.intrinsics.focal.numpy() == pytest.approx(0.95 * FOCAL, rel=1e-3) and not start.is_exif.any()
    result = reconstruct(folder / "images", None, config)
    assert float(result.cameras.intrinsics.focal[0, 0]) == pytest.approx(FOCAL, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "paper"},
        {"tree": "paper"},
        {"polish": False},
        {"objective": "paper", "solver": "adam", "adam_steps": 30},
    ],
)
def test_variants_register_everything(made, changes):
    folder, scene, _ = made
    result = reconstruct(folder / "images", None, settings(folder, focal=FOCAL, **changes))
    assert result.registered.all()
    assert auc_of(result, scene, 5.0) > 0.8


def test_disjoint_sets_become_components_and_a_lonely_photograph_gets_a_reason(tmp_path):
    write_scene(tmp_path, parts=2, alone=1)
    result = reconstruct(tmp_path / "images", tmp_path / "scene", settings(tmp_path, focal=FOCAL))
    assert len(result.models) == 2
    by_name = dict(zip(result.names, result.component.tolist(), strict=True))
    assert len({by_name[f"0_{k}.png"] for k in range(6)}) == len({by_name[f"1_{k}.png"] for k in range(6)}) == 1
    assert by_name["alone_0.png"] == -1
    rows = {row.name: row for row in result.report.images}
    assert rows["alone_0.png"].reason == Reason(NoPose.NO_PAIR)
    assert sorted(path.name for path in (tmp_path / "scene" / "sparse").iterdir()) == ["0", "1"]
    for number, name in enumerate(("transforms.json", "transforms_1.json")):
        frames = json.loads((tmp_path / "scene" / name).read_text())["frames"]
        part = [f"images/{name}" for name, component in by_name.items() if component == number]
        assert [frame["file_path"] for frame in frames] == part
        assert all((tmp_path / "scene" / path).is_file() for path in part)
    assert not (tmp_path / "scene" / "images" / "alone_0.png").exists()


def test_the_same_input_gives_the_same_bytes(made, tmp_path):
    folder, _, _ = made
    reconstruct(folder / "images", tmp_path, settings(folder, focal=FOCAL))
    assert files_of(tmp_path) == files_of(folder / "scene")


def test_a_second_run_does_no_work_per_photograph_or_pair_again(made, monkeypatch):
    folder, _, first = made

    def never(*_):
        raise AssertionError("computed again")

    for name in (
        "mbasfm.sfm.pairs.edges.propose",
        "mbasfm.matching.inference._describe",
        "mbasfm.matching.inference._estimate",
    ):
        monkeypatch.setattr(name, never)
    again = reconstruct(folder / "images", None, settings(folder, focal=FOCAL), cache=folder / "scene" / "cache")
    assert torch.equal(again.cameras.cam_from_world, first.cameras.cam_from_world)


def files_of(scene):
    return {path.name: path.read_bytes() for path in sorted((scene / "sparse" / "0").iterdir())}


def test_known_intrinsics_are_held(made):
    _, _, result = made
    assert (result.cameras.intrinsics.focal == FOCAL).all()
    assert list(result.models[0].cameras.values())[0].params == pytest.approx([FOCAL, 512.0, 384.0])


def test_nothing_to_match_gives_an_empty_result_with_reasons(tmp_path):
    write_scene(tmp_path, parts=0, alone=3)
    result = reconstruct(tmp_path / "images", tmp_path / "scene", settings(tmp_path))
    assert not result.registered.any() and result.models == ()
    assert all(row.reason == Reason(NoPose.NO_PAIR) for row in result.report.images)


def test_one_photograph_is_not_enough(tmp_path):
    write_scene(tmp_path, parts=0, alone=1)
    with pytest.raises(InputError, match="at least 2"):
        reconstruct(tmp_path / "images", None, settings(tmp_path))


def photos(count):
    return tuple(Photo(str(number), Path(), 100, 100, None, "", "") for number in range(count))


def content_with(counts, num_frames):
    """Photographs whose pairs have so many matches."""
    matches = [np.zeros((count, 2), dtype=np.int64) for count in counts.values()]
    return Observations(photos(num_frames), [], [], [], np.array(list(counts)), matches)


def test_frames_without_two_good_pairs_are_weak():
    counts = {(0, 1): 500, (0, 2): 300, (1, 2): 40, (2, 3): 120}
    assert weak_frames(content_with(counts, 4)).tolist() == [False, True, False, True]
    assert weak_frames(content_with({(0, 1): 150}, 2)).tolist() == [False, False]
    assert weak_frames(content_with({(0, 1): 50}, 2)).tolist() == [True, True]


@pytest.mark.parametrize(
    "spec, parts",
    [
        ("sift+xfeat", ["sift", "xfeat"]),
        ("sift+xfeat:lighterglue", ["sift", "xfeat:lighterglue"]),
        ("files:/a+b/c d", ["files:/a+b/c d"]),
        ("files:a/b+sift", ["files:a/b", "sift"]),
    ],
)
def test_matchers_are_joined_by_a_plus_that_paths_may_contain(spec, parts):
    assert JOINT.split(spec) == parts


def test_merged_content_points_at_the_same_pixels():
    def part(offset, pairs):
        points = [Keypoints(np.full((n, 2), offset + n, np.float32), np.ones(n, np.float32)) for n in (2, 3, 4)]
        colours = [np.zeros((n, 3), np.uint8) for n in (2, 3, 4)]
        matches = [np.array([[0, 1], [1, 2]]) for _ in pairs]
        return Observations(photos(3), [], points, colours, np.array(pairs), matches)

    merged = merge(part(0, [(0, 1), (1, 2)]), part(100, [(0, 2), (1, 2)]))
    assert merged.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert [len(found) for found in merged.matches] == [2, 2, 4]
    for (i, j), found in zip(merged.pairs.tolist(), merged.matches, strict=True):
        ends = [merged.keypoints[frame].pixels[index, 0] for frame, index in zip((i, j), found.T, strict=True)]
        assert np.array_equal(ends[0] > 50, ends[1] > 50)  # matches never mix features of two matchers


# ----------------------------------------------------------------------------------------------------------------
# Command line and settings


def test_the_command_writes_a_scene_and_its_settings_and_resumes(made, tmp_path, capsys):
    folder, _, _ = made
    arguments = ["sfm", str(folder / "images"), "--output", str(tmp_path)]
    models = ["--matcher", f"files:{folder / 'files'}", "--depth", f"files:{folder / 'depth'}"]
    assert main([*arguments, *models, "--focal", str(FOCAL), "--preset", "fast"]) == 0
    saved = read_config(tmp_path / "config.toml", Config())
    assert (saved.focal, saved.samples_per_edge) == (FOCAL, 100)
    before = files_of(tmp_path)
    assert main([*arguments, "--resume"]) == 0
    assert files_of(tmp_path) == before
    assert read_config(tmp_path / "config.toml", Config()) == saved
    assert "6 of 6 photographs registered" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["/no/such/folder"], "does not exist"),
        (["{}", "--matcher", "sfit"], "did you mean 'sift'"),
        (["{}", "--focal", "-3"], "focal must be positive"),
        (["{}", "--pairs", "/no/pairs.txt"], "pairs.txt"),
        (["{}", "--config", "/no/such.toml"], "no such file"),
        (["{}", "--resume"], "no run to resume"),
        (["{}", "--cameras", "/no/cameras.txt"], "cameras.txt"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(made, tmp_path, capsys, arguments, words):
    images = str(made[0] / "images")
    models = ["--matcher", f"files:{made[0] / 'files'}", "--depth", "flat"]
    given = [argument.format(images) for argument in arguments]
    assert main(["sfm", *models, *given, "--output", str(tmp_path / "scene")]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


def test_nothing_registered_is_exit_code_3_and_json_says_why(tmp_path, capsys):
    write_scene(tmp_path, parts=0, alone=3)
    arguments = ["sfm", str(tmp_path / "images"), "--output", str(tmp_path / "scene"), "--quiet", "--json"]
    config = settings(tmp_path)
    assert main([*arguments, "--matcher", config.matcher, "--depth", config.depth]) == 3
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary["registered"] == 0 and summary["components"] == [] and captured.err == ""
    assert set(summary["missing"]) == {f"alone_{number}.png" for number in range(3)} and all(
        summary["missing"].values()
    )
    assert (tmp_path / "scene" / "report.html").is_file()


def test_a_full_disk_and_a_file_in_the_way_are_found_before_any_work(made, tmp_path, capsys, monkeypatch):
    folder, _, _ = made
    config = settings(folder)
    arguments = ["--matcher", config.matcher, "--depth", config.depth]
    (tmp_path / "file").write_text("in the way")
    assert main(["sfm", str(folder / "images"), "--output", str(tmp_path / "file"), *arguments]) == 2
    assert "cannot be written" in capsys.readouterr().err
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert main(["sfm", str(folder / "images"), "--output", str(tmp_path / "scene"), *arguments]) == 2
    assert "the disk has 0.0 GB free" in capsys.readouterr().err
    assert not (tmp_path / "scene" / "cache").exists()


def test_settings_survive_the_file_and_typos_get_a_suggestion(tmp_path):
    path = tmp_path / "a.toml"
    config = Config(depth='a "b" \\c', focal=812.5, polish=False, objective="paper")
    write_config(path, config)
    assert read_config(path, Config()) == config
    path.write_text("samples_per_egde = 3\n")
    with pytest.raises(ConfigError, match="did you mean 'samples_per_edge'"):
        read_config(path, Config())
    path.write_text('objective = "papre"\n')
    with pytest.raises(ConfigError, match="'anchored' or 'paper'"):
        read_config(path, Config())
    path.write_text("seed = 1.5\n")
    with pytest.raises(ConfigError, match="a whole number"):
        read_config(path, Config())


# ----------------------------------------------------------------------------------------------------------------
# Real photographs


@pytest.fixture(scope="module")
def fountain(tmp_path_factory):
    source = SHARED / "strecha_fountain11"
    if not source.is_dir():
        pytest.skip(f"no photographs at {source}")
    folder = tmp_path_factory.mktemp("fountain")
    names = sorted(path.name for path in (source / "images").iterdir())[2:7]
    listing = folder / "list.txt"
    listing.write_text("".join(f"{(source / 'images' / name).resolve()}\n" for name in names))
    rows = json.loads((source / "gt.json").read_text())["images"]
    truth = torch.from_numpy(np.stack([np.column_stack([rows[name]["R"], rows[name]["t"]]) for name in names]))
    return folder, listing, truth


@pytest.mark.slow
def test_real_photographs_without_calibration_and_depth(fountain):
    folder, listing, truth = fountain
    result = reconstruct(listing, folder / "scene", Config(depth="flat", matcher="sift"))
    assert result.registered.all()
    assert pose_auc(result.cameras.cam_from_world, truth, result.registered, (5.0,))[0] > 0.9


@pytest.mark.slow
def test_a_scene_of_real_photographs_is_undistorted_and_complete(fountain):
    folder, listing, _ = fountain
    scene = folder / "scene"
    if not (scene / "report.json").is_file():
        reconstruct(listing, scene, Config(depth="flat", matcher="sift"))
    model = pycolmap.Reconstruction(scene / "sparse" / "0")
    assert sorted(image.name for image in model.images.values()) == [Path(p).name for p in listing.read_text().split()]
    assert {camera.model.name for camera in model.cameras.values()} == {"PINHOLE"}
    assert model.compute_mean_reprojection_error() < 0.5
    for image in model.images.values():
        with Image.open(scene / "images" / image.name) as picture:
            assert picture.size == (image.camera.width, image.camera.height)
    distorted = pycolmap.Reconstruction(scene / "distorted" / "sparse" / "0")
    assert distorted.num_points3D() == model.num_points3D()


def test_pairs_of_made_up_photographs_are_all_matched(made):
    _, scene, result = made
    found = {tuple(sorted(edge)) for edge in result.graph.edges.tolist()}
    assert found == set(combinations(range(scene.num_frames), 2))
