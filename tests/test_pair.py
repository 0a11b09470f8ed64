"""Two photographs: pose with and without depth, unknown focal length, no parallax, and what the command says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_close
from made_up import angle_deg, direction_deg, look, make_lens, make_pose, relief
from margins import assert_below
from PIL import Image

from mbasfm import Config, InputError, two_view
from mbasfm.cli import main
from mbasfm.estimators.depth_pose import estimate_metric_poses, rotation_alone
from mbasfm.estimators.focal_ransac import estimate_with_focal
from mbasfm.estimators.ransac import RansacSettings
from mbasfm.estimators.sampson import MatchBatch
from mbasfm.geometry.rigid import exp_so3, rotation_angle
from mbasfm.matching.observe import observe
from mbasfm.report.figures import match_picture
from mbasfm.types.observations import Keypoints

SHARED = Path(__file__).parents[2] / "shared" / "data"
FOCAL = 900.0
AWAY = np.array([0.0, 0.0, 4.0])
POSE = make_pose([2.0, -9.0, 4.0], [0.7, 0.1, 0.2])
TURN = make_pose([1.0, 8.0, -3.0], [0.0, 0.0, 0.0])
EXIF_FOCAL, EXIF_FILM = 0x920A, 0xA405


def write_pair(folder, j_from_i, *, mismatches=0.2, noise_px=0.3, count=200, ratio=1.0, exif_mm=None):
    """Two plain photographs with features, matches and depth of made-up points in files; which matches are right."""
    generator, lens = np.random.default_rng(0), make_lens(FOCAL)
    points = relief(count, 0) + AWAY
    is_right = generator.random(count) >= mismatches
    for sub in ("images", "files/features", "files/matches/a.jpg", "depth"):
        (folder / sub).mkdir(parents=True)
    for name, pose, color, factor in (("a", np.eye(4)[:3], 90, 1.0), ("b", j_from_i, 160, 1 / ratio)):
        image, exif = Image.new("RGB", (1024, 768), (color, 80, 40)), Image.Exif()
        if exif_mm is not None:
            exif.get_ifd(0x8769)[EXIF_FILM] = exif_mm
        image.save(folder / "images" / f"{name}.jpg", exif=exif)
        pixels, depth = look(points, pose, lens)
        pixels = pixels + noise_px * generator.standard_normal(pixels.shape)
        if name == "b":
            pixels[~is_right] = generator.uniform([0, 0], lens.size, (int((~is_right).sum()), 2))
        pixels = np.clip(pixels, 0.5, lens.size - 0.5)
        np.savez(folder / f"files/features/{name}.jpg.npz", pixels=pixels)
        values = np.full((768, 1024), np.nan, dtype=np.float32)
        column, row = pixels.astype(int).T
        values[row, column] = depth * factor
        np.save(folder / f"depth/{name}.npy", values)
    np.savez(folder / "files/matches/a.jpg/b.jpg.npz", indices=np.column_stack([np.arange(count)] * 2))
    return is_right


def run(folder, depth=False, **changes):
    settings = {"matcher": f"files:{folder / 'files'}", "depth": f"files:{folder / 'depth'}" if depth else "flat"}
    estimator = changes.pop("estimator", "adaptive")
    return two_view(folder / "images/a.jpg", folder / "images/b.jpg", Config(**(settings | changes)), estimator)


@pytest.mark.parametrize("estimator", ["adaptive", "paper", "magsac", "poselib"])
def test_pose_inliers_and_noise_of_a_pair(tmp_path, estimator):
    is_right = write_pair(tmp_path, POSE)
    result = run(tmp_path, focal=FOCAL, estimator=estimator)
    assert result.found and result.has_direction and not result.has_scale
    assert angle_deg(result.j_from_i[:, :3], POSE[:, :3]) < 0.5
    assert direction_deg(result.j_from_i[:, 3], POSE[:, 3]) < 2
    assert np.linalg.norm(result.j_from_i[:, 3]) == pytest.approx(1)
    assert result.inliers[is_right].mean() > 0.9 and result.inliers[~is_right].mean() < 0.15
    assert result.sigma_px == pytest.approx(0.3, abs=0.12) and 0.5 < result.score < 1
    assert result.focal_from == ("given", "given") and result.log10_false_alarms < -50


def test_depth_gives_the_length_of_the_translation_and_the_ratio_of_the_maps(tmp_path):
    write_pair(tmp_path, POSE)
    result = run(tmp_path, depth=True, focal=FOCAL)
    assert result.has_scale and result.depth_ratio == pytest.approx(1)  # metric maps that agree are not scaled
    assert np.linalg.norm(result.j_from_i[:, 3] - POSE[:, 3]) < 0.03
    assert angle_deg(result.j_from_i[:, :3], POSE[:, :3]) < 0.3


def test_maps_of_different_scale_are_brought_together(tmp_path):
    write_pair(tmp_path, POSE, ratio=2.0)
    result = run(tmp_path, depth=True, focal=FOCAL)
    assert result.has_scale and result.depth_ratio == pytest.approx(2.0, rel=0.02)
    assert direction_deg(result.j_from_i[:, 3], POSE[:, 3]) < 2
    assert np.linalg.norm(result.j_from_i[:, 3]) == pytest.approx(np.linalg.norm(POSE[:, 3]), rel=0.02)


@pytest.mark.parametrize(("error", "seed"), [(0.0, 0), (0.05, 1), (0.15, 0), (0.15, 1)])
def test_rough_relative_depth_gives_the_length_and_does_not_bend_the_pose(tmp_path, monkeypatch, error, seed):
    write_pair(tmp_path, POSE, ratio=2.0)

    def observe_roughly(*arguments):
        found, generator = observe(*arguments), np.random.default_rng(seed)
        factors = (np.exp(error * generator.standard_normal(len(item.raw_depth))) for item in found.keypoints)
        keypoints = [
            Keypoints(item.pixels, (item.raw_depth * factor).astype(np.float32))
            for item, factor in zip(found.keypoints, factors, strict=True)
        ]
        depths = [replace(depth, is_metric=False) for depth in found.depths]
        return replace(found, depths=depths, keypoints=keypoints)

    monkeypatch.setattr("mbasfm.pair.observe", observe_roughly)
    result = run(tmp_path, depth=True, focal=FOCAL)
    assert result.has_scale and result.depth_ratio == pytest.approx(2.0, rel=0.05)
    assert angle_deg(result.j_from_i[:, :3], POSE[:, :3]) < 0.6
    assert np.linalg.norm(result.j_from_i[:, 3] - POSE[:, 3]) < 0.1


def test_without_parallax_the_direction_is_disowned_and_depth_still_gives_the_pose(tmp_path):
    write_pair(tmp_path, TURN)
    without = run(tmp_path, focal=FOCAL)
    assert without.found and not without.has_direction and "no parallax" in without.notes[0]
    assert angle_deg(without.j_from_i[:, :3], TURN[:, :3]) < 0.1
    result = run(tmp_path, depth=True, focal=FOCAL)
    assert result.has_scale and np.linalg.norm(result.j_from_i[:, 3]) < 0.02
    assert angle_deg(result.j_from_i[:, :3], TURN[:, :3]) < 0.2


def test_an_unknown_focal_length_is_searched_and_the_metadata_spares_the_search(tmp_path):
    write_pair(tmp_path / "unknown", POSE, noise_px=0.1)
    searched = run(tmp_path / "unknown")
    assert searched.focal_from == ("search", "search")
    assert float(searched.intrinsics.focal[0, 0]) == pytest.approx(FOCAL, rel=0.05)
    assert angle_deg(searched.j_from_i[:, :3], POSE[:, :3]) < 1
    film_mm = round(FOCAL / np.hypot(1024, 768) * 43.267)
    write_pair(tmp_path / "exif", POSE, exif_mm=film_mm)
    tagged = run(tmp_path / "exif")
    assert tagged.focal_from == ("metadata", "metadata")
    assert float(tagged.intrinsics.focal[0, 0]) == pytest.approx(FOCAL, rel=0.03)


def test_matches_by_chance_are_no_pose(tmp_path):
    write_pair(tmp_path, POSE, mismatches=1.0, count=80)
    result = run(tmp_path, focal=FOCAL)
    assert not result.found and "may not overlap" in result.notes[0]


def test_the_same_photograph_twice_and_missing_files_are_refused(tmp_path):
    write_pair(tmp_path, POSE)
    image = tmp_path / "images/a.jpg"
    with pytest.raises(InputError, match="the same photograph"):
        two_view(image, image)
    with pytest.raises(InputError, match="does not exist"):
        two_view(image, tmp_path / "images/none.jpg")
    (tmp_path / "images/text.jpg").write_text("no picture")
    with pytest.raises(InputError, match="cannot be decoded"):
        two_view(image, tmp_path / "images/text.jpg")


# ----------------------------------------------------------------------------------------------------------------
# The command


def arguments(folder, *more):
    return [
        "pair",
        str(folder / "images/a.jpg"),
        str(folder / "images/b.jpg"),
        "--matcher",
        f"files:{folder / 'files'}",
        *more,
    ]


def test_the_command_prints_and_writes_what_it_found(tmp_path, capsys):
    write_pair(tmp_path, POSE)
    assert main(arguments(tmp_path, "--focal", str(FOCAL), "--output", str(tmp_path / "out"))) == 0
    printed = capsys.readouterr().out
    for word in ("rotation", "translation", "inliers", "score", "sigma", "900.0 px (given)", "length unknown"):
        assert word in printed
    stored = json.loads((tmp_path / "out/pair.json").read_text())
    assert stored["found"] and stored["matches"] == 200 and stored["cameras"][0]["fx"] == FOCAL
    assert angle_deg(np.array(stored["R"]), POSE[:, :3]) < 0.5
    with Image.open(tmp_path / "out/matches.jpg") as picture:
        assert picture.size == (2048, 768)


def test_the_command_speaks_json_and_says_by_exit_code_that_there_is_no_pose(tmp_path, capsys):
    write_pair(tmp_path, POSE, mismatches=1.0, count=60)
    assert main(arguments(tmp_path, "--focal", str(FOCAL), "--json", "--quiet")) == 3
    assert not json.loads(capsys.readouterr().out)["found"]


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys):
    write_pair(tmp_path, POSE)
    assert main(arguments(tmp_path, "--focal", "-3")) == 2
    assert main(["pair", str(tmp_path / "images/a.jpg"), str(tmp_path / "none.jpg")]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 2 and "none.jpg" in lines[1]


def test_inliers_are_lines_and_others_are_dots():
    images = [np.zeros((40, 60, 3), np.uint8), np.zeros((50, 60, 3), np.uint8)]
    pixels = np.array([[10.0, 20.0], [50.0, 30.0]]), np.array([[10.0, 20.0], [50.0, 30.0]])
    picture = match_picture(images, pixels, np.array([True, False])).astype(int)
    assert picture.shape == (50, 120, 3)
    assert np.ptp(picture[20, 40]) > 50  # on the line between (10, 20) and (70, 20)
    assert picture[30, 50, 0] > 200 and np.ptp(picture[30, 80]) == 0


# ----------------------------------------------------------------------------------------------------------------
# The estimators behind it


def make_depth_pairs(num_pairs, count, outliers, baseline, ratio, seed=0):
    g = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    rotation = exp_so3(0.2 * torch.randn(num_pairs, 3, **g))
    translation = baseline * torch.nn.functional.normalize(torch.randn(num_pairs, 3, **g), dim=-1)
    first = torch.rand(num_pairs, count, 3, **g) * 2 + torch.tensor([-1.0, -1.0, 3.0])
    second = first @ rotation.mT + translation[:, None]
    rays_i, rays_j = first[..., :2] / first[..., 2:], second[..., :2] / second[..., 2:]
    wrong = torch.rand(num_pairs, count, **g) < outliers
    rays_j = rays_j.where(~wrong[..., None], torch.rand(rays_j.shape, **g) - 0.5)
    matches = MatchBatch(rays_i, rays_j, torch.ones_like(wrong), torch.full((num_pairs, 2), 800.0).double())
    return matches, first[..., 2], second[..., 2] / ratio, torch.cat([rotation, translation[..., None]], -1)


@pytest.mark.parametrize("baseline", [0.5, 0.0])
def test_three_matches_with_exact_depth_give_the_exact_metric_pose(baseline):
    matches, depth_i, depth_j, truth = make_depth_pairs(5, 100, 0.4, baseline, ratio=1.7)
    found = estimate_metric_poses(matches, depth_i, depth_j, RansacSettings(rounds=2))
    assert found.found.all()
    assert_close(found.j_from_i, truth, atol=1e-8)
    assert_close(found.depth_ratio, torch.full((5,), 1.7, dtype=torch.float64), atol=1e-8)


def test_matches_without_depth_propose_nothing():
    matches, depth_i, depth_j, truth = make_depth_pairs(3, 60, 0.2, 0.5, ratio=1.0)
    depth_i[:, ::2] = torch.nan
    depth_j[2] = torch.nan
    found = estimate_metric_poses(matches, depth_i, depth_j, RansacSettings(rounds=2))
    assert found.found.tolist() == [True, True, False]
    assert_close(found.j_from_i[:2], truth[:2], atol=1e-8)
    assert_close(found.j_from_i[2], torch.eye(3, 4).double())


def test_the_rotation_of_a_camera_that_only_turned_is_exact():
    matches, _, _, truth = make_depth_pairs(4, 100, 0.0, 0.0, ratio=1.0)
    start = exp_so3(torch.tensor([[0.002, -0.003, 0.004]]).double()) @ truth[..., :3]
    rotation, residual = rotation_alone(matches, start, torch.ones(4, 100).double(), 2.0)
    assert_below(rotation_angle(rotation @ truth[..., :3].mT), 1e-7)
    assert residual.max() < 1e-3


@pytest.mark.parametrize("known", [[True, False], [False, True], [False, False]])
def test_unknown_focal_lengths_are_found_beside_known_ones(known):
    lens, other = make_lens(FOCAL), make_lens(FOCAL)
    points = relief(300, 5) + AWAY
    offsets = [torch.from_numpy(look(points, pose, lens)[0] - lens.center) for pose in (np.eye(4)[:3], POSE)]
    focal = torch.where(torch.tensor(known), FOCAL, torch.nan).double()
    side = torch.tensor([1024.0, float(other.size.max())]).double()
    found, poses = estimate_with_focal(offsets[0], offsets[1], focal, side, RansacSettings(rounds=1))
    assert (found / FOCAL - 1).abs().max() < 0.02
    assert angle_deg(poses.j_from_i[0, :, :3].numpy(), POSE[:, :3]) < 0.5


@pytest.mark.slow
def test_a_real_pair_with_sensor_depth():
    folder = SHARED / "sevenscenes_redkitchen"
    if not folder.is_dir():
        pytest.skip("the photographs of sevenscenes_redkitchen are not here")
    rows = json.loads((folder / "gt.json").read_text())["images"]
    names = "frame-000200.jpg", "frame-000240.jpg"
    poses = [np.vstack([np.column_stack([rows[n]["R"], rows[n]["t"]]), [0, 0, 0, 1]]) for n in names]
    truth = (poses[1] @ np.linalg.inv(poses[0]))[:3]
    config = Config(matcher="sift", depth=f"files:{folder / 'depth'}", cameras=str(folder / "gt.json"))
    result = two_view(folder / "images" / names[0], folder / "images" / names[1], config)
    assert result.found and result.has_scale
    assert angle_deg(result.j_from_i[:, :3], truth[:, :3]) < 3
    assert np.linalg.norm(result.j_from_i[:, 3] - truth[:, 3]) < 0.06
