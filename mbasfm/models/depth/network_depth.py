"""Base of all depth networks: variants, weights, device and precision, batches of images of equal size."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, UInt8
from torch import Tensor
from torch.nn import functional

from mbasfm.errors import InputError
from mbasfm.geometry.focal import focal_from_points
from mbasfm.models.base import DepthModel, accelerator, half_if_fast, is_fast
from mbasfm.models.weights import NEEDED, content_digest, fetch_command, fetch_snapshot, find_snapshot, require_snapshot
from mbasfm.types.observations import RGB, DepthEstimate, Photo

ACCELERATED_BATCH = 8


class NetworkDepth(DepthModel):
    """A network with published weights; ``NAME``, ``NAME:VARIANT`` or ``NAME:FOLDER``."""

    repositories: ClassVar[dict[str, str]]
    """Repository of every variant; the first is the default."""
    needed: ClassVar[tuple[str, ...]] = NEEDED
    """Files of a repository; the last is the largest."""

    @classmethod
    @abstractmethod
    def missing_code(cls) -> str:
        """Command that gets the network's code; empty if it is there."""

    @classmethod
    def missing(cls) -> str:
        """Command that gets the code or, if that is there, the weights of the default variant."""
        repository = cls.repositories[cls.default()]
        there = cls.missing_code() or find_snapshot(repository, cls.needed_of(cls.default()))
        return there if isinstance(there, str) else "" if there else cls._fetch_command()

    @classmethod
    def _fetch_command(cls) -> str:
        return fetch_command(cls.repositories[cls.default()], cls.needed_of(cls.default()))

    @classmethod
    def fetch(cls) -> str:
        """Get the weights of the default variant; returns an error message, empty on success."""
        return fetch_snapshot(cls.repositories[cls.default()], cls.needed_of(cls.default()))

    @classmethod
    def default(cls) -> str:
        """Name of the first variant."""
        return next(iter(cls.repositories))

    @classmethod
    def needed_of(cls, variant: str) -> tuple[str, ...]:
        """Files of a variant, if their names depend on it."""
        del variant
        return cls.needed

    def __init__(self, argument: str = ""):
        missing = self.missing_code()
        if missing:
            raise InputError(f"{self.name}: its code is not on this machine; get it: {missing}")
        self._variant = argument or self.default()
        is_variant = self._variant in self.repositories
        needed = self.needed_of(self._variant)
        repository = self.repositories[self._variant] if is_variant else ""
        folder = require_snapshot(self.name, "" if is_variant else argument, repository, needed)
        self.licence = self.licence_of(self._variant) if is_variant else "that of the weights"
        self._device = accelerator()
        self._is_fast = is_fast(self._device)
        self.batch_size = ACCELERATED_BATCH if self._is_fast else 1
        self.cpu_seconds = 0.0 if self._is_fast else self.cpu_seconds
        self._network = self._load(folder).to(self._device, self._dtype).eval()
        self.key = f"{self.name}-1-{content_digest(*(folder / name for name in needed))}-{self._precision}"

    @property
    def _dtype(self) -> torch.dtype:
        """Precision of the weights in memory: single, unless the whole network may be in half."""
        return torch.float32

    @property
    def _precision(self) -> str:
        """Precision of the computation; part of the cache's key because it changes the last digits."""
        return str(torch.float16 if self._is_fast else torch.float32)

    def licence_of(self, variant: str) -> str:
        """Licence of the weights of a variant."""
        del variant
        return self.licence

    @abstractmethod
    def _load(self, folder: Path) -> Any:
        """The network with the weights in a folder."""

    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Depth of one image."""
        return self.estimate_batch([photo], [image])[0]

    @torch.inference_mode()
    def estimate_batch(
        self, photos: Sequence[Photo], images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> list[DepthEstimate]:
        """Depth of several images; those that have the same size go through the network together."""
        found: dict[int, DepthEstimate] = {}
        for shape in sorted({image.shape for image in images}):
            members = [number for number, image in enumerate(images) if image.shape == shape]
            batch = torch.cat([self._prepare(images[number]) for number in members])
            with half_if_fast(self._device):
                output = self._run(batch.to(self._device, self._dtype))
            chosen = [photos[number] for number in members]
            found |= dict(zip(members, self._interpret(output, chosen), strict=True))
        return [found[number] for number in range(len(images))]

    @abstractmethod
    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        """Input of the network. Corners stay on corners, so the map spans the whole image as our pixels do."""

    def _run(self, batch: Float[Tensor, "B 3 h w"]) -> Any:
        return self._network(batch)

    @abstractmethod
    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        """Depth estimates from the output for photographs of one size."""


def resized(image: RGB, height: int, width: int, mode: str = "bicubic") -> Float[Tensor, "1 3 h w"]:
    """RGB in 0..1 at another size; corners stay on corners."""
    tensor = torch.tensor(image).permute(2, 0, 1)[None].float() / 255
    return functional.interpolate(tensor, (height, width), mode=mode, antialias=True).clamp(0, 1)


def to_arrays(maps: Float[Tensor, "B h w *c"]) -> list[np.ndarray]:
    """One array per image."""
    return list(maps.float().cpu().numpy())


def from_points(
    points: Float32[np.ndarray, "h w 3"],
    photo: Photo,
    is_metric: bool,
    confidence: Float32[np.ndarray, "h w"] | None = None,
) -> DepthEstimate:
    """Depth from a point map in the camera's frame that spans the image, with the focal length that its rays imply."""
    focal = focal_from_points(points, photo.width, photo.height)
    depth = known(points[..., 2], np.isfinite(points).all(-1))
    return DepthEstimate(depth, False, is_metric, focal if np.isfinite(focal) else None, confidence)


def known(depth: Float32[np.ndarray, "h w"], where: Bool[np.ndarray, "h w"]) -> Float32[np.ndarray, "h w"]:
    """Depth where it is positive and the network is confident, else NaN."""
    return np.where(where & np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float32)


def from_one_up(confidence: Float32[np.ndarray, "h w"]) -> Float32[np.ndarray, "h w"]:
    """Confidence in [0, 1], from one in [1, infinity) as networks of DUSt3R's kind give it."""
    return (1 - 1 / np.maximum(confidence, 1)).astype(np.float32)
