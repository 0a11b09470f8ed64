"""Ours against COLMAP's incremental and global mappers: same photographs, same machine, one run.

    python benchmarks/sfm.py --data FOLDER --depth onnx:FILE --part main bags thirds unrelated ablation sensor retrieval

FOLDER holds one folder per set with images/ and gt.json ({"images": {name: {K, width, height, R, t}}}) and, for sensor
depth, depth/. An image that is not registered, or not in the largest component, counts as wrong. COLMAP's score is that
of its better mapper, chosen with the ground truth; ours is one setting for all.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import colmap_peer
import numpy as np
import torch
import tyro
from common import report

from mbasfm.config import Config
from mbasfm.infer import describe_photos
from mbasfm.io.cache import Cache
from mbasfm.io.images import find_photos
from mbasfm.metrics import auc, relative_pose_errors_deg
from mbasfm.models.registry import load_model
from mbasfm.pairs import recall_at_k, vlad
from mbasfm.pipeline import reconstruct
from mbasfm.watch import Watch

Part = Literal["main", "bags", "thirds", "unrelated", "ablation", "sensor", "retrieval"]
INDEPENDENT = ("strecha_fountain11", "strecha_herzjesu8", "strecha_entry10", "strecha_castle19", "dtu_scan24")
PSEUDO = ("ngp_fox", "saharov32", "imc_sacre_coeur10")
CALIBRATED_ONLY = ("middlebury_dino48",)
SENSOR = ("sevenscenes_redkitchen", "tum_fr1_xyz", "pi3_room8")
MIXED_CAMERAS = ("imc_sacre_coeur10",)
SAME_PLACE = ("strecha_fountain11", "strecha_entry10", "strecha_castle19")
"""Sides of one castle: their photographs share hundreds of matches, so they are no strangers to each other."""
BAG_SIZES = (3, 5, 10)
MAPPING_STAGES = ("adjust", "depth check", "polish", "retry")
CONTENT_STAGES = ("photos", "depth", "features", "pairs", "matching")
ABLATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "objective paper": {"objective": "paper"},
    "depth flat": {"depth": "flat"},
    "no polish": {"polish": False},
    "objective paper, no polish": {"objective": "paper", "polish": False},
    "depth flat, no polish": {"depth": "flat", "polish": False},
    "solver adam, no polish": {"solver": "adam", "polish": False},
    "paper's tree": {"tree": "paper"},
    "paper's tree, no polish": {"tree": "paper", "polish": False},
}


@dataclass(frozen=True)
class Options:
    """What to run."""

    data: Path
    depth: str = "auto"
    matcher: str = "auto"
    part: tuple[Part, ...] = ("main",)
    sets: tuple[str, ...] = ()
    """Only these sets."""
    seeds: int = 3
    draws: int = 20
    """Bags of each size per set."""
    peer: bool = True
    """Run COLMAP too."""
    cache: Path | None = None
    """Keep features, matches and COLMAP's rows here; by default in a folder that is thrown away after each set."""


@dataclass(frozen=True)
class Scene:
    """One set of photographs with ground truth."""

    folder: Path
    names: tuple[str, ...]
    truth: torch.Tensor
    calibration: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.folder.name

    @property
    def is_mixed(self) -> bool:
        """Whether every photograph has its own camera."""
        return self.name in MIXED_CAMERAS

    def subset(self, names: Sequence[str]) -> torch.Tensor:
        """True poses of some photographs."""
        return self.truth[[self.names.index(name) for name in names]]


def load_scene(folder: Path) -> Scene:
    rows = json.loads((folder / "gt.json").read_text())["images"]
    names = tuple(sorted(rows))
    poses = [np.column_stack([rows[name]["R"], rows[name]["t"]]) for name in names]
    truth = torch.from_numpy(np.stack(poses)).double()
    return Scene(folder, names, truth, {name: rows[name]["K"] for name in names})


