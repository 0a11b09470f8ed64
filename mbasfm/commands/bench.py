"""`mba bench`: methods over a dataset side by side, and two such results compared."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from mbasfm.bench.jobs import choose_scenes, make_jobs
from mbasfm.bench.published import load_published
from mbasfm.bench.recipe import Recipe, Variant, check_settings, list_recipes, load_recipe
from mbasfm.bench.results.compare import compare, only_in_one
from mbasfm.bench.results.page import render_bench
from mbasfm.bench.results.summary import means, summarise
from mbasfm.bench.results.tables import markdown, value_text
from mbasfm.bench.runner import Record, Results, run_jobs
from mbasfm.bench.tasks.registry import find_task
from mbasfm.datasets.registry import open_dataset
from mbasfm.errors import ConfigError

A_DAY = 86_400.0
FILE_WIDTH = 200
"""Width of a table that does not go to a terminal."""


@dataclass(frozen=True)
class Bench:
    """Run a benchmark, list the recipes (`mba bench list`) or say what moved (`mba bench compare BEFORE AFTER`)."""

    task: tyro.conf.Positional[str]
    """Name of a recipe, a recipe's TOML file, `list` or `compare`."""
    folders: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Only for `compare`: two results folders."""
    data: Path | None = None
    """Folder with the dataset, as published."""
    output: Path | None = None
    """Results folder; by default bench/TASK. What it holds already is not done again."""
    methods: str = ""
    """Only these, separated by commas: ours, colmap, glomap."""
    scenes: str = ""
    """Only these, separated by commas."""
    variants: str = ""
    """Only these, separated by commas."""
    depth: str | None = None
    """Depth model of ours, where the recipe does not say: NAME or NAME:ARGUMENT."""
    matcher: str | None = None
    """Matcher of ours, where the recipe does not say."""
    seeds: int | None = None
    """Runs of everything; the recipe's number by default."""
    draws: int | None = None
    """Bags of each size."""
    timeout: float = A_DAY
    """Seconds after which a run counts as failed."""
    retry: bool = False
    """Run again what failed before."""

    def run(self) -> int:
        """Run what the task says; returns the exit code."""
        if self.task == "list":
            return _list()
        if self.task == "compare":
            return _compare(self.folders)
        recipe = self._recipe()
        if self.data is None:
            raise ConfigError(f"{self.task} needs --data, the folder with the dataset {recipe.dataset!r}")
        return self._run(recipe, self.data)

    def _recipe(self) -> Recipe:
        """The recipe with what the command line changes."""
        recipe = load_recipe(self.task)
        given = {key: value for key, value in (("depth", self.depth), ("matcher", self.matcher)) if value is not None}
        recipe = replace(
            recipe,
            settings={**given, **recipe.settings},
            seeds=recipe.seeds if self.seeds is None else self.seeds,
            subsets=recipe.subsets if self.draws is None else replace(recipe.subsets, draws=self.draws),
            variants=_chosen(recipe.variants, _words(self.variants)),
        )
        check_settings(recipe, self.task)
        known = find_task(recipe.task).methods
        methods = _words(self.methods) or recipe.methods
        unknown = next((name for name in methods if name not in known), None)
        if unknown is not None:
            raise ConfigError(f"no method is named {unknown!r} for {recipe.task!r}; there are {', '.join(known)}")
        return replace(recipe, methods=methods)

    def _run(self, recipe: Recipe, data: Path) -> int:
        dataset = open_dataset(recipe.dataset, data)
        scenes = choose_scenes(recipe, dataset, _words(self.scenes))
        jobs = list(make_jobs(recipe, dataset, scenes, recipe.methods))
        results = Results(self.output or Path("bench") / recipe.name)
        try:
            results.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{results.folder}: cannot be written ({error}); choose another --output") from error
        (results.folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1), encoding="utf-8")
        console, records = _console(), []
        for number, (_, record, is_new) in enumerate(run_jobs(jobs, results, self.timeout, self.retry), 1):
            records.append(record)
            console.print(
                f"{number}/{len(jobs)} {_line(record, recipe)}{'' if is_new else ' (kept)'}",
                highlight=False,
                soft_wrap=True,
            )
            write_tables(recipe, records, results.folder)
        _show(recipe, records, console)
        console.print(f"look at {results.folder / 'index.html'}", highlight=False, soft_wrap=True)
        return 0


