"""The parts of benchmarks/depth.py that its figures rest on."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest


@pytest.fixture(scope="module")
def parts():
    """Its modules, which find each other in their own folder."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    try:
        import depth
        import noise_chart

        yield depth, noise_chart
    finally:
        sys.path.pop(0)


def test_noise_has_the_size_that_is_said_and_is_smooth_or_not(parts):
    smooth, rough, again, other = (
        parts[0].noise_field(kind, (60, 80), name, 0)
        for kind, name in (("smooth", "a"), ("independent", "a"), ("smooth", "a"), ("smooth", "b"))
    )
    for field in (smooth, rough):
        assert field.mean() == pytest.approx(0, abs=1e-9) and field.std() == pytest.approx(1)
    beside = [np.corrcoef(field[:, 1:].ravel(), field[:, :-1].ravel())[0, 1] for field in (smooth, rough)]
    assert beside[0] > 0.98 and abs(beside[1]) < 0.1
    assert (smooth == again).all() and np.abs(smooth - other).max() > 0.5


def test_places_are_those_of_known_depth(parts):
    depth = np.full((4, 5), np.nan, np.float32)
    depth[2, 1], depth[3, 4] = 1.5, 2.5
    places, found = parts[0].known_places(depth, every=1)
    np.testing.assert_allclose(places, [[1.5 / 5, 2.5 / 4], [4.5 / 5, 3.5 / 4]])
    assert found.tolist() == [1.5, 2.5]


def test_what_was_run_is_not_run_again(parts, tmp_path):
    ledger = parts[0].Ledger(tmp_path / "a" / "runs.json")
    assert ledger.get("x", lambda: 1) == 1 == parts[0].Ledger(tmp_path / "a" / "runs.json").get("x", lambda: 2)


def test_the_chart_has_a_panel_for_each_scene_and_kind(parts, monkeypatch, tmp_path):
    monkeypatch.setattr(parts[1], "PATH", tmp_path / "chart.svg")
    rows = [
        {"scene": scene, "measure": "AUC@5", "noise": kind, "level": level, "a": 0.4 - level, "b, no polish": 0.2}
        for scene in ("one", "two <3>")
        for kind in ("smooth", "independent")
        for level in (0.0, 0.1, 0.3)
    ]
    lines = ElementTree.parse(parts[1].draw(rows, ["a", "b, no polish"])).getroot()
    curves = [line for line in lines if line.tag.endswith("polyline")]
    assert len(curves) == 8
    heights = [[float(point.split(",")[1]) for point in curve.get("points").split()] for curve in curves]
    assert heights[0] == sorted(heights[0]) and len(set(heights[1])) == 1  # what falls goes down
