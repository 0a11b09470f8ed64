"""The viewer: what it reads, what it hands to viser, and what a browser then shows."""

import dataclasses
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pycolmap
import pytest
from browser import EXECUTABLE, Browser
from helpers import HANG_S
from made_up import invert, make_lens, orbit, photograph, relief
from test_pipeline import FOCAL, settings, write_scene

from mbasfm import reconstruct
from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.scene.derived import DIRECTION, overview, stand_up
from mbasfm.scene.formats import write_depth
from mbasfm.viewer.exhibit import (
    BY_ERROR,
    BY_INLIERS,
    LINK_COLORS,
    Exhibit,
    Link,
    depth_cloud,
    link_strengths,
    read_exhibit,
    shade,
)

NASTY = "a<script>alert(1)</script>&\"'x.png"
DEPTH = 3.0
SCENE = np.s_[160:, :550]
"""Part of the window that is neither panel nor viser's complaint about slow graphics."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Two components and a photograph of something else; one photograph has depth, a plane before the camera."""
    folder = tmp_path_factory.mktemp("view")
    write_scene(folder, parts=2, alone=1, num_frames=4)
    reconstruct(folder / "images", folder / "scene", settings(folder, focal=FOCAL))
    first = read_exhibit(folder / "scene", 1000).components[0]
    write_depth(first.scene.depth_file(first.views[1]), np.full((24, 32), DEPTH, np.float32))
    return folder / "scene"


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nothing")
    write_scene(folder, parts=0, alone=3)
    reconstruct(folder / "images", folder / "scene", settings(folder))
    return folder / "scene"


@pytest.fixture(scope="module")
def exhibit(scene):
    return read_exhibit(scene, 1000)