def write_tables(recipe: Recipe, records: list[Record], folder: Path) -> None:
    """Write table.md and index.html; called after every run, so that a long benchmark can be watched."""
    published = [table for name in recipe.published for table in load_published(name)]
    (folder / "table.md").write_text(markdown(recipe, records, published), encoding="utf-8")
    (folder / "index.html").write_text(render_bench(recipe, records, published), encoding="utf-8")


def _console() -> Console:
    """Console that does not cut names to 80 columns in a file or a pipe."""
    return Console() if Console().is_terminal else Console(width=FILE_WIDTH)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _chosen(variants: tuple[Variant, ...], names: tuple[str, ...]) -> tuple[Variant, ...]:
    unknown = next((name for name in names if name not in [variant.name for variant in variants]), None)
    if unknown is not None:
        there = ", ".join(variant.name for variant in variants)
        raise ConfigError(f"no variant is named {unknown!r}; there are {there}")
    return tuple(variant for variant in variants if not names or variant.name in names)


def _line(record: Record, recipe: Recipe) -> str:
    job = record["job"]
    parts = [part for part in (job["scene"], job["subset"], job["variant"], job["method"]) if part != "all"]
    if record["status"] != "ok":
        return f"{', '.join(parts)}: failed, {record['status']}"
    values = " ".join(f"{name} {value_text(record['measures'].get(name))}" for name in recipe.measures)
    counts = f"{record['num_registered']}/{record['num_images']}"
    return f"{', '.join(parts)}: {counts} {values}, {sum(record['stages'].values()):.1f} s"


def _show(recipe: Recipe, records: list[Record], console: Console) -> None:
    rows = summarise(records)
    table = Table("scene", "variant", "method", "registered", *recipe.measures, "s", box=box.SIMPLE_HEAD)
    for row in (*rows, *means(recipe, records)):
        place = row.scene if row.group == "all" else f"{row.scene}, {row.group}"
        values = [value_text(row.measures.get(name)) for name in recipe.measures]
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        table.add_row(place, row.variant, row.method, row.registered, *values, seconds)
    console.print(table)


def _list() -> int:
    table = Table("recipe", "title", "dataset", "methods", box=box.SIMPLE_HEAD)
    for recipe in list_recipes():
        table.add_row(recipe.name, recipe.title, recipe.dataset, ", ".join(recipe.methods))
    _console().print(table)
    return 0


def _compare(folders: tuple[Path, ...]) -> int:
    if len(folders) != 2:
        raise ConfigError("compare needs two results folders: mba bench compare BEFORE AFTER")
    before, after = (Results(folder).all() for folder in folders)
    recipe = json.loads((folders[1] / "recipe.json").read_text(encoding="utf-8"))
    moves = compare(before, after, recipe["measures"])
    moved = [move for move in moves if move.is_beyond_noise]
    console = _console()
    table = Table("scene", "variant", "method", "measure", "before", "after", "difference", "±", box=box.SIMPLE_HEAD)
    for move in moved:
        place = move.scene if move.group == "all" else f"{move.scene}, {move.group}"
        numbers = [value_text(move.before), value_text(move.after), f"{move.after - move.before:+.3f}"]
        table.add_row(place, move.variant, move.method, move.measure, *numbers, f"{move.spread:.3f}")
    if moved:
        console.print(table)
    better = sum(move.after > move.before for move in moved)
    console.print(
        f"{len(moves)} compared: {better} higher, {len(moved) - better} lower, {len(moves) - len(moved)} the same"
    )
    for folder, keys in zip(folders, only_in_one(before, after), strict=True):
        if keys:
            console.print(f"only in {folder}: {', '.join(sorted({' '.join(key) for key in keys}))}", highlight=False)
    return 0
