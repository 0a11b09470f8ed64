"""Photographs on disk: which files there are, how large they are upright, and what their metadata says.

Pixels are always handed out upright: the orientation tag is applied on reading and nowhere else.
"""

import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from mbasfm.errors import InputError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".heic", ".heif"})
MIN_SIDE_PX = 64
QUALITY = 95
FILM_DIAGONAL_MM = 43.267
MM_PER_UNIT = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Of EXIF's FocalPlaneResolutionUnit."""


@dataclass(frozen=True)
class Photo:
    """One usable photograph."""

    name: str
    """Path relative to the folder, with forward slashes, never leading out of it: the name in all outputs."""
    path: Path
    width: int
    """Upright [px]."""
    height: int
    exif_focal_px: float | None
    """From the metadata, None where it says nothing usable."""
    device: str
    """Maker, model and lens as the metadata name them; empty where it does not."""
    digest: str
    """SHA-256 of the file: the identity of the photograph in the cache."""
    mask: Path | None = None
    """Picture that is black where the photograph is to be ignored."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out, and why."""

    name: str
    reason: str


def find_photos(source: Path) -> tuple[tuple[Photo, ...], tuple[SkippedFile, ...]]:
    """Usable photographs of a folder (searched through) or of a list file (one path per line), sorted by name."""
    photos: list[Photo] = []
    skipped: list[SkippedFile] = []
    first_with: dict[str, str] = {}
    for name, path in sorted(_candidates(source)):
        photo = _inspect(name, path)
        if isinstance(photo, SkippedFile):
            skipped.append(photo)
        elif photo.digest in first_with:
            skipped.append(SkippedFile(name, f"the same file as {first_with[photo.digest]}"))
        else:
            first_with[photo.digest] = name
            photos.append(photo)
    return tuple(photos), tuple(skipped)


def read_upright(path: Path) -> UInt8[np.ndarray, "H W 3"]:
    """RGB pixels with the orientation tag applied; 16-bit and grey images are brought to 8 bits and three channels."""
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
        return np.asarray(_to_rgb(upright))


def read_small(path: Path, long_side: int) -> UInt8[np.ndarray, "h w 3"]:
    """An upright thumbnail; JPEG files are decoded no larger than needed."""
    with Image.open(path) as image:
        image.draft("RGB", (2 * long_side, 2 * long_side))
        upright = ImageOps.exif_transpose(image)
        small = _to_rgb(upright)
        small.thumbnail((long_side, long_side))
        return np.asarray(small)


def read_first_small(paths: Iterable[Path], long_side: int) -> UInt8[np.ndarray, "h w 3"] | None:
    """A thumbnail from the first of several places that has the photograph."""
    for path in paths:
        try:
            return read_small(path, long_side)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return None


def _to_rgb(image: Image.Image) -> Image.Image:
    return (_to_8_bit(image) if image.mode.startswith(("I", "F")) else image).convert("RGB")


def is_upright(path: Path) -> bool:
    """Whether the pixels of a file are stored as they should be seen."""
    with Image.open(path) as image:
        return image.getexif().get(ExifTags.Base.Orientation, 1) == 1


def write_image(path: Path, pixels: UInt8[np.ndarray, "H W 3"]) -> None:
    """In the format of the name's ending, without metadata; lossy formats at high quality."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=QUALITY)


def _to_8_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image, dtype=np.float64)
    full_scale = 65535.0 if values.max(initial=0) > 255 else 255.0
    return Image.fromarray((values / full_scale * 255).clip(0, 255).astype(np.uint8))


def _candidates(source: Path) -> list[tuple[str, Path]]:
    if source.is_dir():
        found = {path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()}
        # 1.jpg.png beside 1.jpg is its mask.
        return [(path.relative_to(source).as_posix(), path) for path in found if path.with_suffix("") not in found]
    if not source.is_file():
        raise InputError(f"{source} does not exist; give a folder of photographs or a text file with one path per line")
    try:
        lines = [line.strip() for line in source.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is neither a folder nor a text file with one path per line") from error
    given = [Path(line) for line in lines if line and not line.startswith("#")]
    return list(zip(_names(given, source.parent), [source.parent / path for path in given], strict=True))


def _names(given: Sequence[Path], folder: Path) -> list[str]:
    """Paths of a list as they are, or, if one leads out of the list's folder, relative to the parent of all."""
    if not any(path.is_absolute() or ".." in path.parts for path in given):
        return [path.as_posix() for path in given]
    full = [Path(os.path.abspath(folder / path)) for path in given]
    try:
        parent = os.path.commonpath([path.parent for path in full])
    except ValueError as error:
        raise InputError("the list names photographs on several drives; copy them to one") from error
    return [path.relative_to(parent).as_posix() for path in full]


def _inspect(name: str, path: Path) -> Photo | SkippedFile:
    """Decode once: a file that cannot be decoded to its end is found here, not hours later."""
    try:
        content = path.read_bytes()
        with Image.open(path) as image:
            image.load()
            exif = image.getexif()
            width, height = image.size
    except FileNotFoundError:
        return SkippedFile(name, "the file does not exist")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return SkippedFile(name, f"cannot be decoded ({error})")
    if min(width, height) < MIN_SIDE_PX:
        return SkippedFile(name, f"only {width} x {height} px; at least {MIN_SIDE_PX} px per side are needed")
    if exif.get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8):
        width, height = height, width
    digest = hashlib.sha256(content).hexdigest()
    return Photo(name, path, width, height, exif_focal_px(exif, width, height), _device(exif), digest)


def exif_focal_px(exif: Image.Exif, width: int, height: int) -> float | None:
    """Focal length in pixels from the 35 mm equivalent, or from millimetres and the sensor's resolution."""
    details = exif.get_ifd(ExifTags.IFD.Exif)
    film = _number(details.get(ExifTags.Base.FocalLengthIn35mmFilm))
    if film:
        return film / FILM_DIAGONAL_MM * math.hypot(width, height)
    focal_mm = _number(details.get(ExifTags.Base.FocalLength))
    per_unit = _number(details.get(ExifTags.Base.FocalPlaneXResolution))
    unit_mm = MM_PER_UNIT.get(int(_number(details.get(ExifTags.Base.FocalPlaneResolutionUnit)) or 2))
    original = _number(details.get(ExifTags.Base.ExifImageWidth))
    if not (focal_mm and per_unit and unit_mm):
        return None
    shrink = max(width, height) / max(original, 1) if original else 1.0  # the tag speaks of the picture as taken
    focal = focal_mm * per_unit / unit_mm * shrink
    return focal if 0.1 * max(width, height) < focal < 100 * max(width, height) else None


def _number(value: object) -> float | None:
    """A positive finite number, or None for anything else a camera may have written."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def _device(exif: Image.Exif) -> str:
    details = exif.get_ifd(ExifTags.IFD.Exif)
    parts = [exif.get(ExifTags.Base.Make), exif.get(ExifTags.Base.Model), details.get(ExifTags.Base.LensModel)]
    return " ".join(str(part).strip("\0 ") for part in parts if part)
