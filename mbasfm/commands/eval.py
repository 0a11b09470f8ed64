"""`mba eval`: any poses against the truth."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from mbasfm.evaluation.protocols import find_protocol
from mbasfm.evaluation.score_files import Score, score_files


@dataclass(frozen=True)
class Eval:
    """Score camera poses of any method against ground truth. Images without a pose are wrong."""

    model: tyro.conf.Positional[Path]
    """COLMAP model or scene folder, transforms.json, gt.json, or a trajectory of TUM or KITTI."""
    ground_truth: tyro.conf.Positional[Path]
    """The same kinds of files, in any mix."""
    protocol: str = "default"
    """default, mast3r-sfm, df-sfm, imc2021, scannet, tanks-and-temples, fastmap, 7scenes, wayspots or two-view; see
    docs/evaluation.md."""
    pairs: Path | None = None
    """File with two names per line: only these pairs count."""
    also_registered: Path | None = None
    """Another model: only pairs count for which it has both poses."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> int:
        """Print every measure of the protocol."""
        protocol = find_protocol(self.protocol)
        score = score_files(self.model, self.ground_truth, protocol, self.pairs, self.also_registered)
        if self.json:
            print(json.dumps(as_json(score) | {"protocol": self.protocol}, indent=1, allow_nan=False))
            return 0
        console = Console()
        table = Table("measure", "value", "folded", title=protocol.title, box=box.SIMPLE_HEAD)
        for name, value in score.measures.items():
            if not name.endswith(" folded"):
                folded = score.measures.get(f"{name} folded")
                table.add_row(name, _text(value), "" if folded is None else _text(folded))
        console.print(table)
        if protocol.covisible and self.pairs is None:
            console.print(
                "all pairs count; the protocol is about co-visible ones: list them in --pairs", highlight=False
            )
        strangers = f"; {score.num_strangers} more are not in the truth" if score.num_strangers else ""
        console.print(f"{score.num_registered} of {score.num_images} images have a pose{strangers}", highlight=False)
        return 0


def _text(value: float) -> str:
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2e}"


def as_json(score: Score) -> dict[str, object]:
    """Score without the curve, for JSON; null in place of what is not finite."""
    content = asdict(score)
    del content["curve"]
    content["measures"] = {name: value if math.isfinite(value) else None for name, value in score.measures.items()}
    return content
