"""RoMa through its package romatch: a dense warp between two images with certainty, sampled on a grid of each."""

from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.models.base import ImageMatcher, accelerator, is_fast, weights_folder
from mbasfm.models.weights import content_digest
from mbasfm.types.observations import AnyRGB, PixelMatches

STEP_PX = 12
"""Spacing of the grid, in pixels of the warp: 72 x 72 places in each image."""
MIN_CERTAINTY = 0.05
"""Least certainty of a match, as in the package's own sampling."""
RELEASES = "https://github.com/Parskatt/storage/releases/download/roma"
BACKBONE = "https://dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/dinov2_vitl14_pretrain.pth"
VARIANTS = {"outdoor": f"{RELEASES}/roma_outdoor.pth", "indoor": f"{RELEASES}/roma_indoor.pth"}


class RomaMatcher(ImageMatcher):
    """``roma`` (photographs outdoors) or ``roma:indoor``."""

    name = "roma"
    licence = "MIT; DINOv2: Apache-2.0"
    download, memory = "1.7 GB", "4 GB, estimated"
    cpu_seconds = 60.0

    @staticmethod
    def missing() -> str:
        """The package to install, or the command that gets the weights."""
        return _missing("outdoor")

    def __init__(self, argument: str = ""):
        variant = argument or "outdoor"
        if variant not in VARIANTS:
            raise InputError(f"roma:{argument}: choose one of {', '.join(VARIANTS)}")
        if _missing(variant):
            raise InputError(f"roma: not all of it is on this machine; get it: {_missing(variant)}")
        import romatch

        self._device = accelerator()
        self.cpu_seconds = 0.0 if is_fast(self._device) else self.cpu_seconds
        files = _find(VARIANTS[variant]), _find(BACKBONE)
        weights, backbone = (torch.load(path, map_location="cpu", weights_only=True) for path in files)
        build = getattr(romatch, f"roma_{variant}")
        self._network = build(self._device, weights=weights, dinov2_weights=backbone, use_custom_corr=False)
        self.key = f"roma-1-{STEP_PX}-{MIN_CERTAINTY}-{self._device.type}-{content_digest(*files)}"

    @torch.inference_mode()
    def match_images(self, first: AnyRGB, second: AnyRGB) -> PixelMatches:
        """Matches where the warp at grids of both images is certain enough."""
        pictures = [Image.fromarray(image) for image in (first, second)]
        warp, certainty = self._network.match(*pictures, device=self._device)
        # Both ways lie side by side: the left half has its grid in the first image, the right half in the second.
        halves = [(part, sure) for part, sure in zip(warp[0].chunk(2, 1), certainty[0].chunk(2, 1), strict=True)]
        places, sure = (torch.cat([_on_grid(half[n]) for half in halves]) for n in (0, 1))
        kept = sure > MIN_CERTAINTY
        # From -1 to 1 between the image's corners, so its first pixel's centre comes to one half.
        sizes = [places.new_tensor(image.shape[1::-1]) for image in (first, second)]
        ends = [(places[kept, side : side + 2] + 1) / 2 * size for side, size in zip((0, 2), sizes, strict=True)]
        pixels_i, pixels_j, confidence = (values.float().cpu().numpy() for values in (*ends, sure[kept].clamp(0, 1)))
        return PixelMatches(pixels_i, pixels_j, confidence)


def _on_grid(values: Float[Tensor, "H W *C"]) -> Float[Tensor, " M *C"]:
    return values[STEP_PX // 2 :: STEP_PX, STEP_PX // 2 :: STEP_PX].flatten(0, 1)


def _find(url: str) -> Path:
    """A file of weights, below the folder for weights or where the package itself would put it."""
    name = url.rpartition("/")[2]
    folder = weights_folder()
    places = [*([] if folder is None else [folder / name]), Path(torch.hub.get_dir()) / "checkpoints" / name]
    return next((place for place in places if place.is_file()), places[0])


def _missing(variant: str) -> str:
    if not find_spec("romatch"):
        return "pip install romatch"
    absent = [url for url in (VARIANTS[variant], BACKBONE) if not _find(url).is_file()]
    gets = (f"curl -L --create-dirs -o {_find(url)} {url}" for url in absent)
    return " && ".join(gets)
