"""Imports point downwards, and mathematics touches no files, no settings of the process and no log."""

import ast
from pathlib import Path

import pytest

import mbasfm

PACKAGE = "mbasfm"
FOLDER = Path(mbasfm.__file__).parent
MATHEMATICS = (
    "errors",
    "types",
    "config",
    "budget",
    "fisheye",
    "geometry",
    "alignment",
    "pose_priors",
    "objective",
    "five_point",
    "epipolar",
    "ransac",
    "residuals",
    "kernels",
    "rows",
    "forms",
    "block_layout",
    "normal",
    "block_matrix",
    "linear",
    "unknowns",
    "solve_lm",
    "solve_adam",
    "covariance",
    "diagnose",
    "validate",
    "adjust",
    "metrics",
    "protocols",
    "pairs",
    "consolidate",
    "twoview",
    "graph",
    "intrinsics",
    "shared_focal",
    "depth_pose",
    "sampling",
    "rotations",
    "edges",
    "initialize",
    "tracks",
    "depth_terms",
    "bundle",
    "polish",
    "retry",
    "depth_check",
    "depth_fit",
    "fuse",
    "undistort",
    "absolute",
    "registration",
    "upright",
)
LAYERS = (
    *MATHEMATICS[:3],
    "distributed",
    "threads",
    *MATHEMATICS[3:],
    "rivals",
    "scenery",
    "staging",
    "synthetic",
    "io.__init__",
    "io.arrays",
    "io.plain",
    "io.images",
    "io.gps",
    "io.masks",
    "io.video",
    "io.cache",
    "io.shards",
    "io.names",
    "io.colmap",
    "io.colmap_model",
    "io.calibration",
    "io.poses",
    "io.priors",
    "io.lists",
    "io.settings",
    "io.depth_maps",
    "io.glb",
    "io.nerfstudio",
    "io.ply",
    "io.trajectory",
    "evaluation",
    "datasets.__init__",
    "datasets.base",
    "datasets.plain",
    "datasets.eth3d",
    "datasets.imc2021",
    "datasets.scannet",
    "datasets.tanks_and_temples",
    "datasets.seven_scenes",
    "datasets.wayspots",
    "datasets.fastmap",
    "datasets.pair_lists",
    "datasets.registry",
    "models.__init__",
    "models.base",
    "models.nearest",
    "models.weights",
    "models.device",
    "models.registry",
    "models.flat",
    "models.files",
    "models.onnx",
    "models.network",
    "models.monocular",
    "models.depth_anything",
    "models.depth_pro",
    "models.zoedepth",
    "models.dinov2",
    "models.foreign",
    "models.dust3r",
    "models.moge",
    "models.unidepth",
    "models.depth_anything_3",
    "models.metric3d",
    "models.sift",
    "models.glue",
    "models.peaks",
    "models.xfeat",
    "models.lightglue",
    "models.image_network",
    "models.loftr",
    "models.keypoint_matching",
    "models.roma",
    "models.mast3r",
    "models.match_files",
    "guided",
    "calibrate",
    "given",
    "infer",
    "scene",
    "watch",
    "detector_free",
    "content",
    "mapsource",
    "mapping",
    "queries",
    "pairwise",
    "pair",
    "pictures",
    "reconstruction",
    "world",
    "record",
    "verdict",
    "finish",
    "export",
    "outputs",
    "charts",
    "report_page",
    "report",
    "localization",
    "localize",
    "viewing",
    "nodes",
    "panel",
    "viewer",
    "stock",
    "journal",
    "pipeline",
    "extend",
    "__init__",
    "bench.__init__",
    "bench.recipe",
    "bench.published",
    "bench.jobs",
    "bench.tasks",
    "bench.colmap",
    "bench.covisible",
    "bench.sfm",
    "bench.localization",
    "bench.pair_sets",
    "bench.two_view",
    "bench.retrieval",
    "bench.registry",
    "bench.worker",
    "bench.runner",
    "bench.paired",
    "bench.summary",
    "bench.tables",
    "bench.page",
    "bench.compare",
    "commands.__init__",
    "commands.bench",
    "commands.demo",
    "commands.eval",
    "commands.export",
    "commands.localize",
    "commands.models",
    "commands.report",
    "commands.sfm",
    "commands.pair",
    "commands.view",
    "cli",
    "__main__",
)
"""A module may import those before it. ``from mbasfm import name`` imports ``__init__``, unless it names a module."""
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
    """Modules of the package that the source imports."""
    found = set()
    for name in imported_names(source):
        first, *rest = name.split(".")
        if first == PACKAGE:
            dotted = [".".join(rest[:length]) for length in (2, 1)]
            found.add(next((layer for layer in dotted if layer in LAYERS), "__init__"))
    return found


def source_of(module: str) -> str:
    return (FOLDER / f"{module.replace('.', '/')}.py").read_text()


def test_every_module_has_its_place():
    modules = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py"))
    assert sorted(LAYERS) == sorted(".".join(module.parts) for module in modules)


@pytest.mark.parametrize("module", LAYERS)
def test_imports_point_downwards(module):
    below = set(LAYERS[: LAYERS.index(module)])
    assert imported_layers(source_of(module)) <= below


@pytest.mark.parametrize("module", LAYERS)
def test_only_one_module_may_talk_to_other_processes(module):
    names = imported_names(source_of(module))
    assert module == "distributed" or not any(f"{name}.".startswith("torch.distributed.") for name in names)


@pytest.mark.parametrize("module", MATHEMATICS)
def test_mathematics_stays_away_from_the_outside_world(module):
    assert not {name.split(".")[0] for name in imported_names(source_of(module))} & OUTSIDE_WORLD


@pytest.mark.parametrize(
    "source, layers",
    [
        ("import torch.distributed as dist", set()),
        ("from mbasfm.geometry import invert, compose", {"geometry"}),
        ("import mbasfm.adjust", {"adjust"}),
        ("from mbasfm import synthetic, __version__", {"synthetic", "__init__"}),
        ("from .types import Cameras\nfrom . import cli", {"types", "cli"}),
        ("def draw():\n    if True:\n        from mbasfm.fuse import fuse", {"fuse"}),
        ("import mbasfm", {"__init__"}),
        ("from mbasfm.io.images import Photo", {"io.images"}),
        ("import mbasfmother", set()),
    ],
)
def test_all_ways_to_import_are_seen(source, layers):
    assert imported_layers(source) == layers
