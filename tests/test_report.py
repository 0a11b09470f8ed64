"""The page of a scene: its words, its numbers, and that no file name can break it."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pycolmap
import pytest
import torch
from made_up import make_lens, orbit, photograph, relief, true_cameras
from PIL import Image
from test_pipeline import FOCAL, settings, write_scene

from mbasfm import reconstruct, write_report
from mbasfm.adjust.levenberg_marquardt import Step
from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.models.depth.flat import FlatDepth
from mbasfm.objective.reference import isotropic_residuals
from mbasfm.report.figures import color_depth, decade_axis, depth_picture, round_axis
from mbasfm.report.page import render_page, script_json
from mbasfm.report.record import (
    MAX_POINTS,
    MAX_STEPS,
    component_view,
    page_data,
    residual_curves,
    step_columns,
    thumbnails,
)
from mbasfm.report.verdict import judge
from mbasfm.scene.derived import upright
from mbasfm.scene.report_file import read_report
from mbasfm.sfm.adjustment import HISTOGRAM, sample_histograms, track_errors_px
from mbasfm.types.observations import DepthEstimate, Samples
from mbasfm.types.outcome import (
    Bridge,
    CameraRow,
    ComponentRow,
    FocalSource,
    ImageRow,
    NoPose,
    NotPolished,
    PairChoice,
    PairColumns,
    Reason,
    ResidualCurve,
    Residuals,
    RunReport,
    Sigma,
    SkippedFile,
    StageRow,
)

NASTY = "a<script>alert(1)</script>&\"'x.png"
VOID = {"meta", "img", "input", "line", "rect", "circle", "br"}


class Page(HTMLParser):
    """Collects what a browser would; complains about elements that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.data = [], [], [], "", ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.data = self.data or data
        elif self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_scene(folder, parts=2, alone=1, num_frames=4)
    np.save(folder / "depth" / "alone_0.npy", np.linspace(1, 2, 48).reshape(6, 8))
    result = reconstruct(folder / "images", folder / "scene", settings(folder, focal=FOCAL))
    return folder, result


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nothing")
    write_scene(folder, parts=0, alone=3)
    reconstruct(folder / "images", folder / "scene", settings(folder))
    return folder / "scene"


def report_of(scene):
    return json.loads((scene / "report.json").read_text())


def fine_report():
    """A report in which all is well."""
    sigma = Sigma((0.01, 0.0, 0.0), (0.1, 0.0, 0.0))
    rows = (ImageRow(f"{n}.jpg", "", 0, inlier_share=0.99, depth_error=0.05, sigma=sigma) for n in range(3))
    return RunReport(
        images=tuple(rows),
        components=(ComponentRow(3, 900, mean_track_length=2.9, mean_error_px=0.4, reason=None),),
        settings={"depth": "onnx:a.onnx", "matcher": "sift"},
        depth_model="onnx-a",
        pairs_chosen=Reason(PairChoice.ALIKE_WANTED, (3, 2, "VLAD")),
        cameras=(CameraRow(3, 1000, 800, FocalSource.SEARCH, 900.0, 1000.0),),
        pairs=PairColumns((0, 0, 1), (1, 2, 2), (300,) * 3, (200,) * 3, (1,) * 3),
        stages=(StageRow("features", 1.0, 10.0, {"mean": 51}),),
    )


def with_image(report, number, **changes):
    rows = list(report.images)
    rows[number] = replace(rows[number], **changes)
    return replace(report, images=tuple(rows))


def with_images(report, **changes):
    return replace(report, images=tuple(replace(row, **changes) for row in report.images))


def with_component(report, **changes):
    return replace(report, components=(replace(report.components[0], **changes),))


def with_pairs(report, **changes):
    return replace(report, pairs=replace(report.pairs, **changes))


def with_camera(report, **changes):
    return replace(report, cameras=(replace(report.cameras[0], **changes),))


def words(report):
    verdict = judge(report)
    return " ".join([verdict.headline, verdict.sureness, *(f"{r.text} {r.advice}" for r in verdict.remarks)])


# ----------------------------------------------------------------------------------------------------------------
# Words


def test_a_fine_scene_is_called_fine():
    verdict = judge(fine_report())
    assert verdict.headline == "All 3 photographs were placed, in one component."
    assert verdict.tone == "good" and "very likely right" in verdict.sureness and "0.01°" in verdict.sureness
    assert {remark.tone for remark in verdict.remarks} == {"good"}


