"""How good depth sources are, what poses they give, and how poses get worse as depth does.

    python benchmarks/depth.py --data FOLDER --cache CACHE --networks NETWORK.onnx

FOLDER holds scenes as images/ and gt.json (docs/evaluation.md), some of them with depth/. Intrinsics are known. Runs
that are in CACHE are not repeated, so that it can be stopped at any time. The part noise draws docs/depth_noise.svg.

sources: the error of every source after one scale and shift per photograph (of disparity, if the source gives that),
against sensor depth or, where there is none, against points triangulated with the true poses; and the poses it leads
to.
noise: sensor depth times exp(level * field), where the field has variance 1 over the image and is either independent
from pixel to pixel or as smooth as the errors of networks are.
"""

import json
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import tyro
from common import report
from noise_chart import draw

from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks.sfm import StructureFromMotion
from mbasfm.config import Config
from mbasfm.geometry.camera import values_at
from mbasfm.io.files import Cache
from mbasfm.localization.map_source import MapSource, read_map
from mbasfm.localization.prepared_map import prepare, triangulate_map
from mbasfm.matching.inference import estimate_depths
from mbasfm.models.base import load_model
from mbasfm.models.depth.flat import FlatDepth
from mbasfm.models.matchers.sift import SiftMatcher
from mbasfm.scene.derived import DepthFit, fit_depth
from mbasfm.types.observations import DepthEstimate

SCENES = {
    "tum_fr1_xyz": slice(None, None, 4),
    "saharov32": slice(0, 16),
    "sevenscenes_redkitchen": slice(None, None, 12),
    "strecha_fountain11": slice(None),
    "strecha_herzjesu8": slice(None),
    "strecha_entry10": slice(None),
}
"""And which of their photographs, in the order of names."""
LIMITS = {"sevenscenes_redkitchen": 10, "saharov32": 1}
"""Of the AUC that shows the noise [deg], 5 elsewhere: the truth of redkitchen is rough, that of saharov is precise."""
LEVELS = (0.01, 0.03, 0.1, 0.3)
SMOOTH_SHARE = 1 / 8
"""Of the image's width: the standard deviation of the blur that makes a field smooth."""
SENSOR = "sensor"
MEASURES = ("AUC@1", "AUC@3", "AUC@5", "AUC@10")
SHOWN = ("AUC@1", "AUC@5", "AUC@10")
VARIANTS = tuple((objective, polish) for objective in ("split", "paper") for polish in (True, False))
Part = Literal["sources", "noise"]
Noise = Literal["smooth", "independent"]


@dataclass(frozen=True)
class Options:
    """What to run."""

    data: Path
    cache: Path
    """Features, matches, depth and finished runs are kept here."""
    networks: tuple[Path, ...] = ()
    """ONNX depth networks."""
    part: tuple[Part, ...] = ("sources", "noise")
    scenes: tuple[str, ...] = tuple(SCENES)
    seed: int = 0
    finished: bool = False
    """Of the part noise: run nothing, and show what is in the cache."""


class Ledger:
    """Finished runs by name, on disk after each."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._rows: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """What the run of that name gave, or what it gives now."""
        if key not in self._rows:
            self._rows[key] = compute()
            self._path.write_text(json.dumps(self._rows, indent=1))
            print(key, self._rows[key], flush=True)
        return self._rows[key]


def photographs(options: Options, scene: str) -> MapSource:
    """Those of a scene that are used, with their true poses."""
    names = sorted(json.loads((options.data / scene / "gt.json").read_text())["images"])
    return read_map(options.data / scene, names[SCENES[scene]])


def scenes_of(options: Options, with_sensor: bool = False) -> Iterator[tuple[str, MapSource]]:
    for scene in options.scenes:
        if (options.data / scene).is_dir():
            source = photographs(options, scene)
            if source.depth is not None or not with_sensor:
                yield scene, source


def pose_auc(options: Options, source: MapSource, depth: str, variant: tuple[str, bool]) -> dict[str, float]:
    """What `mba sfm` reaches with a depth source: AUC by limit, and the share of registered photographs."""
    settings = {"depth": depth, "objective": variant[0], "polish": variant[1]}
    names = tuple(photo.name for photo in source.photos)
    job = Job("sfm", "plain", str(options.data), source.folder.name, "ours", "", "known", "default", options.seed,
              names=names, settings=settings)  # fmt: skip
    with tempfile.TemporaryDirectory() as work:
        measures = StructureFromMotion().run(job, Path(work), options.cache).measures
    return {name: measures[name] for name in (*MEASURES, "registered")}


# ----------------------------------------------------------------------------------------------------------------
# Sources


def source_specs(options: Options, source: MapSource) -> dict[str, str]:
    """Depth models by the name they have in the table."""
    specs = {"flat": "flat"} | {path.stem: f"onnx:{path.resolve()}" for path in options.networks}
    return specs | ({SENSOR: f"files:{source.depth.resolve()}"} if source.depth is not None else {})


def compare_sources(options: Options, ledger: Ledger) -> list[dict[str, Any]]:
    rows = []
    for scene, source in scenes_of(options):
        for name, spec in source_specs(options, source).items():
            error = None
            if name != SENSOR:
                error = ledger.get(f"error|{scene}|{name}", lambda: depth_error(options, source, spec))  # noqa: B023
            row: dict[str, Any] = {
                "scene": scene,
                "photographs": len(source.photos),
                "depth": name,
                "error [%]": "-" if error is None else " / ".join(f"{100 * value:.1f}" for value in error),
            }
            for variant in VARIANTS:
                found = pose_of(options, ledger, source, name, spec, variant)
                row[title_of(variant)] = " / ".join(f"{found[name]:.3f}" for name in SHOWN)
                row["registered"] = min(found["registered"], row.get("registered", math.inf))
            rows.append(row)
    return rows


def pose_of(
    options: Options, ledger: Ledger, source: MapSource, name: str, spec: str, variant: tuple[str, bool]
) -> dict[str, float]:
    key = f"pose|{source.folder.name}|{name}|{title_of(variant)}|{options.seed}"
    return ledger.get(key, lambda: pose_auc(options, source, spec, variant))


def title_of(variant: tuple[str, bool]) -> str:
    return variant[0] + ("" if variant[1] else ", no polish")


def depth_error(options: Options, source: MapSource, spec: str) -> list[float]:
    """Median and mean of the relative error of a photograph after one scale and shift, as the mean over photographs."""
    with Cache(options.cache / "ours").active():
        estimates = list(estimate_depths(source.photos, load_model("depth", spec)))
        known = list(references(source))
    errors = []
    for estimate, (places, true_depth) in zip(estimates, known, strict=True):
        raw = values_at(estimate.values, places)
        fit, median = fit_depth(raw, true_depth, DepthFit(1.0, 0.0, estimate.is_disparity))
        errors.append((median, np.nanmean(np.abs(fit.depth(raw) / true_depth - 1))))
    return np.mean(errors, axis=0).tolist()


def references(source: MapSource) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places (shares of width and height) of every photograph at which depth is known, and that depth."""
    if source.depth is not None:
        for estimate in sensor_maps(source):
            yield known_places(estimate.values)
        return
    config = Config()
    prepared = prepare(source, [SiftMatcher()], FlatDepth, config.max_error_px, config.seed)
    model = triangulate_map(source, prepared.cameras, prepared.indexes[0], config.max_error_px)
    for number, photo in enumerate(source.photos):
        image = model.images[number + 1]
        seen = image.get_observation_points2D()
        points = np.stack([model.points3D[point.point3D_id].xyz for point in seen])
        places = np.stack([point.xy for point in seen]) / [photo.width, photo.height]
        yield places.astype(np.float32), (image.cam_from_world() * points)[:, 2]


