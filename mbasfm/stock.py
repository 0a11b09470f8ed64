"""Where samples are put, and how many of them: within the memory that there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mbasfm.budget import GB, Plan, plan_memory
from mbasfm.config import Config
from mbasfm.distributed import from_main, is_main, wait_for_all
from mbasfm.graph import strongest_pairs
from mbasfm.io.shards import create_samples, open_samples
from mbasfm.sampling import Keypoints, draw_into, draw_samples
from mbasfm.twoview import TwoView
from mbasfm.types import SampleSource
from mbasfm.watch import Watch, present_memory_mb

FOLDER = "samples"


@dataclass(frozen=True)
class Stock:
    """Where samples are put."""

    plan: Plan
    folder: Path | None

    def draw(self, views: Sequence[TwoView], keypoints: Sequence[Keypoints], seed: int) -> SampleSource:
        """In memory or, where they are many, on disk, written by one process and read by all."""
        count = self.plan.samples_per_edge
        if not self.plan.is_on_disk or self.folder is None:
            return draw_samples(views, keypoints, count, seed)
        folder, block_edges = self.folder / FOLDER, max(1, self.plan.block_samples // count)
        if is_main():
            create = partial(create_samples, folder, samples_per_edge=count, block_edges=block_edges)
            draw_into(create, views, keypoints, count, seed)
        wait_for_all()
        return open_samples(folder)


def within_budget(
    views: list[TwoView], num_frames: int, config: Config, folder: Path | None, watch: Watch
) -> tuple[list[TwoView], Stock]:
    """Of the pairs those that fit into memory, and where to put their samples."""
    degree = int(np.bincount([end for view in views for end in (view.i, view.j)], minlength=1).max())
    budget = None if config.max_memory_gb is None else config.max_memory_gb * GB
    is_split, used = config.objective == "split", present_memory_mb() * (1 << 20)
    plan = from_main(  # the same for all processes, however much each has in use
        lambda: plan_memory(num_frames, degree, 2 * len(views), config.samples_per_edge, is_split, budget, used)
    )
    if plan.pairs_per_frame < degree:
        views = strongest_pairs(views, num_frames, plan.pairs_per_frame)
    if budget is not None:
        watch.say(f"for {config.max_memory_gb:g} GB: {plan.sentence(len(views))}")
    return views, Stock(plan, folder)