def test_missing_photographs_are_named_with_reason_and_advice():
    verdict = judge(with_image(fine_report(), 2, component=-1, reason=Reason(NoPose.NO_PAIR)))
    assert verdict.headline == "2 of 3 photographs were placed, in one component." and verdict.tone == "fair"
    assert verdict.remarks[0].tone == "bad" and "2.jpg" in verdict.remarks[0].text
    assert "no other photograph shares enough matches" in verdict.remarks[0].text
    assert "--matcher sift+xfeat" in verdict.remarks[0].advice


def test_an_unusual_focal_length_is_told_of_cameras_that_were_placed():
    odd = replace(fine_report().cameras[0], focal_px=300.0)
    for registered, is_told in ((3, True), (None, True), (0, False)):
        report = replace(fine_report(), cameras=(replace(odd, registered=registered),))
        assert ("unusual: 300 px" in words(report)) == is_told


def test_groups_that_stay_apart_are_told_with_what_would_join_them():
    single = Bridge(((0, 1), (2,)), ((0, 2), (1, 2)), 1, 0.5, 2.0)
    unlikely = Bridge(((0,), (1, 2)), ((0, 1),), 1, -3.0, 2.0)
    told = [remark.text for remark in judge(replace(fine_report(), kept_apart=(unlikely, single))).remarks]
    assert "2 photographs and 2.jpg stay apart" in told[0] and "0.jpg with 2.jpg, 1.jpg with 2.jpg" in told[0]
    assert "3 to 1, and 100 to 1 are asked for" in told[0] and "1 to 1000" in told[1]


def test_pairs_that_look_alike_are_told():
    one, many = (replace(fine_report(), lookalikes=pairs) for pairs in (((0, 2),), ((0, 2), (1, 2))))
    assert "1 pair matches but shows different places" in words(one) and "(0.jpg with 2.jpg)" in words(one)
    assert "2 pairs match but show different places" in words(many) and "1.jpg with 2.jpg" in words(many)
    assert "look alike" not in words(fine_report())


def test_advice_follows_the_kind_of_the_reason_and_not_its_words():
    without_depth = with_image(fine_report(), 2, component=-1, reason=Reason(NoPose.NO_DEPTH))
    assert "another depth model" in words(without_depth) and "--matcher" not in words(without_depth)
    told = Reason(NoPose.UNKNOWN, ("its depth and its matches are odd",))
    unknown = with_image(fine_report(), 2, component=-1, reason=told)
    assert "its depth and its matches are odd." in words(unknown)
    assert "another depth model" not in words(unknown) and "--matcher" not in words(unknown)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda r: with_image(r, 1, inlier_share=0.3), "1.jpg agree with the pose"),
        (lambda r: with_component(r, reason=Reason(NotPolished.FEW_POINTS, (9, 30))), "Polish was not used"),
        (lambda r: with_component(r, reason=Reason(NotPolished.SWITCHED_OFF)), "Leave out --no-polish."),
        (lambda r: with_component(r, reason=Reason(NotPolished.FEW_POINTS_LEFT, (9, 30))), "More matches help"),
        (lambda r: with_camera(r, focal_px=300.0), "0.30 times the long side"),
        (lambda r: replace(r, depth_model=FlatDepth.key), "No depth model"),
        (lambda r: with_images(r, depth_error=0.4), "off by about 40 %"),
        (lambda r: with_pairs(r, inliers=(20, 30, 40)), "have 30 or fewer"),
        (lambda r: with_pairs(r, used=(1, 1, 0)), "Held by only one pair each: 1.jpg, 2.jpg"),
        (lambda r: replace(r, skipped=(SkippedFile("x.jpg", "empty"),)), "x.jpg (empty)"),
        (lambda r: with_component(r, points=12, reason=Reason(NotPolished.SWITCHED_OFF)), "should not be trusted"),
    ],
)
def test_each_weakness_is_told(change, said):
    report = fine_report()
    assert said not in words(report)
    assert said in words(change(report))


def test_where_nothing_was_placed_the_page_says_how_near_it_came():
    report = with_images(fine_report(), component=-1, reason=Reason(NoPose.NO_PAIR))
    report = with_pairs(report, matches=(7, 5, 9), inliers=(0, 0, 4))
    chosen = Reason(PairChoice.ALL_OF_FEW, (3,))
    said = words(replace(report, depth_model=FlatDepth.key, components=(), pairs_chosen=chosen))
    assert "The best of 3 pairs has 9 matches, of which 4 agree with one pose; at least 12 must agree." in said
    assert "51 features" in said and "try --matcher sift+xfeat." in said
    assert "No depth model" not in said and "exhaustive" not in said


def test_a_camera_that_only_turned_is_trusted_in_direction_only():
    report = with_images(fine_report(), parallax_px=0.3)
    assert "There is no parallax in component 0" in words(report) and "directions are very likely right" in words(
        report
    )
    assert "parallax" not in words(with_image(report, 0, parallax_px=30.0))


