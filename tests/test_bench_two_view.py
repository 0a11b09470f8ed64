"""The task of two views: photographs of a made-up corner, ours and its rivals on the same matches."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corner import FOCAL, MAP, QUERIES, SIZE, see
from PIL import Image

from mbasfm.bench.jobs import Job, make_jobs
from mbasfm.bench.recipe import PairSettings, Recipe, Variant
from mbasfm.bench.results.paired_differences import gain_of, interval, paired_table
from mbasfm.bench.results.tables import markdown
from mbasfm.bench.tasks import pair_sets, two_view
from mbasfm.bench.tasks.pair_sets import load_pair_set
from mbasfm.bench.tasks.two_view import METHODS, TwoView
from mbasfm.cli import main
from mbasfm.datasets.pair_lists import PairList, PairSets
from mbasfm.errors import InputError
from mbasfm.io.files import Cache
from mbasfm.models.base import ImageMatcher
from mbasfm.types.observations import PixelMatches

CAMERA = [FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2]
POSES = {name: MAP[name] for name in ("map0.png", "map1.png", "map2.png")} | QUERIES
ROOM, LISTED = "room", "listed"
RECIPE = Recipe(
    "pairs",
    "Pairs",
    "pairs",
    task="two-view",
    protocol="pairs",
    measures=("AUC@5", "AUC@20"),
    paired="magsac",
    variants=(Variant("default", "known"),),
    settings={"matcher": "sift", "thresholds_px": [0.05, 1.0], "train": [ROOM]},
)
GRID = PairSettings(matcher="sift", thresholds_px=(0.05, 1.0), train=(ROOM,))


def relative(a, b):
    rotation = b[:, :3] @ a[:, :3].T
    return rotation, b[:, 3] - rotation @ a[:, 3]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """All pairs of a room, and two of them as a list whose first pixel's centre is at zero."""
    folder, rows = tmp_path_factory.mktemp("data"), {}
    for sub in (ROOM, LISTED):
        (folder / sub / "images").mkdir(parents=True)
    for name, pose in POSES.items():
        for sub in (ROOM, LISTED):
            Image.fromarray(see(pose, 0)[0]).save(folder / sub / "images" / name)
        size = {"width": SIZE[0], "height": SIZE[1]}
        rows[name] = {"K": CAMERA, **size, "R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
    (folder / ROOM / "gt.json").write_text(json.dumps({"images": rows}))
    pairs = []
    for a, b in (("map0.png", "map2.png"), ("map1.png", "a.png")):
        rotation, translation = relative(POSES[a], POSES[b])
        k = [*CAMERA[:2], CAMERA[2] - 0.5, CAMERA[3] - 0.5]
        pairs.append({"a": a, "b": b, "Ka": k, "Kb": k, "R": rotation.tolist(), "t": translation.tolist()})
    (folder / LISTED / "pairs.json").write_text(json.dumps({"pairs": pairs}, indent=1))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def job_of(data: Path, method: str, scene: str = ROOM, **settings) -> Job:
    recipe = replace(RECIPE, settings={**RECIPE.settings, **settings})
    (job,) = make_jobs(recipe, PairSets(data), (scene,), (method,))
    return job


def test_a_list_and_a_set_of_poses_say_the_same(data, cache):
    assert PairSets(data).scenes() == (LISTED, ROOM) and PairSets(data / LISTED).scenes() == (LISTED,)
    listed = load_pair_set(PairSets(data), LISTED, GRID, Cache(cache / "ours"), 0)
    room = load_pair_set(PairSets(data), ROOM, GRID, Cache(cache / "ours"), 0)
    assert len(room) == 10 and len(listed) == 2
    row = room.names.index("map0.png map2.png")
    assert room.truth[row].numpy() == pytest.approx(listed.truth[0].numpy(), abs=1e-9)
    assert room.calibration[row] == pytest.approx(listed.calibration[0])
    alone = PairSets(data / LISTED)
    assert alone.pairs(LISTED)[0].names == ("map0.png", "map2.png")
    with pytest.raises(InputError, match="no poses of single images"):
        alone.load(LISTED)


def test_pairs_so_far_apart(data):
    names = [pair.names for pair in PairSets(data).pairs(ROOM) if "map" in pair.names[0] and "map" in pair.names[1]]
    assert len(names) == 3
    with pytest.raises(InputError, match="a.png: no number at the end"):
        PairSets(data).pairs(ROOM, (2, 3))


class Shifted(ImageMatcher):
    """Sees every pixel three to the right."""

    name, key, licence = "shifted", "shifted", "none"

    def match_images(self, first, second):
        row, column = np.mgrid[0.5:120:2, 0.5:300:3]
        pixels = np.stack([column.ravel(), row.ravel()], -1).astype(np.float32)
        return PixelMatches(pixels, pixels + np.float32([3, 0]), np.ones(len(pixels), np.float32))


def test_matchers_of_images_are_taken_as_they_are(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pair_sets, "load_matchers", lambda _: [Shifted()])
    listed = load_pair_set(PairSets(data), LISTED, GRID, Cache(tmp_path), 0)
    for first, second in listed.pixels:
        assert len(first) == 1000 and (second - first).tolist() == [[3, 0]] * 1000


def test_halves_have_no_pair_in_common(data, cache):
    room = load_pair_set(PairSets(data), ROOM, GRID, Cache(cache / "ours"), 0)
    first, second = room.halves(0)
    assert sorted(first.names + second.names) == sorted(room.names) and not set(first.names) & set(second.names)
    assert first.thinned(3).names == first.names[::2] and first.thinned(100).names == first.names


@pytest.mark.parametrize("method", METHODS)
def test_every_method_measures_the_second_half(data, cache, method):
    outcome = TwoView().run(job_of(data, method), Path(), cache)
    room = load_pair_set(PairSets(data), ROOM, GRID, Cache(cache / "ours"), 0)
    assert tuple(outcome.errors) == room.halves(0)[1].names
    assert outcome.num_images == outcome.num_pairs == outcome.num_registered == 5
    assert outcome.measures["AUC@20"] > (0.8 if method.startswith(("ours", "magsac", "poselib")) else 0.4)
    assert np.mean([max(0, 1 - error / 20) for (error,) in outcome.errors.values()]) == pytest.approx(
        outcome.measures["AUC@20"]
    )
    assert outcome.measures["tau px"] in (0.05, 1.0) and outcome.measures["CPU ms per pair"] > 0


def test_a_threshold_is_chosen_once(data, cache, monkeypatch):
    first = TwoView().run(job_of(data, "ours-64", LISTED), Path(), cache)
    monkeypatch.setattr(two_view, "_errors_by_threshold", None)
    assert TwoView().run(job_of(data, "ours-64", LISTED), Path(), cache).measures["tau px"] == first.measures["tau px"]


def test_one_threshold_needs_no_training(data, cache):
    outcome = TwoView().run(job_of(data, "ours-64", LISTED, thresholds_px=[1.0], train=[]), Path(), cache)
    assert outcome.num_pairs == 2 and outcome.measures["tau px"] == 1.0


def test_many_pairs_in_one_batch(data, cache):
    outcome = TwoView().run(job_of(data, "ours-64", batch=70, thresholds_px=[1.0]), Path(), cache)
    assert outcome.num_pairs == 70 and not outcome.errors and outcome.measures["pairs/s"] > 0


def test_a_failure_is_wrong_about_every_pair(data):
    outcome = TwoView().failed(job_of(data, "magsac"))
    assert outcome.measures["AUC@20"] == 0 and outcome.num_pairs == 10 and outcome.num_registered == 0
    assert set(outcome.errors.values()) == {(180.0,)}


def test_settings_that_the_task_does_not_know_are_refused(data, capsys):
    assert main(["bench", "photos-two-view", "--data", str(data), "--depth", "flat"]) == 2
    assert "no setting is named 'depth'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b": None}, ["line 17, pair 2", "needs a, b"]),
        ({"a": "x.png"}, ["line 17, pair 2", "x.png is missing"]),
        ({"R": [[1, 0], [0, 1]]}, ["line 17, pair 2", "R 3 x 3"]),
        ({"R": [[2, 0, 0], [0, 1, 0], [0, 0, 1]]}, ["line 17, pair 2", "not a rotation"]),
        ({"t": [0, 0, float("nan")]}, ["NaN is no finite number", "line"]),
        ({"Ka": [1, 2, 3]}, ["line 17, pair 2", "4 numbers"]),
        ({"Ka": [-1, 2, 3, 4]}, ["line 17, pair 2", "focal"]),
    ],
)
def test_a_broken_pair_of_a_json_list_is_named(data, tmp_path, change, words):
    content = json.loads((data / LISTED / "pairs.json").read_text())
    content["pairs"][1] = {key: value for key, value in (content["pairs"][1] | change).items() if value is not None}
    lines = [json.dumps(row) for row in content["pairs"]]
    (tmp_path / "pairs.json").write_text('{"pairs": [' + "\n" * 15 + lines[0] + ",\n" + lines[1] + "]}")
    (tmp_path / "images").symlink_to(data / LISTED / "images")
    with pytest.raises(InputError) as caught:
        PairList(tmp_path).pairs()
    assert all(word in str(caught.value) for word in ["pairs.json", *words]), caught.value
    (tmp_path / "pairs.json").write_text("[]")
    with pytest.raises(InputError, match='list "pairs"'):
        PairList(tmp_path).pairs()