def score(cam_from_world: torch.Tensor, truth: torch.Tensor, registered: torch.Tensor) -> dict[str, Any]:
    rotation, translation = relative_pose_errors_deg(cam_from_world, truth, registered)
    worst = torch.maximum(rotation, translation)
    row: dict[str, Any] = {"registered": f"{int(registered.sum())}/{len(registered)}"}
    row |= {"RRA@5": float((rotation < 5).double().mean()), "RTA@5": float((translation < 5).double().mean())}
    return row | {f"AUC@{limit}": auc(worst, float(limit)) for limit in (1, 3, 5, 10)}


def run_ours(
    scene: Scene, options: Options, work: Path, calibrated: bool, names: Sequence[str] | None = None, **changes: Any
) -> dict[str, Any]:
    """One reconstruction by us: scores and seconds per stage."""
    settings: dict[str, Any] = {"depth": options.depth, "matcher": options.matcher}
    settings["intrinsics"] = "per-image" if scene.is_mixed else "shared"
    if calibrated:
        settings["cameras"] = str(scene.folder / "gt.json")
    source = scene.folder / "images"
    if names is not None:
        source = work / "list.txt"
        source.write_text("".join(f"{(scene.folder / 'images' / name).resolve()}\n" for name in names))
    watch = Watch()
    config = Config(**(settings | changes))
    result = reconstruct(source, None, config, cache=options.cache or work / "cache", watch=watch)
    order = {Path(name).name: index for index, name in enumerate(result.frames.names)}
    index = [order[name] for name in (names or scene.names)]
    row = score(result.cameras.cam_from_world[index], scene.subset(names or scene.names), result.component[index] == 0)
    seconds: dict[str, float] = {}
    for stage in watch.stages:  # a second matcher has stages of the same name
        seconds[stage["name"]] = seconds.get(stage["name"], 0.0) + stage["seconds"]
    return row | {"seconds": sum(seconds.values()), "stages": seconds}


