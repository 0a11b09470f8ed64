"""Marginalized bundle adjustment from one start after the other, with checkpoints on disk."""

from collections.abc import Sequence
from pathlib import Path

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.stage import Stage
from mbasfm.runtime.threads import all_cores
from mbasfm.sfm.checkpoint import FileJournal
from mbasfm.sfm.start.adjust_best import AdjustStart
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.samples import SampleSource


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