# ----------------------------------------------------------------------------------------------------------------
# Intervals


def test_what_a_pair_adds_is_what_the_measure_is_the_mean_of():
    errors = np.array([[1.0, 2.0], [7.0, 3.0], [np.inf, np.inf]])
    area, share = gain_of("AUC@5"), gain_of("10cm/5deg")
    assert area is not None and area(errors).tolist() == [0.8, 0, 0]
    assert share is not None and share(errors).tolist() == [1, 1, 0]
    assert gain_of("median cm") is None


def test_intervals_have_the_width_of_the_central_limit_theorem():
    gain = np.repeat([0.0, 1.0], 200)
    mean, low, high = interval(gain)
    assert mean == 0.5 and high - mean == pytest.approx(1.96 * 0.5 / 20, rel=0.1) == mean - low
    assert interval(np.full(7, 0.25)) == (0.25, 0.25, 0.25)


def record(scene: str, method: str, errors: dict) -> dict:
    job = Job("two-view", "pairs", ".", scene, method, "default", "known", "pairs")
    return {
        "job": job.as_json(), "status": "ok", "measures": {"AUC@5": 0.5, "AUC@20": 0.5}, "stages": {}, "curve": [],
        "num_images": 2, "num_registered": 2, "num_pairs": 2, "num_strangers": 0, "peak_memory_mb": 1.0,
        "errors": errors,
    }  # fmt: skip


def test_methods_are_compared_pair_by_pair():
    records = [
        record("a", "ours", {"1": [1.0], "2": [2.0]}),
        record("a", "magsac", {"2": [3.0], "1": [2.0], "3": [0.0]}),
        record("b", "ours", {"1": [0.0]}),
        record("b", "magsac", {"1": [None]}),
    ]
    header, body = paired_table(RECIPE, records)
    assert header == ["scene", "variant", "method", "pairs", "AUC@5", "AUC@20"]
    assert body == [
        ["a", "default", "ours", "2", "+0.200 [+0.200, +0.200]", "+0.050 [+0.050, +0.050]"],
        ["b", "default", "ours", "1", "+1.000 [+1.000, +1.000]", "+1.000 [+1.000, +1.000]"],
        ["all", "default", "ours", "3", body[2][4], body[2][5]],
    ]
    assert body[2][4].startswith("+0.467 [")
    text = markdown(RECIPE, records, [])
    assert "## Minus magsac, with paired-bootstrap 95 % intervals" in text and "mean over all pairs" in text