def sensor_maps(source: MapSource) -> list[DepthEstimate]:
    model = load_model("depth", f"files:{source.depth}")
    return [item for item in estimate_depths(source.photos, model) if isinstance(item, DepthEstimate)]


def known_places(depth: np.ndarray, every: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.nonzero(np.isfinite(depth))
    rows, columns = rows[::every], columns[::every]
    places = (np.column_stack([columns, rows]) + 0.5) / [depth.shape[1], depth.shape[0]]
    return places.astype(np.float32), depth[rows, columns].astype(np.float64)


# ----------------------------------------------------------------------------------------------------------------
# Noise


def noise_field(kind: Noise, shape: tuple[int, int], name: str, seed: int) -> np.ndarray:
    """Mean 0 and variance 1 over the image; another one for every photograph."""
    field = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if kind == "smooth":
        field = cv2.GaussianBlur(field, (0, 0), SMOOTH_SHARE * shape[1], borderType=cv2.BORDER_REFLECT)
    return (field - field.mean()) / field.std()


def write_noisy(source: MapSource, kind: Noise, level: float, seed: int, folder: Path) -> None:
    for photo, estimate in zip(source.photos, sensor_maps(source), strict=True):
        field = noise_field(kind, estimate.values.shape, photo.name, seed)
        np.save((folder / photo.name).with_suffix(".npy"), (estimate.values * np.exp(level * field)).astype(np.float32))


def noisy_auc(
    options: Options, source: MapSource, noise: tuple[Noise, float], variant: tuple[str, bool]
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        write_noisy(source, *noise, options.seed, Path(folder))
        return pose_auc(options, source, f"files:{folder}", variant)


def sweep_noise(options: Options, ledger: Ledger) -> list[dict[str, Any]]:
    rows = []
    kinds: tuple[Noise, ...] = ("smooth", "independent")
    for scene, source in scenes_of(options, with_sensor=True):
        spec = f"files:{source.depth.resolve()}"  # type: ignore[union-attr]
        measure = f"AUC@{LIMITS.get(scene, 5)}"
        for kind in kinds:
            for level in (0.0, *LEVELS):
                row: dict[str, Any] = {"scene": scene, "measure": measure, "noise": kind, "level": level}
                for variant in VARIANTS:
                    title = title_of(variant)
                    if level == 0:
                        key = f"pose|{scene}|{SENSOR}|{title}|{options.seed}"
                        compute = partial(pose_auc, options, source, spec, variant)
                    else:
                        key = f"noise|{scene}|{kind}|{level}|{title}|{options.seed}"
                        compute = partial(noisy_auc, options, source, (kind, level), variant)
                    if not options.finished or key in ledger:
                        row[title] = ledger.get(key, compute)[measure]
                rows.append(row)
    return rows


def main(options: Options) -> None:
    ledger = Ledger(options.cache / "depth_runs.json")
    if "sources" in options.part:
        report("depth_sources", "Depth sources: median / mean relative error, and AUC@1 / 5 / 10 of poses",
               compare_sources(options, ledger))  # fmt: skip
    if "noise" in options.part:
        rows = sweep_noise(options, ledger)
        report("depth_noise", "Pose AUC by noise on sensor depth", rows)
        print(f"drew {draw(rows, [title_of(variant) for variant in VARIANTS])}")


if __name__ == "__main__":
    main(tyro.cli(Options))
