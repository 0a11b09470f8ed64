"""The task of retrieval: share of each image's nearest by VLAD that look in the same direction."""

import time
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64

from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks.base import Outcome
from mbasfm.datasets.registry import open_dataset
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos
from mbasfm.matching.choose_pairs import recall_at_k
from mbasfm.matching.inference import describe_photos
from mbasfm.matching.visual_words import vlad
from mbasfm.models.base import load_model

NEIGHBOURS = (10, 25, 50)
MAX_ANGLE_DEG = 30.0


class Retrieval:
    """Recall at k of the run's own descriptors, and of random ones for comparison."""

    methods = ("vlad", "random")

    def run(self, job: Job, work: Path, cache: Path) -> Outcome:
        """Describe, look up, compare with the true view directions."""
        scene = open_dataset(job.dataset, Path(job.data)).load(job.scene)
        listing = work / "list.txt"
        listing.write_text("".join(f"{(scene.images / name).resolve()}\n" for name in scene.names))
        photos, _ = find_photos(listing)
        with Cache(cache / "ours").active():
            described = list(describe_photos(photos, load_model("matcher", "sift")))
        begin = time.perf_counter()
        vectors = vlad([item.features.descriptors for item in described], job.seed)
        seconds = time.perf_counter() - begin
        if job.method == "random":
            vectors = np.random.default_rng(job.seed).normal(size=vectors.shape).astype(np.float32)
        relevant = looking_alike(scene.cam_from_world)
        measures = {f"recall@{k}": recall_at_k(vectors, relevant, k) for k in NEIGHBOURS}
        measures["ms per image"] = 1000 * seconds / len(photos)
        return Outcome(measures, {"vlad": seconds}, len(photos), len(photos), 1)

    def failed(self, job: Job) -> Outcome:
        """Outcome in which nothing was found."""
        return Outcome({f"recall@{k}": 0.0 for k in NEIGHBOURS}, num_pairs=1)


def looking_alike(cam_from_world: Float64[np.ndarray, "N 3 4"]) -> Bool[np.ndarray, "N N"]:
    """Which frames have view directions that differ by less than 30 degrees."""
    directions = cam_from_world[:, 2, :3]
    alike = (directions @ directions.T) > np.cos(np.deg2rad(MAX_ANGLE_DEG))
    np.fill_diagonal(alike, False)
    return alike
