"""Input of a reconstruction, and its state after adjustment."""

from dataclasses import dataclass
from pathlib import Path

from mbasfm.sfm.build_graph import Graph
from mbasfm.sfm.outcome import Placed
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.sfm.user_files import Given
from mbasfm.types.observations import Observations
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import Photo, SkippedFile


@dataclass(frozen=True)
class Inputs:
    """Input from the user."""

    source: Path
    """Folder or list of the photographs."""
    photos: tuple[Photo, ...]
    skipped: tuple[SkippedFile, ...]
    given: Given


@dataclass(frozen=True)
class Solved:
    """State after adjustment, which all processes reach and one continues from."""

    observations: Observations
    start: StartIntrinsics
    verified: list[TwoView]
    """Pairs that agree with one relative pose."""
    graph: Graph
    """Those of them that are edges."""
    placed: Placed | None = None
    """Adjusted cameras; None if nothing could be adjusted."""
