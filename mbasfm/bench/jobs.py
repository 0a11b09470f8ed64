"""Jobs of a recipe: single runs, each in a process of its own."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mbasfm.bench.recipe import Recipe, Subsets, Variant
from mbasfm.datasets.base import Dataset
from mbasfm.errors import InputError

WHOLE = "all"


@dataclass(frozen=True)
class Job:
    """One method on one set of images."""

    task: str
    dataset: str
    data: str
    scene: str
    method: str
    variant: str
    intrinsics: str
    protocol: str
    seed: int = 0
    subset: str = WHOLE
    group: str = WHOLE
    """Name of the group of subsets whose results are averaged."""
    names: tuple[str, ...] = ()
    """Images of the subset; all if empty."""
    strangers: tuple[str, ...] = ()
    """Paths of images of other scenes that are mixed in."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """File name of the run, unique among the jobs of one recipe."""
        parts = [self.scene, self.subset, self.variant, self.method, f"seed{self.seed}"]
        readable = "_".join(re.sub(r"[^\w.-]+", "-", part) for part in parts if part != WHOLE)
        return f"{readable}_{hashlib.sha1(' '.join(parts).encode()).hexdigest()[:6]}"

    def as_json(self) -> dict[str, Any]:
        """Content of the worker's file; paths become text, tuples lists."""
        content = asdict(self)
        return content | {key: list(content[key]) for key in ("names", "strangers")}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Job":
        """Job of the content that ``as_json`` returned."""
        return Job(**content | {key: tuple(content[key]) for key in ("names", "strangers")})


def make_jobs(recipe: Recipe, dataset: Dataset, scenes: Sequence[str], methods: Sequence[str]) -> Iterator[Job]:
    """All runs of a recipe, scene by scene."""
    everywhere: Sequence[str] = ()
    if recipe.subsets.kind == "strangers":
        everywhere = [name for name in recipe.subsets.places if name in dataset.scenes()]
        everywhere = everywhere or choose_scenes(recipe, dataset, ())
    for scene in scenes:
        for subset, group, names, strangers in _subsets(recipe.subsets, dataset, scene, everywhere):
            for variant in recipe.variants:
                if scene in variant.skip:
                    continue
                for seed in range(recipe.seeds):
                    for method in _methods_of(variant, methods):
                        yield Job(
                            recipe.task,
                            recipe.dataset,
                            str(dataset.folder.resolve()),
                            scene,
                            method,
                            variant.name,
                            variant.intrinsics,
                            recipe.protocol,
                            seed,
                            subset,
                            group,
                            names,
                            strangers,
                            {**recipe.settings, **variant.settings},
                        )


def choose_scenes(recipe: Recipe, dataset: Dataset, wanted: Sequence[str]) -> tuple[str, ...]:
    """Scenes of the recipe that are in the dataset, or exactly the wanted ones."""
    there = dataset.scenes()
    unknown = next((scene for scene in wanted if scene not in there), None)
    if unknown is not None:
        raise InputError(f"{dataset.folder}: no scene is named {unknown}; there are {', '.join(there)}")
    found = tuple(scene for scene in recipe.scenes or there if scene in there)
    chosen = tuple(wanted) or found
    if not chosen:
        raise InputError(f"{dataset.folder}: none of {', '.join(recipe.scenes)} is there, only {', '.join(there)}")
    return chosen


def _methods_of(variant: Variant, methods: Sequence[str]) -> list[str]:
    return [method for method in methods if not variant.methods or method in variant.methods]


def _spread(names: Sequence[str], count: int) -> Sequence[str]:
    """Up to ``count`` names at equal distances."""
    rows = np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)
    return [names[row] for row in rows]


Subset = tuple[str, str, tuple[str, ...], tuple[str, ...]]
"""Name, group, images and strangers."""


def _subsets(subsets: Subsets, dataset: Dataset, scene: str, everywhere: Sequence[str]) -> list[Subset]:
    if subsets.kind == "all":
        return [(WHOLE, WHOLE, (), ())]
    loaded = dataset.load(scene)
    if subsets.kind == "strangers":
        related = subsets.same_place if scene in subsets.same_place else (scene,)
        others = [dataset.load(other) for other in everywhere if other not in related and other != scene]
        paths = tuple(
            str((other.images / name).resolve())
            for other in others
            for name in _spread(other.splits.get("query", other.names), subsets.strangers)
        )
        return [(f"{len(paths)} strangers", WHOLE, (), paths)]
    if subsets.kind == "thirds":
        return [(f"third {first}", "thirds", loaded.names[first::3], ()) for first in range(3)]
    if subsets.kind == "splits":
        found = [(name, re.match(r"\d*", name), names) for name, names in loaded.splits.items()]
        chosen = [(name, match[0], names) for name, match, names in found if match is not None]
        sizes = {str(size) for size in subsets.sizes}
        return [(name, number or name, names, ()) for name, number, names in chosen if not sizes or number in sizes]
    generator = np.random.default_rng(0)
    bags: list[Subset] = []
    for size in (size for size in subsets.sizes if size < len(loaded.names)):
        for number in range(subsets.draws):
            rows = sorted(generator.choice(len(loaded.names), size, replace=False))
            bags.append((f"{size} bag {number}", str(size), tuple(loaded.names[row] for row in rows), ()))
    return bags
