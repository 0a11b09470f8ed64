"""Results to compare later changes with: every set of a folder, whole, in thirds and in bags, ours only.

    python benchmarks/baseline.py --data FOLDER --weights FOLDER            # run, then compare with what is stored
    python benchmarks/baseline.py --data FOLDER --weights FOLDER --store    # run, then store it in benchmarks/baseline

Features, depth, matches and verified pairs are kept in the results folder, so that a repetition costs the later stages
only. A run that is there already is not done again: a changed program needs another --output; --cache may stay.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mbasfm.bench.jobs import Job, make_jobs
from mbasfm.bench.recipe import Recipe, Subsets, Variant
from mbasfm.bench.results.compare import compare, only_in_one
from mbasfm.bench.runner import Record, Results, run_jobs
from mbasfm.datasets.base import DatasetScene
from mbasfm.datasets.plain import Plain
from mbasfm.errors import InputError

STORED = Path(__file__).parent / "baseline"
MEASURES = ("AUC@1", "AUC@5", "AUC@10", "RRA@1", "RRA@5", "RTA@5", "ATE")
COMPARED = ("AUC@1", "AUC@5", "AUC@10", "RRA@1", "RRA@5")
WORTH_TELLING = 0.01
NETWORK, WEAK, FLAT = "Depth Anything", "weak network", "flat"
KNOWN, UNKNOWN = "known", "unknown"
BAGS = Subsets("bags", sizes=(3, 5, 10), draws=5)
A_DAY = 86_400.0


def main() -> int:
    options = _options()
    dataset = Plain(options.data)
    scenes = _usable(dataset, options.scenes)
    results = Results(options.output, options.cache)
    wanted = (job for part in options.parts for job in _jobs(part, dataset, scenes, options))
    jobs = [] if options.no_run else list(wanted)
    for number, (job, record, is_new) in enumerate(run_jobs(jobs, results, A_DAY, retry=False), 1):
        print(f"{number}/{len(jobs)} {_line(job, record)}{'' if is_new else ' (kept)'}", flush=True)
    for part in options.parts:
        records = [_small(record) for record in results.all() if _part_of(record) == part]
        if options.store:
            STORED.mkdir(exist_ok=True)
            (STORED / f"{part}.json").write_text(_as_lines(records), encoding="utf-8")
        elif (STORED / f"{part}.json").is_file():
            _tell_moves(part, json.loads((STORED / f"{part}.json").read_text(encoding="utf-8")), records)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folders with images/ and gt.json")
    parser.add_argument("--weights", type=Path, required=True, help="Depth-Anything-V2-Small-hf, tiefenrausch.onnx")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "baseline")
    parser.add_argument("--cache", type=Path, help="of features, depth and matches; by default in the output")
    parser.add_argument("--scenes", nargs="*", default=[], help="only these")
    parser.add_argument("--parts", nargs="*", default=["whole", "thirds", "bags"])
    parser.add_argument("--no-run", action="store_true", help="store or compare what the output holds already")
    parser.add_argument("--store", action="store_true", help="make this the baseline")
    return parser.parse_args()


def _usable(dataset: Plain, wanted: Sequence[str]) -> list[DatasetScene]:
    """Scenes that have a truth to compare with, smallest first."""
    found = []
    for name in wanted or dataset.scenes():
        try:
            found.append(dataset.load(name))
            if found[-1].left_out:
                print(f"{name}: {len(found[-1].left_out)} photographs without known pose are left out", file=sys.stderr)
        except InputError as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
    return sorted(found, key=lambda scene: len(scene.names))


def _jobs(part: str, dataset: Plain, scenes: Sequence[DatasetScene], options: argparse.Namespace) -> Iterator[Job]:
    """Three seeds of the network with known intrinsics only; subsets with known intrinsics, where there are any."""
    depths: dict[str, dict[str, Any]] = {
        NETWORK: {"depth": "depth-anything-v2", "weights": str(options.weights.resolve())},
        WEAK: {"depth": f"onnx:{(options.weights / 'tiefenrausch.onnx').resolve()}"},
        FLAT: {"depth": "flat"},
    }
    subsets = {"whole": Subsets(), "thirds": Subsets("thirds"), "bags": BAGS}[part]
    for scene in scenes:
        protocol = "default" if scene.has_rotations else "positions"
        is_calibrated = all(camera is not None for camera in scene.cameras)
        knowledge = (KNOWN, UNKNOWN) if part == "whole" and is_calibrated else (KNOWN,) if is_calibrated else (UNKNOWN,)
        for intrinsics in knowledge:
            for depth in (NETWORK, WEAK, FLAT) if part == "whole" else (NETWORK, FLAT):
                seeds = 3 if part == "whole" and depth == NETWORK and intrinsics == knowledge[0] else 1
                variant = Variant(f"{depth}, {intrinsics}", intrinsics, settings=depths[depth])
                shape = {"seeds": seeds, "subsets": subsets, "variants": (variant,)}
                recipe = Recipe(part, part, "plain", protocol=protocol, methods=("ours",), **shape)
                yield from make_jobs(recipe, dataset, [scene.name], ["ours"])


def _part_of(record: Record) -> str:
    subset = record["job"]["subset"]
    return "whole" if subset == "all" else "thirds" if subset.startswith("third") else "bags"


def _line(job: Job, record: Record) -> str:
    values = " ".join(f"{name} {record['measures'].get(name, float('nan')):.3f}" for name in ("AUC@1", "AUC@5"))
    counts = f"{record['num_registered']}/{record['num_images']}"
    return f"{job.scene}, {job.subset}, {job.variant}, seed {job.seed}: {counts} {values} {record['status'][:80]}"


def _small(record: Record) -> Record:
    """What comparison needs, rounded to what can be told from noise."""
    job = {key: record["job"][key] for key in ("scene", "group", "variant", "method", "subset", "seed")}
    measures = {
        name: round(record["measures"][name], 4) for name in MEASURES if record["measures"].get(name) is not None
    }
    counts = {key: record[key] for key in ("num_registered", "num_images")}
    mapping = {name: round(seconds, 2) for name, seconds in record["stages"].items()}
    return {"job": job, "status": record["status"][:80], **counts, "measures": measures, "seconds": mapping}


def _as_lines(records: Sequence[Record]) -> str:
    """One run a line, so that a difference of two baselines can be read."""
    rows = sorted(json.dumps(record) for record in records)
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _tell_moves(part: str, before: Sequence[Record], after: Sequence[Record]) -> None:
    moves = compare(before, after, COMPARED)
    moved = [move for move in moves if move.is_beyond_noise and abs(move.after - move.before) > WORTH_TELLING]
    print(f"\n{part}: {len(moves)} values compared, {len(moved)} moved")
    for move in moved:
        place = ", ".join(word for word in (move.scene, move.group, move.variant) if word != "all")
        print(f"  {place}: {move.measure} {move.before:.3f} -> {move.after:.3f} (+- {2 * move.spread:.3f})")
    print(f"  not run: {len(only_in_one(before, after)[0])} of {len({(m.scene, m.group, m.variant) for m in moves})}")


if __name__ == "__main__":
    sys.exit(main())