def test_a_given_focal_length_is_never_called_unusual():
    assert "unusual" not in words(with_camera(fine_report(), focal_px=300.0, focal_from=FocalSource.GIVEN))


# ----------------------------------------------------------------------------------------------------------------
# Numbers


def samples_of(made):
    edges = torch.tensor([[0, 1], [1, 0], [1, 2]])
    data = torch.rand(3, 50, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1024.0, 768, 1024, 768, 5])
    return Samples(edges, data + torch.tensor([0.0, 0, 0, 0, 1]), torch.full((3, 50), 0.5))


def test_histograms_are_those_of_the_residuals():
    scene = photograph(relief(50, 0), orbit(3), make_lens(FOCAL), 0)
    cameras, samples = true_cameras(scene), samples_of(scene)
    whole, across = sample_histograms(cameras, samples)
    residuals = isotropic_residuals(cameras, samples).flatten().numpy()
    inside, _ = np.histogram(residuals[residuals < 1000], HISTOGRAM.edges().numpy())
    assert np.abs(whole[:-1].numpy() - 0.5 * inside).sum() <= 1.0  # a border may fall to either side
    assert float(whole.sum()) == float(across.sum()) == 75.0
    assert float(whole[-1]) == pytest.approx(0.5 * (residuals >= 1000).sum(), abs=0.5)
    assert (across.cumsum(0) >= whole.cumsum(0) - 0.5).all()  # a part is never longer than the whole


def test_curves_of_uniform_masses_are_straight():
    counts = [1.0] * HISTOGRAM.num_bins + [float(HISTOGRAM.num_bins)]
    record = Residuals(inlier_px=20.0, curves=(ResidualCurve("start", "whole", tuple(counts)),))
    curve = residual_curves(record)["curves"][0]
    assert curve["cumulative"] == pytest.approx(np.linspace(0, 0.5, HISTOGRAM.num_bins + 1))
    assert curve["density"] == pytest.approx([0.5 / HISTOGRAM.num_bins] * HISTOGRAM.num_bins)
    assert curve["median_px"] == pytest.approx(1000.0)


def test_errors_of_tracks_are_those_of_the_model(made):
    _, result = made
    model = result.models[0]
    errors = track_errors_px(model)  # images are 1024 wide, so pixels are reference pixels
    assert len(errors) == model.compute_num_observations()
    assert errors.mean() == pytest.approx(model.compute_mean_reprojection_error(), rel=0.2)


def test_the_report_holds_every_stage_of_the_residuals(made):
    report = report_of(made[0] / "scene")
    stages = [(item["stage"], item["part"]) for item in report["residuals"]["curves"]]
    assert stages == [(s, p) for s in ("start", "adjust") for p in ("whole", "across")] + [("polish", "tracks")]
    assert all(len(item["counts"]) == HISTOGRAM.num_bins + 1 for item in report["residuals"]["curves"])
    taken = [s["steps"] for s in report["stages"] if s["name"] in ("adjust", "settle")]
    assert len(taken) == 2 and min(taken) > 0
    assert len(report["steps"]["loss"]) == sum(taken)
    names = report["steps"]["stage"]
    assert names[0].startswith("rough") and {name.split()[0] for name in names[-taken[1] :]} == {"anchored"}
    assert report["cameras"][0]["focal_from"] == "given" and report["settings"]["focal"] == FOCAL


def test_long_histories_are_thinned_with_both_ends():
    steps = [("fine", Step(0.0, float(number), 0.0, 1.0, True)) for number in range(5000)]
    columns = step_columns(steps)
    assert len(columns.loss) == MAX_STEPS and (columns.loss[0], columns.loss[-1]) == (0.0, 4999.0)


def test_axes_hold_their_values_between_round_numbers():
    axis = round_axis([0.13, 0.87])
    assert (axis.low, axis.high) == (0.0, 1.0) and axis.share(0.5) == pytest.approx(0.5)
    assert round_axis([3.0]).low < 3.0 < round_axis([3.0]).high
    assert [label for _, label in decade_axis([-2.5, 0.2]).ticks] == ["1e-3", "1e-2", "1e-1", "1e0", "1e1"]


def test_disparity_and_depth_look_the_same():
    depth = np.geomspace(1, 10, 48, dtype=np.float32).reshape(6, 8)
    first = color_depth(DepthEstimate(depth, False, False), 8)
    second = color_depth(DepthEstimate(1 / depth, True, False), 8)
    assert np.abs(first.astype(int) - second).max() <= 2
    assert first[0, 0].sum() > first[-1, -1].sum()  # near is light
    assert (depth_picture(torch.full((2, 2), torch.inf)) == 1).all()


