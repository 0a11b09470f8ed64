"""Recipes: which methods run over which scenes in which variants, and what is measured. TOML files."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from mbasfm.config import Config, LocalizeConfig
from mbasfm.errors import ConfigError
from mbasfm.evaluation.protocols import find_protocol

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class PairSettings:
    """Settings of the task two-view."""

    matcher: str = "auto"
    """Matcher of all methods: they get the same matches."""
    thresholds_px: tuple[float, ...] = (2.0,)
    """Thresholds to choose from on the first half of the pairs; the second half is measured."""
    train: tuple[str, ...] = ()
    """Sets whose first halves choose the threshold together; by default that of the scene alone."""
    max_train: int = 60
    """Largest number of pairs of each of these halves, at equal distances."""
    gaps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Range of number differences of the pairs that count, by set; others without a list take pairs that overlap."""
    batch: int = 0
    """If positive, this many pairs are drawn with replacement and estimated on all cores, for pairs/s."""

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "PairSettings":
        """Settings from TOML or JSON, whose lists become tuples."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        gaps = {name: (int(low), int(high)) for name, (low, high) in settings.get("gaps", {}).items()}
        return PairSettings(**values | {"gaps": gaps})


SETTINGS: Mapping[str, type] = {"localize": LocalizeConfig, "two-view": PairSettings}
"""Settings of the tasks that do not take those of a reconstruction."""


@dataclass(frozen=True)
class Variant:
    """One way to run the methods."""

    name: str
    intrinsics: Literal["known", "unknown"] = "unknown"
    methods: tuple[str, ...] = ()
    """Methods of this variant; empty for all of the recipe."""
    skip: tuple[str, ...] = ()
    """Scenes that this variant leaves out."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of our methods; {depth} stands for the scene's folder with sensor depth."""


@dataclass(frozen=True)
class Subsets:
    """Choice of the images of a scene that make one run."""

    kind: Literal["all", "bags", "thirds", "splits", "strangers"] = "all"
    """bags: drawn at random. splits: those that the dataset has. strangers: all, and some of every other scene."""
    sizes: tuple[int, ...] = ()
    """Sizes of bags, or the numbers at the start of the names of splits."""
    draws: int = 20
    strangers: int = 3
    """Number of images from each other scene, spread over it; from its queries, if it has any."""
    places: tuple[str, ...] = ()
    """Scenes that strangers come from; empty for those of the recipe."""
    same_place: tuple[str, ...] = ()
    """Scenes that show the same place and so are no strangers to each other."""


@dataclass(frozen=True)
class Recipe:
    """Everything a benchmark needs to know except where the data is."""

    name: str
    title: str
    dataset: str
    task: str = "sfm"
    protocol: str = "default"
    methods: tuple[str, ...] = ("ours", "colmap", "glomap")
    measures: tuple[str, ...] = ("AUC@1", "AUC@5")
    """Columns of the table."""
    paired: str = ""
    """Method that all others are compared with by pair or query, with intervals of the differences."""
    rival: str = ""
    """Measure by which the best of the others is chosen as a whole; if empty, it is chosen value by value."""
    scenes: tuple[str, ...] = ()
    """Names of scenes; empty for all of the dataset."""
    seeds: int = 1
    subsets: Subsets = Subsets()
    variants: tuple[Variant, ...] = (Variant("default"),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of our methods in all variants."""
    published: tuple[str, ...] = ()
    """Names of the tables of published figures to show beside."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader of the table."""


def list_recipes() -> list[Recipe]:
    """All recipes of the package, by name."""
    found = [
        path.name for path in files("mbasfm").joinpath("bench", "recipes").iterdir() if path.name.endswith(".toml")
    ]
    return [load_recipe(name.removesuffix(".toml")) for name in sorted(found)]


def load_recipe(task: str) -> Recipe:
    """A recipe of the package by name, or a file."""
    path = (
        Path(task)
        if task.endswith(".toml")
        else Path(str(files("mbasfm").joinpath("bench", "recipes", f"{task}.toml")))
    )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no recipe {task}; `mba bench list` shows those there are, or give a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not readable as TOML ({error})") from error
    return parse_recipe(content, path.stem, str(path))


def parse_recipe(content: Mapping[str, Any], name: str, place: str) -> Recipe:
    """Recipe of the content, with every key checked; lists become tuples."""
    values = _checked(content, Recipe, place, given=("name",))
    values["subsets"] = Subsets(**_checked(content.get("subsets", {}), Subsets, f"{place}, [subsets]"))
    if "variants" in content:
        values["variants"] = tuple(
            Variant(**_checked(entry, Variant, f"{place}, variant {number + 1}"))
            for number, entry in enumerate(content["variants"])
        )
    try:
        recipe = Recipe(name=name, **values)
    except TypeError as error:
        raise ConfigError(f"{place}: a recipe needs a title and a dataset ({error})") from error
    find_protocol(recipe.protocol)
    check_settings(recipe, place)
    return recipe


def check_settings(recipe: Recipe, place: str) -> None:
    """Refuse settings of any variant that the task does not know."""
    for variant in recipe.variants:
        if "," in variant.name:
            raise ConfigError(f"{place}: the name {variant.name!r} has a comma, which --variants takes for its end")
        _check_settings({**recipe.settings, **variant.settings}, recipe.task, f"{place}, variant {variant.name}")


def _checked(content: Mapping[str, Any], kind: type, place: str, given: Sequence[str] = ()) -> dict[str, Any]:
    known = [item.name for item in fields(kind) if item.name not in given]
    for key in content:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(f"{place}: unknown key {key!r}; {f'did you mean {close[0]!r}?' if close else known}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}


def _check_settings(settings: Mapping[str, Any], task: str, place: str) -> None:
    known = {item.name for item in fields(SETTINGS.get(task, Config))}
    unknown = next((key for key in settings if key not in known), None)
    if unknown is not None:
        close = difflib.get_close_matches(unknown, known, n=1)
        raise ConfigError(f"{place}: no setting is named {unknown!r}; {f'did you mean {close[0]!r}?' if close else ''}")
