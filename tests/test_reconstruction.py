"""What the user gets, on disk: models by component, a report that is JSON, colours, and a record of the stages."""

import io
import json
from dataclasses import replace

import numpy as np
import pycolmap
import pytest
import torch
from made_up import all_views, keypoints_with, make_lens, orbit, photograph, relief, true_cameras
from rich.console import Console

from mbasfm.polish.polish import triangulate
from mbasfm.runtime.progress import Progress, peak_memory_mb
from mbasfm.scene.reconstruction import Reconstruction, color_points, spread_of
from mbasfm.scene.report_file import write_report_json
from mbasfm.sfm.pairs.pose_graph import pose_graph
from mbasfm.types.outcome import RunReport, StageRow


def make_result():
    """Frames 0 to 2 and 3 to 5 are components; 6 is not registered."""
    made = photograph(relief(100, 0), orbit(7), make_lens(), 0)
    cameras, keypoints = true_cameras(made), keypoints_with(made, made.depth)
    names = tuple(f"in/{frame}.jpg" for frame in range(7))
    parts = ([0, 1, 2], [3, 4, 5])
    views = [view for view in all_views(made) if any(view.i in part and view.j in part for part in parts)]
    models = tuple(triangulate(names, part, cameras, views, keypoints) for part in parts)
    component = torch.tensor([0, 0, 0, 1, 1, 1, -1])
    return made, Reconstruction(names, pose_graph(views), cameras, component >= 0, component, models, RunReport((), ()))


def test_a_saved_result_is_one_model_per_component_and_a_report(tmp_path):
    made, result = make_result()
    stage = StageRow("adjust", 1.5, float("inf"), {"score": float("nan"), "sizes": (1, 2)})
    result.save_models(tmp_path)
    write_report_json(replace(result.report, stages=(stage,)), tmp_path)
    for number, part in enumerate(([0, 1, 2], [3, 4, 5])):
        model = pycolmap.Reconstruction(tmp_path / "sparse" / str(number))
        assert [model.images[frame + 1].name for frame in part] == [f"in/{frame}.jpg" for frame in part]
        for frame in part:
            pose = model.images[frame + 1].cam_from_world().matrix()
            assert pose == pytest.approx(made.cam_from_world[frame], abs=1e-9)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stages"] == [
        {"name": "adjust", "seconds": 1.5, "peak_memory_mb": None, "score": None, "sizes": [1, 2]}
    ]


def test_an_older_result_with_more_components_leaves_nothing_behind(tmp_path):
    _, result = make_result()
    (tmp_path / "sparse" / "2").mkdir(parents=True)
    (tmp_path / "sparse" / "2" / "cameras.bin").write_bytes(b"old")
    result.save_models(tmp_path)
    assert sorted(path.name for path in (tmp_path / "sparse").iterdir()) == ["0", "1"]


def test_saving_makes_the_folder(tmp_path):
    _, result = make_result()
    result.save_models(tmp_path / "new" / "folder")
    write_report_json(result.report, tmp_path / "other" / "folder")
    assert (tmp_path / "new" / "folder" / "sparse").is_dir()
    assert (tmp_path / "other" / "folder" / "report.json").is_file()


def test_a_point_has_the_mean_colour_of_its_observations():
    made, result = make_result()
    colors = [np.full((len(pixels), 3), 20 * frame, np.uint8) for frame, pixels in enumerate(made.pixels)]
    for model in result.models:
        color_points(model, colors)
        assert model.num_points3D() > 90
        for point in model.points3D.values():
            seen = [20 * (element.image_id - 1) for element in point.track.elements]
            assert point.color.tolist() == [round(float(np.mean(seen)))] * 3


def test_standard_deviations_are_the_roots_of_the_diagonal():
    spread = spread_of(np.diag([np.deg2rad(2.0) ** 2, 0, 0, 4.0, 9.0, -1e-20]))
    assert spread.rotation_deg == pytest.approx((2, 0, 0)) and spread.translation == pytest.approx((2, 3, 0))
    assert spread_of(np.full((6, 6), np.nan)).translation == (None, None, None)


def test_progress_records_stages_with_their_facts_and_shows_them():
    page = io.StringIO()
    progress = Progress(Console(file=page, width=100))
    with progress.stage("matching") as facts:
        facts.update(pairs=3, share=0.123456)
    assert list(progress.each(iter("abc"), 3)) == ["a", "b", "c"]
    progress.say("mind the gap")
    (row,) = progress.stages
    assert row["name"] == "matching" and row["pairs"] == 3 and row["seconds"] >= 0
    assert row["peak_memory_mb"] == pytest.approx(peak_memory_mb(), rel=0.5)
    assert progress.notes == ["mind the gap"]
    assert "matching" in page.getvalue() and "share 0.123" in page.getvalue() and "mind the gap" in page.getvalue()


def test_progress_without_console_is_silent(capsys):
    progress = Progress()
    with progress.stage("matching"):
        progress.say("a note")
    assert list(progress.each([1, 2], 2)) == [1, 2]
    assert len(progress.stages) == len(progress.notes) == 1 and capsys.readouterr().out == ""