def test_views_are_upright():
    poses = orbit(5)
    turn = upright(np.swapaxes(poses[:, :, :3], 1, 2))
    assert turn @ turn.T == pytest.approx(np.eye(3)) and np.linalg.det(turn) == pytest.approx(1.0)
    assert ((turn @ -poses[:, 1, :3].T)[1] > 0.9).all()  # the cameras' up is up
    assert (turn @ poses[:, 2, :3].T)[2].mean() < -0.9  # and they look away from the viewer
    down = np.array([[[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]] * 2)
    assert np.isfinite(upright(down)).all()


# ----------------------------------------------------------------------------------------------------------------
# The page


def test_the_page_of_two_components_parses_and_names_everybody(made):
    folder, result = made
    text = (folder / "scene" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "8 of 9 photographs were placed, in 2 separate components." in page.text
    assert "each has its own origin and scale" in page.text
    assert all(name in page.text for name in result.names)
    data = json.loads(page.data)
    assert [len(part["frames"]) for part in data["scene"]] == [4, 4]
    assert len([tag for tag in page.tags if tag == "img"]) == 9 + 1  # one of the depth maps is no constant
    alternatives = [value for tag, key, value in page.attributes if (tag, key) == ("img", "alt")]
    assert len(alternatives) == 9 + 1 and all(alternatives)


def test_the_page_loads_nothing(made, nothing):
    for scene in (made[0] / "scene", nothing):
        text = (scene / "report.html").read_text(encoding="utf-8")
        assert "http://" not in text and "https://" not in text and "@import" not in text
        for _, key, value in Page(text).attributes:
            assert key not in ("src", "href") or value.startswith(("data:", "#"))


def test_the_same_folder_gives_the_same_bytes(made):
    scene = made[0] / "scene"
    before = (scene / "report.html").read_bytes()
    assert write_report(scene) == scene / "report.html"
    assert (scene / "report.html").read_bytes() == before


def test_nothing_registered_gives_a_page_too(nothing):
    page = Page((nothing / "report.html").read_text(encoding="utf-8"))
    assert "None of the 3 photographs could be placed." in page.text
    assert "no other photograph shares enough matches" in page.text and "no residuals" in page.text


def test_names_cannot_become_elements(made):
    data = page_data(read_report(made[0] / "scene"), [], made[0] / "scene")
    plain = Page(render_page(data))
    data["images"][0]["name"] = data["title"] = NASTY
    data["images"][8]["reason"] = NASTY
    data["notes"] = [NASTY]
    data["settings"]["depth"] = NASTY
    data["verdict"]["headline"] = data["verdict"]["remarks"][0]["text"] = NASTY
    page = Page(render_page(data))
    assert page.tags.count("script") == plain.tags.count("script") == 2
    assert page.text.count(NASTY) >= 6
    assert json.loads(page.data)["images"][0]["name"] == NASTY
    assert "<" not in script_json([NASTY]) and ">" not in script_json([NASTY])


def test_photographs_that_moved_are_found_in_the_scene_or_left_out(made, tmp_path):
    folder, _ = made
    shutil.copytree(folder / "images", tmp_path / "images")
    found = thumbnails(tmp_path, tmp_path / "gone", ["0_0.png", "no.png"])
    assert found[0] and found[1] is None


def test_the_command_makes_the_same_page_again(made, capsys):
    page = made[0] / "scene" / "report.html"
    before = page.read_bytes()
    page.unlink()
    assert main(["report", str(page.parent)]) == 0
    assert page.read_bytes() == before and str(page) in capsys.readouterr().out
    assert main(["report", str(made[0])]) == 2
    assert "no report.json there" in capsys.readouterr().err


def test_a_folder_without_report_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no report\.json"):
        write_report(tmp_path)


def test_large_scenes_stay_small(tmp_path):
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 4
    options.num_points3D = 300
    model = pycolmap.synthesize_dataset(options)
    view = component_view(model, 100)
    assert len(view["points"]) <= 300 and len(view["colors"]) == 2 * len(view["points"])
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    Image.fromarray(noise).save(tmp_path / "images" / "noise.jpg")
    pictures = thumbnails(tmp_path, tmp_path / "images", ["noise.jpg"] * 1000)
    assert sum(map(len, pictures)) < 12e6  # noise is the worst that JPEG can meet
    assert 36 * MAX_POINTS < 1e6
    assert thumbnails(tmp_path, tmp_path / "images", ["noise.jpg"] * 2001) == [None] * 2001
