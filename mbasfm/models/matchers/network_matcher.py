"""What networks that match images share: weights, device, images of a size they take, pixels of the original.

Resizing keeps corners on corners, so it only scales pixels that have their first centre at one half. Where both images
have to be equally large, the smaller one is filled up on the right and below.
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.models.base import ImageMatcher, accelerator, half_if_fast, is_fast
from mbasfm.models.weights import content_digest, fetch_command, find_snapshot, require_snapshot
from mbasfm.types.observations import RGB, AnyRGB, PixelMatches

Found = tuple[Float[Tensor, "M 2"], Float[Tensor, "M 2"], Float[Tensor, " M"]]
"""Pixels of both images as the network sees them, first centre at one half, and confidence."""


class ImageNetwork(ImageMatcher):
    """A network with published weights; ``NAME``, ``NAME:VARIANT`` or ``NAME:FOLDER``."""

    variants: ClassVar[dict[str, tuple[str, tuple[str, ...]]]]
    """Repository on the hub and its files, by variant; the first is the default."""
    long_side_px: ClassVar[int]
    """Size to which larger images are reduced."""
    step_px: ClassVar[int]
    """Divisor of the sides of the input."""

    @classmethod
    @abstractmethod
    def missing_code(cls) -> str:
        """Command that gets the network's code; empty if it is there."""

    @classmethod
    def missing(cls) -> str:
        """The command that gets the code or, if that is there, the weights of the default variant."""
        default = next(iter(cls.variants.values()))
        return cls.missing_code() or ("" if find_snapshot(*default) else fetch_command(*default))

    def __init__(self, argument: str = ""):
        missing = self.missing_code()
        if missing:
            raise InputError(f"{self.name}: its code is not on this machine; get it: {missing}")
        self._variant = argument if argument in self.variants else next(iter(self.variants))
        repository, needed = self.variants[self._variant]
        folder = require_snapshot(self.name, "" if argument in self.variants else argument, repository, needed)
        self._device = accelerator()
        self.cpu_seconds = 0.0 if is_fast(self._device) else self.cpu_seconds
        self._network = self._load(folder).to(self._device).eval()
        content = content_digest(*(folder / name for name in needed))
        self.key = f"{self.name}-1-{self._variant}-{self.long_side_px}-{self._device.type}-{content}"

    @abstractmethod
    def _load(self, folder: Path) -> Any:
        """The network with the weights in a folder."""

    @abstractmethod
    def _match(self, first: Float[Tensor, "3 h w"], second: Float[Tensor, "3 H W"]) -> Found:
        """Matches of two images, RGB in 0..1."""

    @torch.inference_mode()
    def match_images(self, first: AnyRGB, second: AnyRGB) -> PixelMatches:
        """Matches of two images."""
        shown = [self._shown(image) for image in (first, second)]
        with half_if_fast(self._device):
            *pixels, confidence = self._match(*shown)
        sizes = [np.array(image.shape[1::-1]) for image in (first, second)]
        scaled = [
            (places.float().cpu().numpy() * size / np.array(image.shape[:0:-1])).astype(np.float32)
            for places, size, image in zip(pixels, sizes, shown, strict=True)
        ]
        inside = np.all([((0 < p) & (p < size)).all(1) for p, size in zip(scaled, sizes, strict=True)], axis=0)
        sure = confidence.float().clamp(0, 1).cpu().numpy()
        return PixelMatches(scaled[0][inside], scaled[1][inside], sure[inside])

    def _shown(self, image: RGB) -> Float[Tensor, "3 h w"]:
        """Image at the size of the network's input."""
        shrink = min(1.0, self.long_side_px / max(image.shape[:2]))
        sides = [max(self.step_px, round(side * shrink / self.step_px) * self.step_px) for side in image.shape[1::-1]]
        resized = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
        return torch.tensor(resized, device=self._device).permute(2, 0, 1).float() / 255


def grey(image: Float[Tensor, "3 h w"]) -> Float[Tensor, "1 h w"]:
    """Luminance of an image."""
    return (image * image.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)


def filled_up(images: list[Float[Tensor, "_ _ _"]]) -> Float[Tensor, "2 C H W"]:
    """Both images, padded to the same size."""
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    pad = torch.nn.functional.pad
    return torch.stack([pad(image, (0, width - image.shape[2], 0, height - image.shape[1])) for image in images])
