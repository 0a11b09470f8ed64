"""Recipes, runs in other processes, tables, plots and comparisons."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import HANG_S
from PIL import Image

from mbasfm.bench.jobs import Job, choose_scenes, make_jobs
from mbasfm.bench.published import PublishedTable, load_published
from mbasfm.bench.recipe import Recipe, Subsets, Variant, list_recipes, load_recipe, parse_recipe
from mbasfm.bench.results.compare import compare, only_in_one
from mbasfm.bench.results.page import render_bench
from mbasfm.bench.results.summary import means, summarise
from mbasfm.bench.results.tables import markdown, ours_against_best, pivots, run_table, stage_table, time_ratios
from mbasfm.bench.runner import Results, run_job, run_jobs
from mbasfm.bench.tasks.registry import TASKS
from mbasfm.cli import main
from mbasfm.datasets.plain import Plain
from mbasfm.datasets.registry import DATASETS
from mbasfm.errors import ConfigError, InputError
from mbasfm.evaluation.protocols import PROTOCOLS
from mbasfm.evaluation.score_files import CURVE_DEG
from mbasfm.geometry.rigid import exp_se3, orthonormalize
from mbasfm.synthetic.cameras import make_cameras, render
from mbasfm.synthetic.solids import make_scene

NUM_FRAMES = 5


def write_scene(folder: Path, images: list[Image.Image], poses: np.ndarray, camera: dict) -> None:
    """In the plain form."""
    (folder / "images").mkdir(parents=True)
    rows = {}
    for number, (image, pose) in enumerate(zip(images, poses, strict=True)):
        image.save(folder / "images" / f"{number:03d}.png")
        rows[f"{number:03d}.png"] = camera | {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
    (folder / "gt.json").write_text(json.dumps({"images": rows}))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes in the plain form, of empty pictures; of the second no intrinsics are known."""
    folder = tmp_path_factory.mktemp("data")
    poses = exp_se3(torch.randn(NUM_FRAMES, 6, dtype=torch.float64)).numpy()
    pictures = [Image.new("RGB", (64, 48))] * NUM_FRAMES
    write_scene(folder / "made", pictures, poses, {"K": [60, 60, 32, 24], "width": 64, "height": 48})
    write_scene(folder / "other", pictures, poses, {})
    return folder


