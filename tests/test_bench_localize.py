"""The task of re-localization: photographs of a made-up corner, ours and the classical pipeline side by side."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corner import FOCAL, MAP, QUERIES, SIZE, see
from helpers import HANG_S
from PIL import Image

from mbasfm.bench.jobs import Job, make_jobs
from mbasfm.bench.recipe import Recipe, Subsets, Variant, load_recipe, parse_recipe
from mbasfm.bench.results.tables import markdown
from mbasfm.bench.runner import Results, run_job
from mbasfm.bench.tasks.localization import METHODS, Relocalization
from mbasfm.datasets.plain import Plain
from mbasfm.errors import ConfigError, InputError

CAMERA = {"K": [FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2], "width": SIZE[0], "height": SIZE[1]}
SENSOR = Variant("sensor", "known", settings={"depth": "files:{depth}"})
RECIPE = Recipe(
    "corner",
    "Corner",
    "plain",
    task="localize",
    protocol="localization",
    measures=("5cm/5deg", "median cm"),
    variants=(SENSOR,),
    settings={"matcher": "sift"},
)


def write(folder: Path, poses: dict, seed: int, lists: dict | None, has_depth: bool) -> None:
    """In the plain form."""
    rows = {}
    for sub in ("images", "depth") if has_depth else ("images",):
        (folder / sub).mkdir(parents=True)
    for name, pose in poses.items():
        image, depth = see(pose, seed)
        Image.fromarray(image).save(folder / "images" / name)
        if has_depth:
            np.save(folder / "depth" / name.replace("png", "npy"), depth.astype(np.float32))
        rows[name] = CAMERA | {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
    (folder / "gt.json").write_text(json.dumps({"images": rows}))
    if lists:
        (folder / "reloc.json").write_text(json.dumps(lists))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A room whose map is part of it, queries whose map is another folder, and another place."""
    folder = tmp_path_factory.mktemp("data")
    write(folder / "room", MAP | QUERIES, 0, {"map": list(MAP), "query": list(QUERIES)}, True)
    elsewhere = {"map_dir": "../room", "map": list(MAP), "query": list(QUERIES)}
    write(folder / "visit", QUERIES, 0, elsewhere, False)
    write(folder / "away", {f"away-{name}": pose for name, pose in QUERIES.items()}, 1, None, False)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Features, matches and depth, found again by all tests but the first."""
    return tmp_path_factory.mktemp("cache")


def job_of(data: Path, method: str, scene: str = "visit", recipe: Recipe = RECIPE) -> Job:
    (job,) = make_jobs(recipe, Plain(data), (scene,), (method,))
    return job


def test_the_map_may_be_another_scene(data):
    visit, room = Plain(data).load("visit"), Plain(data).load("room")
    assert visit.map.names == room.map.names == tuple(MAP) and visit.map.depth == data / "visit" / "../room" / "depth"
    assert visit.queries.names == room.queries.names == tuple(QUERIES)
    with pytest.raises(InputError, match="away: the dataset does not say which of its images are the map"):
        _ = Plain(data).load("away").map


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_queries(data, cache, tmp_path, method):
    outcome = Relocalization().run(job_of(data, method), tmp_path, cache)
    assert outcome.num_registered == outcome.num_images == len(QUERIES)
    assert outcome.measures["median cm"] < 2 and outcome.measures["median deg"] < 0.3
    assert outcome.measures["5cm/5deg"] == 1 and outcome.measures["beyond 50cm/30deg"] == 0
    assert set(outcome.errors) == set(QUERIES) and max(cm for cm, _ in outcome.errors.values()) < 5
    assert ("median latency s" in outcome.measures) == (method == "ours-resident")
    assert {"map features", "map depth"} <= set(outcome.stages)


def test_without_a_sensor_depth_is_triangulated(data, cache, tmp_path):
    recipe = replace(RECIPE, variants=(Variant("none", "known", settings={"depth": "flat"}),))
    outcome = Relocalization().run(job_of(data, "ours-independent", recipe=recipe), tmp_path, cache)
    assert outcome.num_registered == len(QUERIES) and outcome.measures["median cm"] < 3


def test_strangers_are_queries_of_other_places(data, cache, tmp_path):
    recipe = replace(RECIPE, subsets=Subsets("strangers", strangers=2, places=("room", "visit", "away"),
                                             same_place=("room", "visit")))  # fmt: skip
    job = job_of(data, "ours", recipe=recipe)
    assert [Path(path).name for path in job.strangers] == ["away-a.png", "away-b.png"]
    outcome = Relocalization().run(job, tmp_path, cache)
    assert outcome.num_registered == len(QUERIES) and outcome.num_strangers == 0 and "strangers" not in outcome.errors


def test_a_failure_is_no_pose_at_all(data, tmp_path):
    (job,) = make_jobs(replace(RECIPE, variants=(SENSOR,)), Plain(data), ("room",), ("ours",))
    record = run_job(replace(job, settings={"depth": "files:{depth}", "matcher": "nothing"}), Results(tmp_path), HANG_S)
    assert record["status"].startswith("ended with code 2") and "nothing" in record["status"]
    assert record["measures"]["5cm/5deg"] == 0 and record["num_images"] == len(QUERIES)
    assert record["errors"] == {name: (float("inf"), float("inf")) for name in QUERIES}


def test_unknown_intrinsics_are_no_task_for_the_classical_pipeline(data, cache, tmp_path):
    recipe = replace(RECIPE, variants=(replace(SENSOR, intrinsics="unknown"),))
    with pytest.raises(InputError, match="no intrinsics, which the classical pipeline needs"):
        Relocalization().run(job_of(data, "colmap-lifted-4px", recipe=recipe), tmp_path, cache)


def test_no_sensor_is_said_so(data, cache, tmp_path):
    (data / "blind").mkdir()
    write(data / "blind", MAP, 0, {"map": list(MAP)[:4], "query": list(MAP)[4:]}, False)
    with pytest.raises(InputError, match="blind: the dataset has no sensor depth of the map"):
        Relocalization().run(job_of(data, "ours", "blind"), tmp_path, cache)


def test_settings_of_the_recipe_are_those_of_localization():
    content = {"title": "x", "dataset": "plain", "task": "localize", "settings": {"map_neighbors": 3}}
    with pytest.raises(ConfigError, match="did you mean 'map_neighbours'"):
        parse_recipe(content, "x", "x.toml")


def test_the_rival_is_chosen_as_a_whole():
    recipe = load_recipe("photos-localize")
    records = []
    values = {"ours": (0.9, 2.0), "ours-independent": (0.8, 1.0), "colmap-a": (0.9, 3.0), "colmap-b": (0.5, 1.0)}
    for method, (recall, median) in values.items():
        job = Job("localize", "plain", ".", "a", method, "sensor depth", "known", "localization")
        records.append(
            {
                "job": job.as_json(), "status": "ok", "measures": {"5cm/5deg": recall, "median cm": median},
                "stages": {"register": 1.0}, "num_images": 2, "num_registered": 2, "num_pairs": 1, "num_strangers": 0,
                "peak_memory_mb": 1.0, "curve": [], "errors": {},
            }
        )  # fmt: skip
    text = markdown(recipe, records, [])
    assert "| a | sensor depth | ours | median cm | 2.000 | 3.000 | -1.000 | 0.67 | colmap-a |" in text
    assert "| a | sensor depth | ours-independent | 5cm/5deg | 0.800 | 0.900 | -0.100 | 0.89 | colmap-a |" in text
