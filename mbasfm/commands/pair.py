"""`mba pair`: relative pose of two photographs."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console

from mbasfm.commands.sfm import EXIT_NOTHING
from mbasfm.config import Config
from mbasfm.errors import ConfigError
from mbasfm.io.images import read_upright, write_image
from mbasfm.pair import Estimator, PairPose, two_view
from mbasfm.report.figures import match_picture
from mbasfm.runtime.progress import Progress
from mbasfm.types.outcome import FocalSource

PAIR_NAME, PICTURE_NAME = "pair.json", "matches.jpg"


@dataclass(frozen=True)
class Pair:
    """Relative pose of two photographs; exit code 3 if they have none."""

    first: tyro.conf.Positional[Path]
    second: tyro.conf.Positional[Path]
    output: Path | None = None
    """Folder for pair.json and a picture of the matches."""
    matcher: str = "auto"
    """Matcher: auto, NAME or NAME:ARGUMENT; `mba models` lists them."""
    depth: str = "auto"
    """Depth model, for the scale of the translation: NAME or NAME:ARGUMENT."""
    weights: Path | None = None
    """Folder with weights of networks, before the one that the variable MBA_WEIGHTS names."""
    models_path: Path | None = None
    """Folder with clones of networks' code, before the one that the variable MBA_MODELS names."""
    focal: float | None = None
    """Known focal length of both photographs [px]; else the metadata's, else it is searched."""
    cameras: Path | None = None
    """Known intrinsics: COLMAP's cameras.txt or .bin, or JSON."""
    masks: Path | None = None
    """Folder with masks, photo.jpg.png for photo.jpg, black = ignore."""
    estimator: Estimator = "adaptive"
    """Ours, with as many samples as needed or the paper's 64; OpenCV's USAC_MAGSAC or PoseLib, to compare."""
    cache: Path | None = None
    """Where features, depth and matches are kept; nowhere by default."""
    seed: int = 0
    quiet: bool = False
    """Print errors only."""
    json: bool = False
    """Print the result as JSON on standard output."""

    def run(self) -> int:
        """Estimate, write, and say what came out; returns the exit code."""
        config = Config(
            matcher=self.matcher,
            depth=self.depth,
            weights=_text(self.weights),
            models_path=_text(self.models_path),
            focal=self.focal,
            cameras=_text(self.cameras),
            masks=_text(self.masks),
            seed=self.seed,
        )
        console = Console(stderr=True, quiet=self.quiet)
        result = two_view(self.first, self.second, config, self.estimator, self.cache, Progress(console))
        if self.output is not None:
            self._write(result, self.output)
        if self.json:
            print(json.dumps(result.summary(), indent=1))
        elif not self.quiet:
            print("\n".join(lines_of(result)))
        return 0 if result.found else EXIT_NOTHING

    def _write(self, result: PairPose, output: Path) -> None:
        try:
            output.mkdir(parents=True, exist_ok=True)
            (output / PAIR_NAME).write_text(json.dumps(result.summary(), indent=1) + "\n", encoding="utf-8")
            images = [read_upright(path) for path in (self.first, self.second)]
            picture = match_picture(images, (result.pixels_i, result.pixels_j), result.inliers)
            write_image(output / PICTURE_NAME, picture)
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written ({error}); choose another --output") from error


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def lines_of(result: PairPose) -> list[str]:
    """Lines that describe a pose to a person."""
    lines = []
    if result.found:
        x, y, z = result.j_from_i[:, 3]
        length = float(np.linalg.norm(result.j_from_i[:, 3]))
        unit = f"length {length:.4g}, from depth" if result.has_scale else "length unknown"
        direction = f"({x / max(length, 1e-12):+.4f}, {y / max(length, 1e-12):+.4f}, {z / max(length, 1e-12):+.4f})"
        doubt = "" if result.has_direction or result.has_scale else ", not determined"
        focal = [f"{float(f.mean()):.1f} px ({source})" for f, source in _focals(result)]
        lines = [
            f"rotation     {result.rotation_deg:.3f} degrees",
            f"translation  {direction}, {unit}{doubt}",
            f"inliers      {int(result.inliers.sum())} of {len(result.inliers)} matches",
            f"score        {result.score:.3f} (S^m, at most 1)",
            f"sigma        {result.sigma_px:.3f} px at a long side of 1024",
            f"focal        {focal[0]}, {focal[1]}",
        ]
    return [*lines, *result.notes]


def _focals(result: PairPose) -> list[tuple[np.ndarray, FocalSource]]:
    return list(zip(result.intrinsics.focal.numpy(), result.focal_from, strict=True))
