"""Imports point downwards, mathematics touches no files, no settings and no log, and few modules are on one's way."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import mbasfm

PACKAGE = "mbasfm"
FOLDER = Path(mbasfm.__file__).parent
LAYERS = (
    "errors",
    "types",
    "runtime",
    "geometry",
    "objective",
    "adjust",
    "config",
    "io",
    "synthetic",
    "evaluation",
    "models",
    "estimators",
    "matching",
    "polish",
    "scene",
    "sfm",
    "localization",
    "report",
    "viewer",
    "pair",
    "localize",
    "reconstruct",
    "extend",
    "__init__",
    "datasets",
    "bench",
    "commands",
    "cli",
    "__main__",
)
"""Packages, and modules beside them. Each may import itself and those before it."""
MATHEMATICS = (
    "errors",
    "types",
    "config",
    "geometry",
    "objective",
    "adjust",
    "estimators",
    "evaluation.metrics",
    "evaluation.protocols",
    "matching.choose_pairs",
    "matching.visual_words",
    "matching.merge_keypoints",
    "polish",
    "scene.derived",
    "sfm.samples",
    "sfm.pairs.judge",
    "sfm.pairs.pose_graph",
    "sfm.start",
    "localization.register",
)
"""Packages and modules."""
AT_THE_EDGE = ("types.observations", "estimators.relative", "sfm.samples")
"""Photographs have paths; peers of our estimator come from other libraries; many samples have a folder."""
OUTSIDE_WORLD = {
    "PIL",
    "argparse",
    "cv2",
    "io",
    "json",
    "logging",
    "matplotlib",
    "os",
    "pathlib",
    "rich",
    "sys",
    "tyro",
}


PAGES = ("reconstruct", "localize", "extend", "pair", "commands", "cli", "bench")
"""Pipelines and edges, which see how a run was set up."""
MOST_LINES, MOST_MODULES = 350, 16
"""Of a module, and of a folder."""
FEWER_THAN = 66
"""Modules that a photograph crosses."""
SETTINGS = {"Config", "LocalizeConfig", "Common"}
SURROUNDINGS = {"Progress", "Cache"}
NOT_STAGES = ("config", "io.files", "runtime.progress")
"""Where those are defined, written and read."""


def all_modules() -> list[str]:
    paths = sorted(path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py"))
    return [".".join(path.parts) for path in paths]


MODULES = all_modules()


def is_in(module: str, places: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{place}.") for place in places)


def imported_names(source: str) -> set[str]:
    """Full names of all that is imported, anywhere in the source."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = PACKAGE if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def imported_layers(source: str) -> set[str]:
    """Layers of the package that the source imports."""
    found = set()
    for name in imported_names(source):
        first, *rest = name.split(".")
        if first == PACKAGE:
            found.add(rest[0] if rest and rest[0] in LAYERS else "__init__")
    return found


def source_of(module: str) -> str:
    return (FOLDER / f"{module.replace('.', '/')}.py").read_text()


def test_every_module_has_its_place():
    assert {module.split(".")[0] for module in MODULES} == set(LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module):
    below = set(LAYERS[: LAYERS.index(module.split(".")[0]) + 1])
    assert imported_layers(source_of(module)) <= below


@pytest.mark.parametrize("module", [module for module in MODULES if module.endswith(".__init__")])
def test_a_package_says_what_it_is_for_and_nothing_else(module):
    (statement,) = ast.parse(source_of(module)).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value.value, str)


@pytest.mark.parametrize("module", MODULES)
def test_only_one_module_may_talk_to_other_processes(module):
    names = imported_names(source_of(module))
    assert module == "runtime.parallel" or not any(f"{name}.".startswith("torch.distributed.") for name in names)


@pytest.mark.parametrize("module", [module for module in MODULES if is_in(module, MATHEMATICS)])
def test_mathematics_stays_away_from_the_outside_world(module):
    used = {name.split(".")[0] for name in imported_names(source_of(module))} & OUTSIDE_WORLD
    assert not used or module in AT_THE_EDGE


@pytest.mark.parametrize("place", [*MATHEMATICS, *AT_THE_EDGE])
def test_every_place_of_mathematics_exists(place):
    assert any(is_in(module, (place,)) for module in MODULES)


@pytest.mark.parametrize(
    "source, layers",
    [
        ("import torch.distributed as dist", set()),
        ("from mbasfm.geometry.rigid import invert, compose", {"geometry"}),
        ("import mbasfm.adjust.adjust", {"adjust"}),
        ("from mbasfm import synthetic, __version__", {"synthetic", "__init__"}),
        ("from .types import Cameras\nfrom . import cli", {"types", "cli"}),
        ("def draw():\n    if True:\n        from mbasfm.scene.derived import fuse", {"scene"}),
        ("import mbasfm", {"__init__"}),
        ("from mbasfm.io import images", {"io"}),
        ("import mbasfmother", set()),
    ],
)
def test_all_ways_to_import_are_seen(source, layers):
    assert imported_layers(source) == layers


def named_types(annotation: ast.expr | None) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else set()


def arguments_of(source: str) -> list[tuple[str, set[str]]]:
    """Name of every public function, and the types that its arguments name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found.append((node.name, set[str]().union(*(named_types(argument.annotation) for argument in arguments))))
    return found


@pytest.mark.parametrize("module", [m for m in MODULES if not is_in(m, PAGES + NOT_STAGES)])
def test_a_stage_takes_the_values_it_uses_not_how_the_run_was_set_up(module):
    """Settings are taken apart, progress shown and results kept where a pipeline is written down."""
    takes = {name: types & (SETTINGS | SURROUNDINGS) for name, types in arguments_of(source_of(module))}
    assert not {name: types for name, types in takes.items() if types}


def test_a_stage_that_takes_settings_would_be_found():
    source = "def stage(views: list[int], config: Config, cache: Cache | None = None) -> Progress: ..."
    assert arguments_of(source) == [("stage", {"list", "int", "Config", "Cache"})]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_not_too_long_to_be_read_at_once(module):
    assert len(source_of(module).splitlines()) <= MOST_LINES


def test_a_folder_can_be_seen_at_a_glance():
    folders = Counter(module.rpartition(".")[0] for module in MODULES if not module.endswith("__init__"))
    assert not {folder: count for folder, count in folders.items() if count > MOST_MODULES}


def test_a_photograph_crosses_few_modules_and_there_is_no_way_back():
    script = FOLDER.parent / "benchmarks" / "modules_crossed.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    crossed = re.findall(r"^  ([\w/]+)\.py$", done.stdout, re.MULTILINE)
    assert 0 < len(crossed) < FEWER_THAN
    assert set(crossed) <= {module.replace(".", "/") for module in MODULES}
    assert "io/colmap_model" not in crossed, "what was just written is read again"