@pytest.fixture(scope="module")
def photographed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of a made-up thing."""
    folder, scene = tmp_path_factory.mktemp("photographed"), make_scene("object", 0)
    truth = make_cameras(scene, NUM_FRAMES, 0)
    pictures = [Image.fromarray(render(scene, truth, frame)[0].numpy()) for frame in range(NUM_FRAMES)]
    center = truth.intrinsics.center[0].tolist()
    camera = {"K": [*truth.intrinsics.focal[0].tolist(), *center], "width": 640, "height": 480}
    poses = truth.cam_from_world.double().clone()
    poses[..., :3] = orthonormalize(poses[..., :3])
    write_scene(folder / "made", pictures, poses.numpy(), camera)
    return folder


RECIPE = Recipe("small", "Small", "plain", measures=("AUC@5", "registered"), variants=(Variant("known", "known"),))


def jobs_of(recipe: Recipe, data: Path, scenes=("made",), methods=("ours",)) -> list[Job]:
    return list(make_jobs(recipe, Plain(data), scenes, methods))


# ----------------------------------------------------------------------------------------------------------------
# Recipes


def test_every_recipe_of_the_package_is_complete():
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    tables = "eth3d eth3d-auc imc2021 tanks-and-temples scannet 7scenes wayspots two-view fastmap eth3d-ablation"
    others = "eth3d-depth scannet-grid eth3d-pairs runtime photos"
    assert set(f"{tables} {others}".split()) <= set(recipes)
    for recipe in recipes.values():
        assert recipe.protocol in PROTOCOLS
        assert recipe.dataset in DATASETS
        tables = [table for name in recipe.published for table in load_published(name)]
        if recipe.published:
            assert any(measure in table.columns for table in tables for measure in recipe.measures)
        assert set(recipe.methods) <= set(TASKS[recipe.task].methods)
        assert all(set(variant.methods) <= set(recipe.methods) for variant in recipe.variants)
        assert not recipe.paired or recipe.paired in recipe.methods
        assert not recipe.rival or recipe.rival in recipe.measures
        for table in tables:
            if recipe.scenes and len(table.rows) > 5 and recipe.name != "runtime":
                assert set(recipe.scenes) <= set(table.rows), "scenes and published rows have the same names"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"title": "x", "dataset": "plain", "seed": 3}, "did you mean 'seeds'"),
        ({"title": "x", "dataset": "plain", "protocol": "eth"}, "no protocol is named"),
        ({"title": "x"}, "needs a title and a dataset"),
        ({"title": "x", "dataset": "plain", "settings": {"polsh": True}}, "did you mean 'polish'"),
        ({"title": "x", "dataset": "plain", "variants": [{"name": "a", "intrinsic": 1}]}, "variant 1.*'intrinsics'"),
        ({"title": "x", "dataset": "plain", "variants": [{"name": "a, b"}]}, "'a, b' has a comma"),
        ({"title": "x", "dataset": "plain", "subsets": {"size": [3]}}, "did you mean 'sizes'"),
    ],
)
def test_a_wrong_recipe_is_explained(content, words):
    with pytest.raises(ConfigError, match=words):
        parse_recipe(content, "x", "x.toml")


def test_a_recipe_may_be_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text('title = "Mine"\ndataset = "plain"\n[subsets]\nkind = "bags"\nsizes = [3]\n')
    assert load_recipe(str(tmp_path / "mine.toml")).subsets == Subsets("bags", (3,))
    with pytest.raises(ConfigError, match="mba bench list"):
        load_recipe("nothing")


# ----------------------------------------------------------------------------------------------------------------
# Published figures


def test_published_figures_are_those_of_the_paper():
    (eth3d,) = load_published("eth3d_accuracy")
    assert eth3d.value("relief_2", "MASt3R-SfM", "RTA@5 folded") == pytest.approx(0.761)
    assert eth3d.value("mean", "MBA", "RRA@5") == pytest.approx(0.973)
    # The mean of the scenes is the mean that the paper prints, but where the data say that it is not.
    for table in (eth3d, *load_published("eth3d_depth"), *load_published("7scenes"), *load_published("wayspots")):
        for method in (
            name for name in table.methods if name not in ("MBA", "MBA, DUSt3R") or "cm" in str(table.columns)
        ):
            for number, column in enumerate(table.columns):
                values = [row[method][number] for scene, row in table.rows.items() if scene != "mean"]
                # 7-Scenes is rounded to whole centimetres, and so are the means that some rows print.
                rounding = 0.45 if column == "median cm" else 0.06
                assert np.mean(values) == pytest.approx(table.rows["mean"][method][number], abs=rounding), (
                    method,
                    column,
                )
    (fastmap,) = load_published("fastmap")
    assert fastmap.value("eyeful/kitchen", "COLMAP", "RTA@3") == "timeout"
    assert fastmap.value("mipnerf360", "MBA", "AUC-R&T rounded@3") == pytest.approx(0.855)


def test_contradictions_of_the_paper_are_told():
    notes = {name: " ".join(note for table in load_published(name) for note in table.notes)
             for name in ("7scenes", "eth3d_ablation", "tanks_and_temples")}  # fmt: skip
    assert "cm/deg" in notes["7scenes"]
    assert "98.0 / 91.3" in notes["eth3d_ablation"]
    assert "75.8" in notes["tanks_and_temples"]


def test_published_figures_of_one_variant_stand_beside_all_others():
    one, other = load_published("scannet")
    (only,) = load_published("scannet:uncalibrated")
    assert other.variant == "uncalibrated" and only == replace(other, variant="") and one.variant == "calibrated"


def test_unknown_published_figures():
    with pytest.raises(ConfigError, match="no published figures"):
        load_published("eth")


# ----------------------------------------------------------------------------------------------------------------
# Jobs


def test_jobs_are_the_product_of_scenes_variants_seeds_and_methods(data):
    variants = (Variant("known", "known", methods=("ours",)), Variant("unknown", skip=("other",)))
    recipe = replace(RECIPE, seeds=2, variants=variants, settings={"polish": False})
    jobs = jobs_of(recipe, data, ("made", "other"), ("ours", "colmap"))
    assert len(jobs) == 2 * (1 + 2) + 2 * 1
    assert len({job.key for job in jobs}) == len(jobs)
    assert Job.from_json(json.loads(json.dumps(jobs[0].as_json()))) == jobs[0]
    assert all(job.settings == {"polish": False} for job in jobs)


def test_bags_are_drawn_and_stay_the_same(data):
    recipe = replace(RECIPE, subsets=Subsets("bags", (3, 4, 10), draws=4))
    jobs = jobs_of(recipe, data)
    assert [len(job.names) for job in jobs] == [3] * 4 + [4] * 4  # there are no ten
    assert [job.names for job in jobs] == [job.names for job in jobs_of(recipe, data)]
    assert {job.group for job in jobs} == {"3", "4"}
    thirds = jobs_of(replace(RECIPE, subsets=Subsets("thirds")), data)
    assert sorted(name for job in thirds for name in job.names) == [f"{k:03d}.png" for k in range(NUM_FRAMES)]


def test_strangers_come_from_other_places(data):
    recipe = replace(RECIPE, subsets=Subsets("strangers", strangers=2))
    jobs = jobs_of(recipe, data, ("made", "other"))
    assert [len(job.strangers) for job in jobs] == [2, 2]
    assert jobs_of(recipe, data, ("made",)) == jobs[:1]
    same = replace(RECIPE, subsets=Subsets("strangers", same_place=("made", "other")))
    assert not jobs_of(same, data, ("made", "other"))[0].strangers


def test_scenes_are_chosen(data):
    assert choose_scenes(RECIPE, Plain(data), ()) == ("made", "other")
    assert choose_scenes(replace(RECIPE, scenes=("made", "else")), Plain(data), ()) == ("made",)
    with pytest.raises(InputError, match="no scene is named x; there are made, other"):
        choose_scenes(RECIPE, Plain(data), ("x",))
    with pytest.raises(InputError, match="none of x is there"):
        choose_scenes(replace(RECIPE, scenes=("x",)), Plain(data), ())


# ----------------------------------------------------------------------------------------------------------------
# Runs


def test_a_crash_is_a_failure_with_a_reason_and_all_wrong(data, tmp_path):
    (job,) = jobs_of(RECIPE, data, ("other",))
    record = run_job(job, Results(tmp_path), HANG_S)  # there are no intrinsics that could be known
    assert record["status"].startswith("ended with code 2: ") and "no intrinsics of 000.png" in record["status"]
    assert record["measures"]["AUC@5"] == 0 and record["num_registered"] == 0 and record["num_images"] == NUM_FRAMES


def test_a_run_that_takes_too_long_is_stopped(data, tmp_path):
    (job,) = jobs_of(RECIPE, data)
    assert run_job(job, Results(tmp_path), 0.01)["status"].startswith("stopped after 0.01 s")


@pytest.mark.slow
def test_methods_side_by_side(photographed, tmp_path, capsys):
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'title = "Small"\ndataset = "plain"\nmeasures = ["AUC@5"]\n[settings]\ndepth = "flat"\nmatcher = "sift"\n'
        '[[variants]]\nname = "known"\nintrinsics = "known"\n'
    )
    output = tmp_path / "results"
    command = [
        "bench",
        str(recipe),
        "--data",
        str(photographed),
        "--scenes",
        "made",
        "--methods",
        "ours,colmap",
        "--output",
    ]
    assert main([*command, str(output)]) == 0
    first = capsys.readouterr().out
    assert "(kept)" not in first and "index.html" in first
    records = {record["job"]["method"]: record for record in Results(output).all()}
    for record in records.values():
        assert record["status"] == "ok" and record["measures"]["AUC@5"] > 0.8, record["status"]
        assert record["version"] and record["machine"]["cores"] and record["peak_memory_mb"] > 100
    assert {"features", "matching", "adjust", "polish"} <= set(records["ours"]["stages"])
    assert {"features", "matching", "verify", "map"} == set(records["colmap"]["stages"])
    assert "| made |" in (output / "table.md").read_text()
    (output / "runs" / f"{Job.from_json(records['ours']['job']).key}.json").unlink()
    assert main([*command, str(output)]) == 0  # finds features and matches in the cache, but counts their seconds
    again = {record["job"]["method"]: record for record in Results(output).all()}["ours"]
    assert again["stages"]["features"] >= records["ours"]["stages"]["features"]
    assert again["measures"] == pytest.approx(records["ours"]["measures"])
    capsys.readouterr()
    assert main([*command, str(output)]) == 0
    assert capsys.readouterr().out.count("(kept)") == 2
    assert main(["bench", "compare", str(output), str(output)]) == 0
    assert "2 compared: 0 higher, 0 lower, 2 the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["photos"], "needs --data"),
        (["7scenes", "--data", "."], "no scene of 7-Scenes"),
        (["7scenes", "--data", ".", "--methods", "colmap"], "there are ours, ours-independent"),
        (["photos", "--data", ".", "--methods", "hloc"], "no method is named 'hloc'"),
        (["photos", "--data", ".", "--variants", "x"], "there are calibrated, uncalibrated"),
        (["photos", "--data", "/nowhere"], "/nowhere is missing"),
        (["compare", "a"], "needs two results folders"),
        (["compare", "/nowhere/a", "/nowhere/b"], "no results in it"),
    ],
)
def test_wrong_options_are_explained(arguments, words, capsys):
    assert main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------------
# Tables and comparisons, from records made by hand


def record(scene="a", method="ours", variant="known", seed=0, value=0.5, **changes) -> dict:
    job = Job("sfm", "plain", ".", scene, method, variant, "known", "default", seed)
    found = {
        "job": job.as_json(), "version": "1", "machine": {"cores": 2, "system": "x"}, "status": "ok",
        "measures": {"AUC@5": value, "registered": 1.0, "ATE": None}, "stages": {"features": 8.0, "map": 2.0},
        "num_images": 10, "num_registered": 10, "num_pairs": 45, "num_strangers": 0, "peak_memory_mb": 100.0,
        "curve": [value] * len(CURVE_DEG), "wall_seconds": 10.0,
    }  # fmt: skip
    return found | changes


def test_rows_are_means_over_seeds():
    records = [record(value=0.4), record(seed=1, value=0.6, stages={"features": 8.0, "map": 4.0})]
    (row,) = summarise(records)
    assert row.measures["AUC@5"] == pytest.approx(0.5) and row.measures["ATE"] is None
    assert row.seconds == pytest.approx(8 + 3) and row.mapping_seconds == pytest.approx(3)
    assert row.runs == 2 and row.failed == 0 and row.registered == "10/10"


def test_seconds_are_told_stage_by_stage():
    records = [
        record(),
        record(seed=1, stages={"features": 8.0, "retry": 4.0}),
        record(method="glomap", stages={"map": 3.0}),
    ]
    header, body = stage_table(summarise(records))
    assert header == ["scene", "variant", "method", "features", "map", "retry"]
    assert body == [["a", "known", "ours", "8.0", "1.0", "2.0"], ["a", "known", "glomap", "", "3.0", ""]]


def test_strangers_are_counted_where_there_are_any():
    mixed = record(num_strangers=0)
    mixed["job"]["strangers"] = ["/x.jpg"]
    header, body = run_table(summarise([mixed]), means(RECIPE, [mixed]))
    assert body[0][header.index("strangers")] == "0" == body[1][header.index("strangers")]
    assert "strangers" not in run_table(summarise([record()]), ())[0]


def test_failures_count():
    failed = record(seed=1, value=0.0, status="ended", num_registered=0, stages={}, curve=[0.0] * len(CURVE_DEG))
    del failed["peak_memory_mb"]
    (row,) = summarise([record(value=0.8), failed])
    assert row.measures["AUC@5"] == pytest.approx(0.4)
    assert row.failed == 1 and row.registered == "0/10" and row.seconds == pytest.approx(10)


def test_means_over_scenes_and_over_pairs():
    records = [record("a", value=1.0, num_pairs=10), record("b", value=0.0, num_pairs=30)]
    assert means(RECIPE, records)[-1].measures["AUC@5"] == pytest.approx(0.5)
    pooled = replace(RECIPE, protocol="imc2021")
    assert means(pooled, records)[-1].measures["AUC@5"] == pytest.approx(0.25)


def test_a_measure_that_a_failure_lacks_is_not_known_over_all_pairs():
    failed = record("b", value=0.0, status="ended")
    del failed["measures"]["registered"]
    found = means(replace(RECIPE, protocol="imc2021"), [record("a", value=1.0), failed])[-1].measures
    assert found["AUC@5"] == pytest.approx(0.5) and found["registered"] is None


def test_bags_of_several_sizes_have_a_mean_over_all_bags():
    records = []
    for size, pairs, value in (("3", 3, 1.0), ("5", 10, 0.0)):
        bag = record("a", value=value, num_pairs=pairs)
        bag["job"] |= {"group": size, "subset": f"{size} bag 0", "names": ["x"]}
        records.append(bag)
    assert [row.group for row in means(RECIPE, records)] == ["3", "5", "all"]
    assert means(RECIPE, records)[-1].measures["AUC@5"] == pytest.approx(0.5)
    assert means(replace(RECIPE, protocol="imc2021"), records)[-1].measures["AUC@5"] == pytest.approx(3 / 13)
    assert summarise(records)[0].seconds is None  # features were computed for the whole scene
    mean = PublishedTable("T", "a paper", ("AUC@5",), {"mean": {"MBA": (0.7,)}})
    (_, _, body), *_ = pivots(RECIPE, summarise(records), means(RECIPE, records), [mean])
    assert [row[-1] for row in body] == ["", "", "", "", "0.700"]  # published over all sizes only


def test_datasets_with_parts_have_means_of_each():
    records = [record("x/a", value=1.0), record("x/b", value=0.5), record("y/c", value=0.0)]
    found = {row.scene: row.measures["AUC@5"] for row in means(RECIPE, records)}
    assert found == pytest.approx({"x": 0.75, "y": 0.0, "mean": 0.5})
    assert list(found)[-1] == "mean"


PUBLISHED = PublishedTable("T", "a paper", ("AUC@5",), {"a": {"MBA": (70.0,)}, "mean": {"MBA": ("crash",)}}, scale=0.01)


def test_published_figures_stand_beside_and_are_marked():
    records = [record("a"), record("b"), record("a", "colmap", value=0.25)]
    rows, totals = summarise(records), means(RECIPE, records)
    title, header, body = pivots(replace(RECIPE, measures=("AUC@5",)), rows, totals, [PUBLISHED])[0]
    assert title == "AUC@5, known"
    assert header == ["scene", "ours", "colmap", "MBA (published)"]
    assert body == [["a", "0.500", "0.250", "0.700"], ["b", "0.500", "", ""], ["mean", "0.500", "0.250", "crash"]]
    text = markdown(RECIPE, records, [PUBLISHED])
    assert "| a | 0.500 | 0.250 | 0.700 |" in text and "a paper" in text


def test_a_mean_over_some_scenes_does_not_stand_beside_a_published_one():
    recipe = replace(RECIPE, scenes=("a", "b", "c"), measures=("AUC@5",))
    records = [record("a"), record("b")]
    (_, _, body), *_ = pivots(recipe, summarise(records), means(recipe, records), [PUBLISHED])
    assert body == [["a", "0.500", "0.700"], ["b", "0.500", ""], ["mean of 2 of 3 scenes", "0.500", ""]]


def test_ours_against_the_best_of_the_others():
    faster = record("a", "glomap", value=0.25, stages={"features": 2.0, "verify": 1.0, "map": 1.0})
    records = [record("a", value=0.5), record("a", "colmap", value=0.375), faster]
    rows = summarise(records)
    _, body = ours_against_best(replace(RECIPE, measures=("AUC@5", "seconds")), rows)
    assert body[0] == ["a", "known", "ours", "AUC@5", "0.500", "0.375", "+0.125", "1.33", "colmap"]
    assert body[1] == ["a", "known", "ours", "seconds", "10.000", "4.000", "+6.000", "2.50", "glomap"]  # less is better
    assert time_ratios(rows) == "Time of ours over the fastest of the others: all stages 2.50, mapping 2.00."
    assert "Ours against" in markdown(RECIPE, records, []) and "Ours against" not in markdown(RECIPE, records[:1], [])


def test_the_page_is_complete_and_loads_nothing():
    failed = record("b", "<colmap>", value=0.0, status="ended: <script>", num_registered=0, stages={})
    records = [record("a"), record("b", num_images=20), record("a", "<colmap>"), failed]
    page = render_bench(RECIPE, records, [PUBLISHED])
    assert "://" not in page and "src=" not in page
    assert "<script" not in page and "&lt;script&gt;" in page
    assert page.count("<polyline") == 2 and page.count("<circle") == 3
    assert "class=published" in page and "counted as all wrong" in page


def test_what_moved():
    before = [record("a", value=0.5), record("b", value=0.5), record("c", value=0.5)]
    after = [record("a", value=0.7), record("b", value=0.501), record("d", value=0.5)]
    moves = compare(before, after, ("AUC@5", "ATE"))
    assert [(move.scene, move.is_beyond_noise) for move in moves] == [("a", True), ("b", False)]
    one, other = only_in_one(before, after)
    assert [key[0] for key in one] == ["c"] and [key[0] for key in other] == ["d"]


def test_what_moves_by_itself_is_noise():
    before = [record(seed=seed, value=0.5) for seed in range(4)]
    noisy = [record(seed=seed, value=value) for seed, value in enumerate((0.6, 0.4, 0.64, 0.4))]
    steady = [record(seed=seed, value=value) for seed, value in enumerate((0.51, 0.512, 0.508, 0.51))]
    assert not compare(before, noisy, ("AUC@5",))[0].is_beyond_noise
    assert compare(before, steady, ("AUC@5",))[0].is_beyond_noise


def test_results_survive_a_kill_and_notice_other_settings(tmp_path, data):
    (job,) = jobs_of(RECIPE, data)
    results = Results(tmp_path)
    results.write(job, {"job": job.as_json(), "status": "ok", "measures": {"ATE": float("nan")}})
    found = results.read(job)
    assert found is not None and found["measures"]["ATE"] is None
    assert [is_new for _, _, is_new in run_jobs([job], results, 1.0, retry=True)] == [False]
    assert results.read(replace(job, settings={"polish": False})) is None
    (tmp_path / "runs" / f"{job.key}.json").write_text('{"job": ')
    assert results.read(job) is None
