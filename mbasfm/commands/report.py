"""`mba report`: the page of a scene, made again."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from mbasfm.report.record import write_report


@dataclass(frozen=True)
class Report:
    """Make report.html of a finished scene again, from its report.json, sparse/ and photographs."""

    scene: tyro.conf.Positional[Path]
    """The --output of mba sfm."""

    def run(self) -> int:
        """Write, and say where."""
        print(write_report(self.scene))
        return 0