def with_content_time(row: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """A row that found its features, depth and matches in the cache, with the seconds that the first run took."""
    stages = row["stages"] | {name: first["stages"][name] for name in CONTENT_STAGES}
    return row | {"seconds": sum(stages.values()), "stages": stages}


class Peer:
    """COLMAP on one scene: features and matches once, then verified and mapped as often as asked."""

    def __init__(self, scene: Scene, work: Path):
        self._scene, self._database = scene, work / f"{scene.name}.db"
        self.extract, self.match = colmap_peer.prepare(
            scene.folder / "images", scene.names, not scene.is_mixed, self._database
        )

    @staticmethod
    def run_bags(scene: Scene, work: Path, bags: Sequence[Sequence[str]], memory: Path | None) -> list[dict[str, Any]]:
        """Rows of both mappers for each bag, calibrated; those in ``memory`` are not computed again."""
        path = memory / f"colmap_{scene.name}.json" if memory else None
        known = json.loads(path.read_text()) if path and path.is_file() else {}
        missing = [bag for bag in bags if " ".join(bag) not in known]
        rows = iter(Peer(scene, work).run(True, 0, missing) if missing else ())
        known |= {" ".join(bag): [next(rows) for _ in colmap_peer.MAPPERS] for bag in missing}
        if path and missing:
            path.write_text(json.dumps(known))
        return [row for bag in bags for row in known[" ".join(bag)]]

    def run(self, calibrated: bool, seed: int, bags: Sequence[Sequence[str]] | None = None) -> Iterator[dict[str, Any]]:
        """Rows of both mappers, for the whole scene or for each bag."""
        calibration = self._scene.calibration if calibrated else None
        verified, verify = colmap_peer.verify(self._database, self._scene.names, calibration, seed)
        for bag in bags or [self._scene.names]:
            for mapper in colmap_peer.MAPPERS:
                found = colmap_peer.run(verified, self._scene.folder / "images", bag, mapper, calibrated, seed)
                row = score(found.cam_from_world, self._scene.subset(bag), found.registered)
                stages = {"features": self.extract, "matching": self.match, "verify": verify, "map": found.seconds}
                yield {"mapper": mapper} | row | {"seconds": sum(stages.values()), "stages": stages}


def mean_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean of all numbers; texts of the first."""
    merged = dict(rows[0])
    for key, value in rows[0].items():
        if isinstance(value, float):
            merged[key] = float(np.mean([row[key] for row in rows]))
        elif isinstance(value, dict):
            merged[key] = mean_rows([row[key] for row in rows])
        elif key == "registered":
            merged[key] = min((row[key] for row in rows), key=lambda text: int(text.split("/")[0]))
    return merged


def scenes_of(options: Options, names: Sequence[str]) -> Iterator[tuple[Scene, Path]]:
    for name in names:
        if (not options.sets or name in options.sets) and (options.data / name / "gt.json").is_file():
            with tempfile.TemporaryDirectory() as folder:
                yield load_scene(options.data / name), Path(folder)


def main_part(options: Options) -> None:
    """All sets, calibrated and not, mean over seeds."""
    rows = []
    for scene, work in scenes_of(options, INDEPENDENT + PSEUDO + CALIBRATED_ONLY):
        peer = Peer(scene, work) if options.peer else None
        first: dict[str, Any] = {}
        for calibrated in (True, False) if scene.name not in CALIBRATED_ONLY else (True,):
            label = {"set": scene.name, "intrinsics": "calibrated" if calibrated else "uncalibrated"}
            runs = [run_ours(scene, options, work, calibrated, seed=seed) for seed in range(options.seeds)]
            first = first or runs[0]
            rows.append(label | {"method": "ours"} | mean_rows([with_content_time(row, first) for row in runs]))
            if peer is not None:
                found = [row for seed in range(options.seeds) for row in peer.run(calibrated, seed)]
                for mapper in colmap_peer.MAPPERS:
                    mine = [row for row in found if row["mapper"] == mapper]
                    rows.append(label | {"method": f"colmap {mapper}"} | mean_rows(mine))
            for row in rows[-3 if peer else -1 :]:
                show(row)
    report("sfm_main", "Structure from motion, mean over seeds", [flat(row) for row in rows], summarise(rows))


def show(row: dict[str, Any]) -> None:
    numbers = " ".join(f"{row[f'AUC@{limit}']:.3f}" for limit in (1, 3, 5))
    stages = " ".join(f"{name} {seconds:.1f}" for name, seconds in row["stages"].items() if seconds >= 0.05)
    name = f"{row['set']} {row['intrinsics']} {row['method']}"
    print(f"{name:<60} {row['registered']:>7} AUC@1/3/5 {numbers}  {row['seconds']:.1f} s ({stages})", flush=True)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    hidden = {"stages", "mapper", "AUC@10"}
    return {key: value for key, value in row.items() if key not in hidden} | {
        f"t {name}": seconds for name, seconds in row.get("stages", {}).items() if seconds >= 0.05
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The better mapper per set against ours, and times as ratios."""
    verdicts, ours_total, peer_total, ours_map, peer_map = [], 0.0, 0.0, 0.0, 0.0
    for row in rows:
        same = [r for r in rows if (r["set"], r["intrinsics"]) == (row["set"], row["intrinsics"])]
        peers = [r for r in same if r["method"] != "ours"]
        if row["method"] != "ours" or not peers:
            continue
        for key in ["AUC@1", "AUC@5"] if row["set"] in INDEPENDENT else ["AUC@5"]:
            best = max(r[key] for r in peers)
            verdict = {"set": row["set"], "intrinsics": row["intrinsics"], "measure": key, "ours": row[key]}
            verdicts.append(verdict | {"colmap": best, "difference": row[key] - best})
        ours_total += row["seconds"]
        peer_total += min(r["seconds"] for r in peers)
        ours_map += sum(row["stages"].get(name, 0.0) for name in MAPPING_STAGES)
        peer_map += min(r["stages"]["map"] for r in peers)
    if verdicts:
        report("sfm_verdict", "Ours against the better mapper", verdicts)
        print(f"time, ours over COLMAP's faster mapper: total {ours_total / peer_total:.2f}", end=", ")
        print(f"adjustment and polish over mapping {ours_map / peer_map:.2f}")
    return {"time_ratio": ours_total / max(peer_total, 1e-9), "mapping_ratio": ours_map / max(peer_map, 1e-9)}


def bags_of(scene: Scene, options: Options, thirds: bool) -> list[list[str]]:
    if thirds:
        return [list(scene.names[first::3]) for first in range(3)]
    generator = np.random.default_rng(0)
    sizes = [size for size in BAG_SIZES if size < len(scene.names)]
    draws = [generator.choice(len(scene.names), size, replace=False) for size in sizes for _ in range(options.draws)]
    return [[scene.names[index] for index in sorted(draw)] for draw in draws]


def bags_part(options: Options, thirds: bool) -> None:
    """Few photographs: bags of 3, 5 and 10, or every third."""
    rows, pooled = [], []
    for scene, work in scenes_of(options, INDEPENDENT + PSEUDO + CALIBRATED_ONLY):
        bags = bags_of(scene, options, thirds)
        theirs = Peer.run_bags(scene, work, bags, options.cache) if options.peer else []
        for number, bag in enumerate(bags):
            found = [{"method": "ours"} | run_ours(scene, options, work, True, bag)]
            found += [{"method": f"colmap {row['mapper']}"} | row for row in theirs[2 * number : 2 * number + 2]]
            size = "third" if thirds else str(len(bag))
            pooled += [{"set": scene.name, "size": size} | row for row in found]
        for method in dict.fromkeys(row["method"] for row in pooled):
            for size in dict.fromkeys(row["size"] for row in pooled if row["set"] == scene.name):
                key = (scene.name, size, method)
                mine = [row for row in pooled if (row["set"], row["size"], row["method"]) == key]
                rows.append(
                    dict(zip(("set", "size", "method"), key, strict=True))
                    | {name: float(np.mean([row[name] for row in mine])) for name in ("AUC@5", "AUC@10")}
                )
                print(rows[-1], flush=True)
    for method in dict.fromkeys(row["method"] for row in pooled):
        mine = [row for row in pooled if row["method"] == method]
        rows.append(
            {"set": "all", "size": "all", "method": method}
            | {name: float(np.mean([row[name] for row in mine])) for name in ("AUC@5", "AUC@10")}
        )
    report(f"sfm_{'thirds' if thirds else 'bags'}", "Few photographs, calibrated", rows)


def unrelated_part(options: Options) -> None:
    """Each set with three photographs of each other set mixed in: how many of those are placed with it."""
    everything = [load_scene(options.data / name) for name in INDEPENDENT + PSEUDO]
    rows = []
    for scene, work in scenes_of(options, INDEPENDENT + PSEUDO):
        related = SAME_PLACE if scene.name in SAME_PLACE else (scene.name,)
        others = [other for other in everything if other.name not in related]
        strangers = [other.folder / "images" / name for other in others for name in other.names[:3]]
        own = [scene.folder / "images" / name for name in scene.names]
        source = work / "list.txt"
        source.write_text("".join(f"{path.resolve()}\n" for path in own + strangers))
        config = Config(depth=options.depth, matcher=options.matcher)
        result = reconstruct(source, None, config, cache=options.cache or work / "cache")
        rows_of = zip(result.frames.names, result.component.tolist(), strict=True)
        placed = tuple(f"/{name}" for name, component in rows_of if component == 0)
        wrong = sum(path.resolve().as_posix().endswith(placed) for path in strangers)
        right = sum(path.resolve().as_posix().endswith(placed) for path in own)
        row = {"set": scene.name, "own": len(own), "own placed": right, "strangers": len(strangers)}
        rows.append(row | {"strangers placed": wrong})
        print(rows[-1], flush=True)
    report("sfm_unrelated", "Unrelated photographs mixed in", rows)


def ablation_part(options: Options) -> None:
    """What every part is worth, calibrated."""
    rows = []
    for scene, work in scenes_of(options, INDEPENDENT + PSEUDO + CALIBRATED_ONLY):
        for name, changes in ABLATIONS.items():
            row = run_ours(scene, options, work, True, **changes)
            keys = ("registered", "AUC@1", "AUC@5")
            rows.append({"set": scene.name, "variant": name} | {key: row[key] for key in keys})
            rows[-1]["adjust and polish"] = sum(row["stages"].get(name, 0.0) for name in MAPPING_STAGES)
            print(rows[-1], flush=True)
    means = []
    for name in ABLATIONS:
        mine = [row for row in rows if row["variant"] == name]
        means.append(
            {"variant": name} | {key: float(np.mean([row[key] for row in mine])) for key in ("AUC@1", "AUC@5")}
        )
    report("sfm_ablation", "Ablation, mean over sets", means, {"per_set": rows})


def sensor_part(options: Options) -> None:
    """Sensor depth in place of a strong depth network."""
    rows = []
    for scene, work in scenes_of(options, SENSOR):
        depth = f"files:{scene.folder / 'depth'}"
        for objective in ("split", "paper"):
            for polish in (True, False):
                row = run_ours(scene, replace(options, depth=depth), work, True, objective=objective, polish=polish)
                label = f"ours, {objective}{'' if polish else ', no polish'}"
                rows.append({"set": scene.name, "method": label} | row)
                print({key: value for key, value in rows[-1].items() if key != "stages"}, flush=True)
        for row in Peer(scene, work).run(True, 0) if options.peer else ():
            rows.append({"set": scene.name, "method": f"colmap {row['mapper']}"} | row)
            print({key: value for key, value in rows[-1].items() if key != "stages"}, flush=True)
    report("sfm_sensor", "Sensor depth, calibrated", [flat(row) for row in rows])


def retrieval_part(options: Options) -> None:
    """Recall of retrieval: among each frame's k nearest, the share that many matches connect to it."""
    rows = []
    for scene, work in scenes_of(options, ("sevenscenes_redkitchen", "ngp_fox", "saharov32", "dtu_scan24")):
        photos, _ = find_photos(scene.folder / "images")
        cache = Cache(options.cache or work / "cache")
        described = list(describe_photos(photos, load_model("matcher", "sift"), cache))
        begin = time.perf_counter()
        vectors = vlad([item.features.descriptors for item in described], 0)
        seconds = time.perf_counter() - begin
        relevant = looking_alike(scene.truth)
        row = {"set": scene.name, "ms per image": 1000 * seconds / len(photos)}
        random = np.random.default_rng(0).normal(size=vectors.shape).astype(np.float32)
        for k in (10, 25, 50):
            row[f"recall@{k}"] = recall_at_k(vectors, relevant, k)
            row[f"random@{k}"] = recall_at_k(random, relevant, k)
        rows.append(row)
    report("sfm_retrieval", "Retrieval by VLAD over the run's own descriptors", rows)


def looking_alike(truth: torch.Tensor) -> np.ndarray:
    """Frames whose view directions differ by less than 30 degrees."""
    directions = truth[:, 2, :3]
    alike = (directions @ directions.T) > np.cos(np.deg2rad(30))
    return alike.fill_diagonal_(False).numpy()


def main() -> None:
    options = tyro.cli(Options)
    if "main" in options.part:
        main_part(options)
    if "bags" in options.part:
        bags_part(options, thirds=False)
    if "thirds" in options.part:
        bags_part(options, thirds=True)
    if "unrelated" in options.part:
        unrelated_part(options)
    if "ablation" in options.part:
        ablation_part(options)
    if "sensor" in options.part:
        sensor_part(options)
    if "retrieval" in options.part:
        retrieval_part(options)


if __name__ == "__main__":
    main()
