"""Masks: pictures that say which pixels of a photograph to ignore. Black is ignored, as in COLMAP and nerfstudio.

The mask of ``a/1.jpg`` is ``a/1.jpg.png``, in the folder of masks or beside the photograph.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from PIL import Image

from mbasfm.errors import InputError
from mbasfm.types.photos import Photo

MAX_ASPECT_ERROR = 0.01


def with_masks(photos: Sequence[Photo], folder: Path | None) -> tuple[Photo, ...]:
    """Photographs with their masks, where they have one; a given folder must hold at least one."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: not a folder; masks are files like photo.jpg.png in a folder, black = ignore")
    places = [[photo.path.parent / f"{photo.path.name}.png"] for photo in photos]
    if folder is not None:
        places = [[folder / f"{photo.name}.png", folder / f"{photo.path.name}.png"] for photo in photos]
    masks = [next((path for path in paths if path.is_file()), None) for paths in places]
    if folder is not None and not any(masks):
        raise InputError(
            f"{folder}: no mask for any photograph; that of {photos[0].name} would be {photos[0].name}.png"
        )
    masked = tuple(replace(photo, mask=mask) for photo, mask in zip(photos, masks, strict=True))
    for photo in masked:
        read_mask(photo)  # what is wrong with one is said now, not hours later
    return masked


def read_mask(photo: Photo) -> Bool[np.ndarray, "h w"]:
    """True where the photograph counts. A mask may be smaller than its photograph, but must have its aspect ratio."""
    path = photo.mask
    if path is None:
        return np.ones((1, 1), dtype=bool)
    try:
        with Image.open(path) as image:
            values = np.asarray(image.convert("L"))
    except Exception as error:  # a damaged file raises many kinds of errors; all mean the same here
        raise InputError(f"{path}: the mask of {photo.name} cannot be decoded ({error})") from error
    height, width = values.shape
    if abs(width * photo.height / (height * photo.width) - 1) > MAX_ASPECT_ERROR:
        shapes = f"{width} x {height} px, but {photo.name} upright is {photo.width} x {photo.height}"
        raise InputError(f"{path}: the mask is {shapes}; make it the same shape")
    return values > 0
