"""Adjustment from one start after the other, with checkpoints, so that it continues after a kill."""

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mbasfm.adjust.adam import AdamDescent
from mbasfm.adjust.adjust import Adjustment, Checkpoint, adjust
from mbasfm.adjust.levenberg_marquardt import Descent
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.problem import Step
from mbasfm.adjust.stage import Stage
from mbasfm.adjust.unknowns import PriorTerm
from mbasfm.objective.edge_block import blocks
from mbasfm.objective.registry import KINDS
from mbasfm.runtime.parallel import all_cores, from_main, is_main
from mbasfm.sfm.sample_store import StoredSamples
from mbasfm.sfm.start.race import AdjustStart
from mbasfm.types.cameras import Cameras, Fixed, Intrinsics
from mbasfm.types.observations import SampleSource

FORMAT = 1
"""Version of the file; to be raised when its content, or what adjustment does with it, changes."""
SECONDS_BETWEEN = 10.0
"""Seconds of work that a kill may cost; a shorter adjustment leaves no file."""
CONTENT: list[Any] = [
    Checkpoint,
    Descent,
    AdamDescent,
    Step,
    Cameras,
    Intrinsics,
    PriorTerm,
    PosePriors,
]
"""All classes that a file may hold besides tensors, plain values and statistics of residuals; no others are loaded."""
torch.serialization.add_safe_globals(CONTENT)


class FileJournal:
    """Checkpoint of one adjustment in one file; without a path nothing is kept."""

    def __init__(self, path: Path | None, cameras: Cameras, samples: SampleSource, *others: object):
        """``cameras``, ``samples`` and ``others``: all that adjustment depends on; other checkpoints are ignored."""
        self._path, self._given = path, (cameras, samples, *others)
        self._digest = ""
        self._last_time = time.monotonic()

    def last(self) -> Checkpoint | None:
        """Checkpoint of an earlier run from the same start, if there is any."""
        return from_main(self._read)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint if the last one is old enough."""
        if self._path is None or not is_main() or time.monotonic() - self._last_time < SECONDS_BETWEEN:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.part")
        torch.save((self._own_digest(), checkpoint), temporary)
        os.replace(temporary, self._path)
        self._last_time = time.monotonic()

    def _read(self) -> Checkpoint | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            with torch.serialization.safe_globals(_statistics_types()):
                digest, checkpoint = torch.load(self._path, weights_only=True)
        except Exception:  # damaged in any way: treated as missing
            return None
        return checkpoint if digest == self._own_digest() else None

    def _own_digest(self) -> str:
        """Digest of the input, computed when it is first needed, as samples may be many."""
        if not self._digest:
            digest = hashlib.blake2b(f"{FORMAT}".encode(), digest_size=20)
            for part in self._given:
                for piece in _pieces(part):
                    digest.update(piece)
            self._digest = digest.hexdigest()
        return self._digest


def _statistics_types() -> list[Any]:
    """Classes that statistics of any kind of residual are made of."""
    return [item for kind in KINDS.values() for item in kind.statistics_types]


def _pieces(item: object) -> Iterable[bytes]:
    """Bytes that distinguish a value from all others."""
    if isinstance(item, Tensor):
        yield from (repr((item.dtype, item.shape)).encode(), item.detach().contiguous().numpy().tobytes())
    elif isinstance(item, StoredSamples):
        for chunk in blocks(item):
            yield from _pieces(item.rows(chunk))
    elif is_dataclass(item) or isinstance(item, tuple):
        for value in item if isinstance(item, tuple) else vars(item).values():
            yield from _pieces(value)
    else:
        yield repr(item).encode()


def adjuster(
    samples: SampleSource, stages: Sequence[Stage], fixed: Fixed, priors: PosePriors | None, folder: Path | None
) -> AdjustStart:
    """A function that adjusts one start, with a checkpoint of each in the folder."""

    def adjust_start(number: int, cameras: Cameras) -> Adjustment:
        path = None if folder is None else folder / f"adjust-{number}.pt"
        journal = FileJournal(path, cameras, samples, stages, fixed, priors)
        with all_cores():
            return adjust(cameras, samples, stages, fixed, priors, journal)

    return adjust_start
