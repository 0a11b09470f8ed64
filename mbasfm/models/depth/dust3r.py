"""Depth from DUSt3R, the default of the paper: the same image twice, and z of the first point map."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.clones import Code
from mbasfm.models.depth.clone_depth import ForeignDepth
from mbasfm.models.depth.network_depth import from_one_up, from_points, resized, to_arrays
from mbasfm.types.observations import RGB, DepthEstimate, Photo

LONG_SIDE_PX, STEP_PX = 512, 16


class Dust3rDepth(ForeignDepth):
    """Depth up to scale, confidence, and the focal length that the point map's rays tell."""

    name = "dust3r"
    code = Code("naver/dust3r", modules=("dust3r.model", "mini_dust3r.model"), clone_options="--recursive ")
    repositories = {"512-dpt": "naver/DUSt3R_ViTLarge_BaseDecoder_512_dpt"}
    needed = ("config.json", "model.safetensors")
    licence = "CC-BY-NC-SA-4.0, non-commercial (code and weights)"
    download, memory = "2.3 GB", "3.0 GB"
    cpu_seconds = 21.0

    def _load(self, folder: Path) -> Any:
        return self._import().AsymmetricCroCo3DStereo.from_pretrained(str(folder))

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        """Input of the network; as in training, what exceeds whole patches is cut off equally on both sides."""
        height, width = whole_size(image.shape[1], image.shape[0])
        rows, columns = cut(height), cut(width)
        return 2 * resized(image, height, width)[..., rows, columns] - 1

    def _run(self, batch: Float[Tensor, "B 3 h w"]) -> Any:
        views = [{"img": batch, "instance": [f"{side} {n}" for n in range(len(batch))]} for side in ("left", "right")]
        return self._network(*views)[0]

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        points, confidence = (to_arrays(output[name]) for name in ("pts3d", "conf"))
        size = whole_size(photos[0].width, photos[0].height)
        return [
            from_points(put_back(xyz, size), photo, False, put_back(from_one_up(sure), size, 0.0))
            for xyz, sure, photo in zip(points, confidence, photos, strict=True)
        ]


def whole_size(width: int, height: int) -> tuple[int, int]:
    """Height and width at which the network sees an image, before it is cut to whole patches."""
    scale = LONG_SIDE_PX / max(width, height)
    return max(STEP_PX, round(height * scale)), max(STEP_PX, round(width * scale))


def cut(side_px: int) -> slice:
    """Middle of a side, cut to whole patches."""
    kept = side_px // STEP_PX * STEP_PX
    return slice((side_px - kept) // 2, (side_px - kept) // 2 + kept)


def put_back(cut_out: np.ndarray, size: tuple[int, int], around: float = np.nan) -> np.ndarray:
    """Map of the whole image; unknown at the edges that were cut off."""
    whole = np.full((*size, *cut_out.shape[2:]), around, np.float32)
    whole[cut(size[0]), cut(size[1])] = cut_out
    return whole
