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
    """Of the task two-view."""

    matcher: str = "auto"
    """Of all methods: they get the same matches."""
    thresholds_px: tuple[float, ...] = (2.0,)
    """If there are several, the first half of the pairs chooses one, and the second half is measured."""
    train: tuple[str, ...] = ()
    """Sets whose first halves choose together; by default that of the scene alone."""
    max_train: int = 60
    """At most so many pairs of each of these halves, at equal distances."""
    gaps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Sets of which pairs count whose numbers differ by that much; of other sets without a list, pairs that overlap."""
    batch: int = 0
    """If positive, so many pairs are drawn with replacement and estimated on all cores: pairs/s."""

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "PairSettings":
        """From TOML or JSON, which have lists only."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        gaps = {name: (int(low), int(high)) for name, (low, high) in settings.get("gaps", {}).items()}
        return PairSettings(**values | {"gaps": gaps})


SETTINGS: Mapping[str, type] = {"localize": LocalizeConfig, "two-view": PairSettings}
"""Of tasks whose settings are not those of a reconstruction."""


@dataclass(frozen=True)
class Variant:
    """One way to run the methods."""

    name: str
    intrinsics: Literal["known", "unknown"] = "unknown"
    methods: tuple[str, ...] = ()
    """Only these; all of the recipe if empty."""
    skip: tuple[str, ...] = ()
    """Scenes that this variant leaves out."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of ours; {depth} stands for the scene's folder with sensor depth."""


@dataclass(frozen=True)
class Subsets:
    """Which images of a scene make one run."""

    kind: Literal["all", "bags", "thirds", "splits", "strangers"] = "all"
    """bags: drawn at random. splits: those that the dataset has. strangers: all, and some of every other scene."""
    sizes: tuple[int, ...] = ()
    """Of bags, or the numbers at the start of the names of splits."""
    draws: int = 20
    strangers: int = 3
    """Images of each other scene, spread over it; of its queries, if it has such."""
    places: tuple[str, ...] = ()
    """Scenes that strangers come from; those of the recipe if empty."""
    same_place: tuple[str, ...] = ()
    """Scenes that are no strangers to each other."""


@dataclass(frozen=True)
class Recipe:
    """Everything a benchmark needs to know but where the data is."""

    name: str
    title: str
    dataset: str
    task: str = "sfm"
    protocol: str = "default"
    methods: tuple[str, ...] = ("ours", "colmap", "glomap")
    measures: tuple[str, ...] = ("AUC@1", "AUC@5")
    """Columns of the table."""
    paired: str = ""
    """Method that all others are compared with pair by pair, or query by query: intervals of the differences."""
    rival: str = ""
    """Measure by which the best of the others is chosen as a whole; if empty, the best is chosen value by value."""
    scenes: tuple[str, ...] = ()
    """All that are there if empty."""
    seeds: int = 1
    subsets: Subsets = Subsets()
    variants: tuple[Variant, ...] = (Variant("default"),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of ours, in all variants."""
    published: tuple[str, ...] = ()
    """Tables of published figures that stand beside."""
    notes: tuple[str, ...] = ()
    """What to know when reading the table."""


def list_recipes() -> list[Recipe]:
    """All that come with the package, by name."""
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
    """Check every key; lists become tuples."""
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
    """Whether the task knows the settings of all variants."""
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