@pytest.fixture
def show():
    """Opens viewers and closes them after the test."""
    viewer = pytest.importorskip("mbasfm.viewer.server", reason="viser is not installed: pip install 'mbasfm[view]'")
    opened = []

    def open_one(exhibit, **options):
        opened.append(viewer.Viewer(exhibit, port=0, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.stop()


# ----------------------------------------------------------------------------------------------------------------
# Where to stand


def test_an_upright_scene_looks_the_same_through_its_cameras():
    made = photograph(relief(60, 0), orbit(4), make_lens(), 0)
    world_from_cam = invert(made.cam_from_world)
    upright = stand_up(made.points, world_from_cam)
    assert np.linalg.norm(upright.points(world_from_cam[:, :, 3]), axis=1).max() <= 1 + 1e-12
    for old, new in zip(made.cam_from_world, map(upright.pose, world_from_cam), strict=True):
        before = made.points @ old[:, :3].T + old[:, 3]
        after = (upright.points(made.points) - new[:, 3]) @ new[:, :3]
        np.testing.assert_allclose(after * upright.radius, before, atol=1e-12)


@pytest.mark.parametrize("fov_deg", [20.0, 50.0, 90.0])
def test_the_overview_holds_all_points_and_stands_no_further_than_needed(fov_deg):
    points, fov = 5 * relief(200, 1), np.deg2rad(fov_deg)
    position = overview(points, fov)
    offset = points - position
    angle = np.arccos(offset @ -DIRECTION / np.linalg.norm(offset, axis=1))
    assert angle.max() == pytest.approx(fov / 2)


# ----------------------------------------------------------------------------------------------------------------
# What is read


def test_every_photograph_has_its_numbers_or_a_reason(exhibit, scene):
    assert [len(part.views) for part in exhibit.components] == [4, 4] and len(exhibit.shots) == 9
    for part in exhibit.components:
        model = pycolmap.Reconstruction(part.scene.model)
        for view in part.views:
            facts = dict(exhibit.shots[view.number].facts)
            camera = model.cameras[model.images[view.number + 1].camera_id]
            assert facts["focal length"].startswith(f"{camera.focal_length_x:.1f} px")
            assert facts["points"] == str(model.images[view.number + 1].num_points3D)
            assert facts["neighbours"].startswith("3: ") and facts["inlier share"].endswith(" %")
    alone = exhibit.shots[8]
    assert exhibit.missing == ((alone.name, dict(alone.facts)["reason"]),) and "matches" in exhibit.missing[0][1]


def test_links_know_how_far_their_points_are_off(exhibit):
    part = exhibit.components[1]
    assert {(link.i, link.j) for link in part.links} == {(i, j) for i in range(4, 8) for j in range(i + 1, 8)}
    model = pycolmap.Reconstruction(part.scene.model)
    assert np.mean([link.error_px for link in part.links]) == pytest.approx(
        model.compute_mean_reprojection_error(), rel=0.3
    )


def test_depth_lies_where_the_camera_saw_it(exhibit):
    part = exhibit.components[0]
    view = part.views[1]
    cloud = depth_cloud(part, view, 300)
    assert len(cloud.points) == 300 and depth_cloud(part, part.views[0], 300) is None
    world = cloud.points * part.upright.radius @ part.upright.turn + part.upright.middle
    pixels, depth = view.project(world)
    np.testing.assert_allclose(depth, DEPTH, rtol=1e-9)
    assert ((pixels > 0) & (pixels < view.size)).all()
    np.testing.assert_allclose(cloud.colors, exhibit.shots[view.number].thumbnail[0, 0][None].repeat(300, 0), atol=2)


def test_clouds_are_thinned(scene):
    part = read_exhibit(scene, 50).components[0]
    assert {len(cloud.points) for cloud in part.clouds.values()} == {50}


def test_strong_links_are_blue_whatever_is_asked():
    links = (Link(0, 1, 10, 2.0), Link(0, 2, 1000, 0.5), Link(1, 2, 100, float("nan")))
    strength, ends = link_strengths(links, BY_INLIERS)
    assert strength == pytest.approx([0.0, 1.0, 0.5]) and ends == ("10", "1000")
    strength, ends = link_strengths(links, BY_ERROR)
    assert strength == pytest.approx([0.0, 1.0, 0.0]) and ends == ("2.00 px", "0.50 px")
    np.testing.assert_array_equal(shade(np.array([0.0, 1.0])), LINK_COLORS[[0, -1]])
    assert link_strengths(links[:1], BY_ERROR)[0] == pytest.approx([1.0])
    assert len(link_strengths((), BY_INLIERS)[0]) == len(link_strengths((), BY_ERROR)[0]) == 0


def test_a_damaged_report_is_named(scene, tmp_path):
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(InputError, match=r"report\.json: cannot be read"):
        read_exhibit(tmp_path, 10)


# ----------------------------------------------------------------------------------------------------------------
# What is handed to viser


def test_frusta_stand_where_the_cameras_are(exhibit, show):
    viewer = show(exhibit)
    from viser.transforms import SO3

    assert sorted(viewer.frusta) == list(range(8))
    for part in exhibit.components:
        model, upright = pycolmap.Reconstruction(part.scene.model), part.upright
        for view in part.views:
            handle = viewer.frusta[view.number]
            truth = model.images[view.number + 1].cam_from_world().inverse().matrix()
            turn = upright.turn.T @ SO3(np.asarray(handle.wxyz)).as_matrix()
            np.testing.assert_allclose(turn, truth[:, :3], atol=1e-6)
            center = np.asarray(handle.position) * upright.radius @ upright.turn + upright.middle
            np.testing.assert_allclose(center, truth[:, 3], atol=1e-6)
            camera = model.cameras[model.images[view.number + 1].camera_id]
            assert np.tan(handle.fov / 2) == pytest.approx(camera.height / 2 / camera.focal_length_y)
            assert handle.aspect == pytest.approx(camera.width / camera.height)


def test_a_click_shows_that_photograph_and_marks_its_neighbours(exhibit, show):
    viewer = show(exhibit)
    assert viewer.chosen is None and not viewer.panel.picture.visible and viewer.panel.visit.disabled
    (entry,) = viewer.frusta[2]._impl.click_cb
    entry.callback(None)
    assert viewer.chosen is exhibit.shots[2] and viewer.panel.picture.visible and not viewer.panel.visit.disabled
    assert viewer.panel.picture.image.shape == (540, 720, 3)
    np.testing.assert_allclose(viewer.panel.picture.image[0, 0], exhibit.shots[2].thumbnail[0, 0], atol=2)
    assert exhibit.shots[2].name in viewer.panel.numbers.content
    colors = [tuple(viewer.frusta[number].color) for number in range(8)]
    assert len({*colors[:4]}) == 2 and colors[2] not in colors[:2] and len({*colors[4:]}) == 1
    viewer.choose(8)
    assert exhibit.missing[0][1] in viewer.panel.numbers.content and viewer.panel.visit.disabled


def test_a_photograph_of_another_component_brings_its_component(exhibit, show):
    viewer = show(exhibit)
    assert [handle.visible for handle in viewer.frusta.values()] == [True] * 4 + [False] * 4
    viewer.choose(5)
    assert viewer.component == 1
    assert [handle.visible for handle in viewer.frusta.values()] == [False] * 4 + [True] * 4
    assert [key for key, handle in viewer.clouds.items() if handle.visible] == [(1, viewer.panel.points.value)]


def test_next_and_previous_go_around(exhibit, show):
    viewer = show(exhibit)
    viewer._step(1)
    assert viewer.chosen.number == 0
    viewer._step(-1)
    assert viewer.chosen.number == 8
    viewer._step(1)
    assert viewer.chosen.number == 0


def test_what_is_switched_changes_the_scene(exhibit, show):
    viewer = show(exhibit, max_points=400)
    panel, frustum = viewer.panel, viewer.frusta[0]
    cloud = viewer.clouds[0, panel.points.value]
    size, scale = cloud.point_size, frustum.scale
    panel.point_size.value = 2.0
    panel.camera_size.value = 0.5
    assert cloud.point_size == pytest.approx(2 * size) and frustum.scale == pytest.approx(scale / 2)
    panel.points.value = "off"
    panel.cameras.value = False
    assert not cloud.visible and not frustum.visible
    assert frustum.image is not None
    panel.photographs.value = False
    assert frustum.image is None
    assert len(viewer._lines) == 1 and "inliers" in panel.legend.content
    by_inliers = viewer._lines[0].colors.copy()
    panel.links.value = BY_ERROR
    assert "residual" in panel.legend.content and not np.array_equal(viewer._lines[0].colors, by_inliers)
    panel.links.value = "off"
    assert viewer._lines == [] and panel.legend.content == ""
    panel.depth.value = "of the chosen camera"
    assert viewer.depths == {}
    viewer.choose(1)
    assert [len(handle.points) for handle in viewer.depths.values()] == [400]
    panel.depth.value = "of all cameras"
    assert [len(handle.points) for handle in viewer.depths.values()] == [100]  # a quarter for each of four
    panel.depth.value = "off"
    assert viewer.depths == {}


def test_nothing_placed_shows_photographs_and_reasons(nothing, show):
    viewer = show(read_exhibit(nothing, 10))
    assert viewer.frusta == {} and viewer.chosen is None
    viewer._step(1)
    assert "matches" in viewer.panel.numbers.content and viewer.panel.picture.visible


def test_names_cannot_become_elements(exhibit):
    panel = pytest.importorskip("mbasfm.viewer.panel", reason="viser is not installed")
    shot = dataclasses.replace(exhibit.shots[0], name=NASTY, facts=((NASTY, NASTY),))
    verdict = dataclasses.replace(
        exhibit.verdict,
        headline=NASTY,
        sureness=NASTY,
        remarks=(dataclasses.replace(exhibit.verdict.remarks[0], text=NASTY, advice=NASTY),),
    )
    for text in (
        panel.shot_html(shot),
        panel.missing_html(((NASTY, NASTY),)),
        panel.headline_html(verdict),
        panel.remarks_html(verdict),
    ):
        assert "<script" not in text and text.count("&lt;script&gt;") >= 2


# ----------------------------------------------------------------------------------------------------------------
# The command


@pytest.mark.parametrize(
    "options, words",
    [
        ([], "no sparse/0 there"),
        (["--port", "70000"], "between 0 and 65535"),
        (["--max-points", "0"], "at least 1"),
        (["--host", "no.such.host.invalid"], "try 127.0.0.1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options, words, tmp_path, capsys):
    pytest.importorskip("viser")
    assert main(["view", str(tmp_path), "--no-browser", *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_missing_extra_is_named(scene, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    assert main(["view", str(scene)]) == 2
    assert "pip install 'mbasfm[view]'" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(nothing):
    pytest.importorskip("viser")
    listen = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
    run = f"{listen}; from mbasfm.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", run, "view", str(nothing), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("None of the 3 photographs could be placed.")
            address = next(word for word in line.split() if word.startswith("http"))
            with urllib.request.urlopen(address) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=HANG_S) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


# ----------------------------------------------------------------------------------------------------------------
# The browser


def wait_for(condition):
    """The first value that is true."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.25)
    raise TimeoutError(f"still not so after {HANG_S:g} s")


def count_like(picture, color, spread=45):
    """Pixels of the scene of about a colour."""
    return int((np.abs(picture[SCENE].astype(int) - color).max(-1) < spread).sum())


def on_screen(client, point):
    """Where a point of the scene is in the window."""
    from viser.transforms import SO3

    camera = client.camera
    x, y, z = SO3(camera.wxyz).as_matrix().T @ (point - camera.position)
    height, width = camera.image_height, camera.image_width
    focal = height / 2 / np.tan(camera.fov / 2)
    return width / 2 + focal * x / z, height / 2 + focal * y / z


@pytest.mark.slow
@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium here to look with")
def test_the_browser_shows_points_cameras_and_what_is_clicked(exhibit, show):
    size = (1000, 640)
    viewer = show(exhibit)
    empty = show(Exhibit("empty", exhibit.verdict, (), (), ()))
    from viser.transforms import SO3

    orange, blue = (255, 122, 26), (74, 144, 226)
    with Browser(empty.url, size) as browser:
        wait_for(lambda: empty.server.get_clients() and exhibit.verdict.headline in browser.text())
        time.sleep(2)
        before = browser.screenshot()
        assert count_like(before, blue) == count_like(before, orange) == 0
        browser.open(viewer.url)
        client = wait_for(lambda: next(iter(viewer.server.get_clients().values()), None))
        wait_for(lambda: count_like(browser.screenshot(), blue) > 150)
        shown = browser.screenshot()
        changed = np.abs(shown.astype(int) - before).max(-1)[SCENE] > 40
        assert changed.sum() > 1000  # cameras, links, points
        viewer.panel.cameras.value, viewer.panel.links.value = False, "off"
        wait_for(lambda: count_like(browser.screenshot(), blue) == 0)
        points = np.abs(browser.screenshot().astype(int) - before).max(-1)[SCENE] > 40
        assert 300 < points.sum() < changed.sum()
        viewer.panel.cameras.value = True
        wait_for(lambda: count_like(browser.screenshot(), blue) > 150)
        part = exhibit.components[0]
        pose = part.pose(part.views[2])
        browser.click(*on_screen(client, pose[:, 3] + 0.98 * part.size * pose[:, 2]))
        wait_for(lambda: viewer.chosen)
        assert viewer.chosen is exhibit.shots[2]
        wait_for(lambda: count_like(browser.screenshot(), orange) > 50)
        assert dict(exhibit.shots[2].facts)["neighbours"] in browser.text()
        viewer._visit(client)  # what the button does
        wait_for(lambda: np.allclose(client.camera.position, pose[:, 3], atol=1e-3))
        np.testing.assert_allclose(SO3(client.camera.wxyz).as_matrix(), pose[:, :3], atol=1e-3)
        wide, tall = part.views[2].size / part.views[2].focal / 2
        ahead = np.tan(client.camera.fov / 2)
        assert min(ahead / tall, ahead * client.camera.aspect / wide) == pytest.approx(1.0, abs=1e-3)
        assert not any(handle.visible for handle in viewer.frusta.values()) and viewer._lines == []
        viewer._step_back(client)
        wait_for(lambda: count_like(browser.screenshot(), orange) > 50)
