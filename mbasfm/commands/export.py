"""`mba export`: files of a scene, made again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from mbasfm.scene.folder import KINDS, Kind, export_scene


@dataclass(frozen=True)
class Export:
    """Make files of a finished scene again, from its sparse/, depth/*.npz and images/."""

    scene: tyro.conf.Positional[Path]
    """The --output of mba sfm."""
    format: Kind | Literal["all"] = "all"
    """Which files: see docs/sfm.md."""

    def run(self) -> int:
        """Write, and say how many files of each kind."""
        kinds = KINDS if self.format == "all" else (self.format,)
        for kind, written in export_scene(self.scene, kinds).items():
            more = f" and {len(written) - 1} more" if len(written) > 1 else ""
            print(f"{kind}: {written[0]}{more}" if written else f"{kind}: nothing to do")
        return 0
