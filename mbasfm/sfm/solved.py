"""What a reconstruction begins with, and what it knows after adjustment."""

from dataclasses import dataclass
from pathlib import Path

from mbasfm.sfm.outcome import Placed
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.sfm.user_files import Given
from mbasfm.types.observations import Observations
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import Photo, SkippedFile


@dataclass(frozen=True)
class Inputs:
    """What the user brought."""

    source: Path
    """Folder or list of the photographs."""
    photos: tuple[Photo, ...]
    skipped: tuple[SkippedFile, ...]
    given: Given


@dataclass(frozen=True)
class Solved:
    """What is known after adjustment; several processes come here together, one of them goes on."""

    observations: Observations
    start: StartIntrinsics
    verified: list[TwoView]
    """Pairs that agree with one relative pose."""
    views: list[TwoView]
    """Those of them that are edges of the graph."""
    placed: Placed | None = None
    """None where nothing could be adjusted."""
