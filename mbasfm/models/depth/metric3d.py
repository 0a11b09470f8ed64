"""Depth from Metric3D (v2), through the hubconf.py of its repository."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.models.clones import Code
from mbasfm.models.depth.clone_depth import ForeignDepth
from mbasfm.models.depth.network_depth import known, resized, to_arrays
from mbasfm.models.weights import find_clone
from mbasfm.types.observations import RGB, DepthEstimate, Photo

HEIGHT_PX, WIDTH_PX = 616, 1064
CANONICAL_FOCAL_PX = 1000.0
"""Focal length for which the network's depth is metric, at the size of its input [px]."""
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Metric3D(ForeignDepth):
    """Depth and confidence; metric if the metadata of the photograph tell the focal length."""

    name = "metric3d"
    code = Code("YvanYin/Metric3D")
    repositories = dict.fromkeys(("small", "large", "giant2"), "JUGGHM/Metric3D")
    licence = "BSD-2-Clause"
    download, memory = "150 MB (small)", "2 GB (small), estimated"
    cpu_seconds = 15.0

    @classmethod
    def needed_of(cls, variant: str) -> tuple[str, ...]:
        """Files of a variant; one repository has the weights of all."""
        return (f"metric_depth_vit_{variant if variant in cls.repositories else cls.default()}_800k.pth",)

    @classmethod
    def missing_code(cls) -> str:
        """Repository to clone, or packages that it builds networks with."""
        if find_clone(cls.code.repository) is None:
            return cls.code.get_command()
        return "" if find_spec("mmcv") or find_spec("mmengine") else "pip install mmengine timm"

    def _load(self, folder: Path) -> Any:
        clone, (file,) = find_clone(self.code.repository), self.needed_of(self._variant)
        entry = "metric3d_" + file.removeprefix("metric_depth_").removesuffix("_800k.pth")
        try:
            network = torch.hub.load(str(clone), entry, source="local", pretrain=False)
            state = torch.load(folder / file, map_location="cpu", weights_only=True)
        except Exception as error:  # it is others' code and a file of theirs
            raise InputError(f"{self.name}: {clone} cannot build {entry} with {folder / file} ({error})") from error
        network.load_state_dict(state["model_state_dict"], strict=False)
        return network

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        """The whole image, padded with the mean colour, which is 0."""
        height, width, top, left = inner_size(image.shape[1], image.shape[0])
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
        framed = torch.zeros(1, 3, HEIGHT_PX, WIDTH_PX)
        framed[..., top : top + height, left : left + width] = (255 * resized(image, height, width) - mean) / std
        return framed

    def _run(self, batch: Float[Tensor, "B 3 h w"]) -> Any:
        return self._network.inference({"input": batch})[:2]

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        height, width, top, left = inner_size(photos[0].width, photos[0].height)
        inside = (..., slice(top, top + height), slice(left, left + width))
        depth, sure = (to_arrays(values.reshape(len(photos), HEIGHT_PX, WIDTH_PX)[inside]) for values in output)
        estimates = []
        for values, confidence, photo in zip(depth, sure, photos, strict=True):
            estimate = DepthEstimate(known(values, values > 0), False, False, None, confidence.clip(0, 1))
            if photo.exif_focal_px is not None:
                factor = photo.exif_focal_px * width / photo.width / CANONICAL_FOCAL_PX
                estimate = replace(
                    estimate, values=estimate.values * estimate.values.dtype.type(factor), is_metric=True
                )
            estimates.append(estimate)
        return estimates


def inner_size(width: int, height: int) -> tuple[int, int, int, int]:
    """Height and width of the image within the padding, and the rows and columns before it."""
    scale = min(HEIGHT_PX / height, WIDTH_PX / width)
    inner = max(1, int(height * scale)), max(1, int(width * scale))
    return *inner, (HEIGHT_PX - inner[0]) // 2, (WIDTH_PX - inner[1]) // 2
