"""Marginalized bundle adjustment from every start, of which the best end counts."""

from collections.abc import Sequence
from pathlib import Path

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.stage import Stage
from mbasfm.runtime.threads import all_cores
from mbasfm.sfm.checkpoint import FileJournal
from mbasfm.sfm.outcome import Placed
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.samples import SampleSource


def adjust_best(
    starts: Sequence[Cameras],
    samples: SampleSource,
    stages: Sequence[Stage],
    fixed: Fixed,
    priors: PosePriors | None,
    folder: Path | None,
) -> Placed:
    """The end with the best score; in the folder is noted how far each start has come."""

    def end_of(number: int, cameras: Cameras) -> Placed:
        path = None if folder is None else folder / f"adjust-{number}.pt"
        journal = FileJournal(path, cameras, samples, stages, fixed, priors)
        with all_cores():
            return Placed(cameras, samples, adjust(cameras, samples, stages, fixed, priors, journal))

    ends = (end_of(number, cameras) for number, cameras in enumerate(starts))
    return max(ends, key=lambda placed: placed.score)
