"""Photographs on disk: which files there are, how large they are upright, what their metadata and masks say.

Pixels are always handed out upright: the orientation tag is applied on reading and nowhere else. Black pixels of a mask
are ignored, as in COLMAP and nerfstudio; the mask of ``a/1.jpg`` is ``a/1.jpg.png``, in the folder of masks or beside
the photograph.
"""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from mbasfm.errors import InputError
from mbasfm.io.files import MOST_EXPANSION, read_json
from mbasfm.types.observations import Photo
from mbasfm.types.outcome import SkippedFile

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".heic", ".heif"})
VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"})
MIN_SIDE_PX = 64
QUALITY = 95
FILM_DIAGONAL_MM = 43.267
MM_PER_UNIT = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Millimetres per unit of EXIF's FocalPlaneResolutionUnit."""
FRAMES_FOLDER = "frames"
"""Folder of a scene for the frames of its video."""
TIMES_NAME = "times.json"
MAX_ASPECT_ERROR = 0.01


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


def inspect_photos(paths: Sequence[Path]) -> tuple[Photo, ...]:
    """The given photographs in the given order, named relative to their common folder; each must be usable."""
    full = [Path(os.path.abspath(path)) for path in paths]
    photos = []
    for given, name, path in zip(paths, _names(full, Path()), full, strict=True):
        photo = _inspect(name, path)
        if isinstance(photo, SkippedFile):
            raise InputError(f"{given}: {photo.reason}")
        photos.append(photo)
    return tuple(photos)


def read_upright(path: Path) -> UInt8[np.ndarray, "H W 3"]:
    """RGB pixels with the orientation tag applied; 16-bit and grey images are brought to 8 bits and three channels."""
    with _opened(path) as image:
        return np.asarray(_upright_rgb(image))


def read_small(path: Path, long_side: int) -> UInt8[np.ndarray, "h w 3"]:
    """An upright thumbnail; JPEG files are decoded no larger than needed."""
    with _opened(path) as image:
        image.draft("RGB", (2 * long_side, 2 * long_side))
        small = _upright_rgb(image)
        small.thumbnail((long_side, long_side))
        return np.asarray(small)


def read_first_small(paths: Iterable[Path], long_side: int) -> UInt8[np.ndarray, "h w 3"] | None:
    """A thumbnail from the first of several places that has the photograph."""
    for path in paths:
        try:
            return read_small(path, long_side)
        except InputError:
            continue
    return None


def _upright_rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    return (_to_8_bit(upright) if upright.mode.startswith(("I", "F")) else upright).convert("RGB")


def is_upright(path: Path) -> bool:
    """Whether the pixels of a file are stored upright."""
    with _opened(path) as image:
        return image.getexif().get(ExifTags.Base.Orientation, 1) == 1


def is_plausible(path: Path) -> bool:
    """Whether the image is no larger than its file can hold, as far as the header can be read."""
    try:
        with Image.open(path) as image:
            return image.width * image.height <= MOST_EXPANSION * path.stat().st_size
    except Exception:  # not every kind of picture is known here
        return True


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open image; the many errors of damaged files become one kind."""
    try:
        with Image.open(path) as image:
            yield image
    except FileNotFoundError as error:
        raise InputError(f"{path}: the file does not exist") from error
    except Exception as error:
        raise InputError(f"{path}: cannot be decoded ({error})") from error


def write_image(path: Path, pixels: UInt8[np.ndarray, "H W 3"]) -> None:
    """Write an image in the format of its file extension, without metadata; lossy formats at high quality."""
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
    """Paths of a list unchanged or, if one leads out of the list's folder, relative to their common parent."""
    if not any(path.is_absolute() or ".." in path.parts for path in given):
        return [path.as_posix() for path in given]
    full = [Path(os.path.abspath(folder / path)) for path in given]
    try:
        parent = os.path.commonpath([path.parent for path in full])
    except ValueError as error:
        raise InputError("the list names photographs on several drives; copy them to one") from error
    return [path.relative_to(parent).as_posix() for path in full]


def _inspect(name: str, path: Path) -> Photo | SkippedFile:
    """Decode a file once, so that a damaged one is found now and not hours later."""
    try:
        content = path.read_bytes()
        if not content:
            return SkippedFile(name, "cannot be decoded (the file is empty)")
        with Image.open(path) as image:
            width, height = _upright_rgb(image).size
            focal_px, device, gps = _metadata(image, width, height)
    except FileNotFoundError:
        return SkippedFile(name, "the file does not exist")
    except UnidentifiedImageError:
        return SkippedFile(name, "cannot be decoded (no known kind of picture)")
    except Exception as error:  # a damaged file raises many kinds of errors; all mean the same here
        return SkippedFile(name, f"cannot be decoded ({error})")
    if min(width, height) < MIN_SIDE_PX:
        return SkippedFile(name, f"only {width} x {height} px; at least {MIN_SIDE_PX} px per side are needed")
    digest = hashlib.sha256(content).hexdigest()
    return Photo(name, path, width, height, focal_px, device, digest, gps=gps)


def _metadata(
    image: Image.Image, width: int, height: int
) -> tuple[float | None, str, tuple[float, float, float | None] | None]:
    """Focal length [px], device and position; damaged metadata give none, as the image itself may be good."""
    try:
        exif = image.getexif()
        return exif_focal_px(exif, width, height), _device(exif), exif_gps(exif)
    except Exception:
        return None, "", None


def exif_focal_px(exif: Image.Exif, width: int, height: int) -> float | None:
    """Focal length in pixels from the 35 mm equivalent, or from millimetres and the sensor's resolution."""
    details = exif.get_ifd(ExifTags.IFD.Exif)
    film = _number(details.get(ExifTags.Base.FocalLengthIn35mmFilm))
    if film:
        return _plausible(film / FILM_DIAGONAL_MM * math.hypot(width, height), width, height)
    focal_mm = _number(details.get(ExifTags.Base.FocalLength))
    per_unit = _number(details.get(ExifTags.Base.FocalPlaneXResolution))
    unit_mm = MM_PER_UNIT.get(int(_number(details.get(ExifTags.Base.FocalPlaneResolutionUnit)) or 2))
    original = _number(details.get(ExifTags.Base.ExifImageWidth))
    if not (focal_mm and per_unit and unit_mm):
        return None
    shrink = max(width, height) / max(original, 1) if original else 1.0  # the tag describes the picture as taken
    return _plausible(focal_mm * per_unit / unit_mm * shrink, width, height)


def _plausible(focal_px: float, width: int, height: int) -> float | None:
    return focal_px if 0.1 * max(width, height) < focal_px < 100 * max(width, height) else None


def exif_gps(exif: Image.Exif) -> tuple[float, float, float | None] | None:
    """Latitude, longitude [deg] and altitude [m]; None if the metadata are missing or implausible."""
    tags = exif.get_ifd(ExifTags.IFD.GPSInfo)
    latitude = _degrees(tags.get(ExifTags.GPS.GPSLatitude), tags.get(ExifTags.GPS.GPSLatitudeRef), "S")
    longitude = _degrees(tags.get(ExifTags.GPS.GPSLongitude), tags.get(ExifTags.GPS.GPSLongitudeRef), "W")
    if latitude is None or longitude is None or abs(latitude) > 90 or abs(longitude) > 180:
        return None
    if latitude == 0 and longitude == 0:
        return None  # what receivers write before they know
    altitude = _number(tags.get(ExifTags.GPS.GPSAltitude), allow_zero=True)
    below = tags.get(ExifTags.GPS.GPSAltitudeRef) in (1, b"\x01")
    return latitude, longitude, -altitude if altitude is not None and below else altitude


def _degrees(parts: object, reference: object, negative: str) -> float | None:
    """Angle [deg] from degrees, minutes and seconds."""
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        return None
    numbers = [_number(part, allow_zero=True) for part in parts]
    if any(number is None for number in numbers):
        return None
    value = sum(number / unit for number, unit in zip(numbers, (1, 60, 3600), strict=True) if number is not None)
    return -value if str(reference).strip("\0 ").upper() == negative else value


def _number(value: object, allow_zero: bool = False) -> float | None:
    """A positive finite number, or None for anything else a camera may have written."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and (number > 0 or allow_zero and number == 0) else None


def _device(exif: Image.Exif) -> str:
    details = exif.get_ifd(ExifTags.IFD.Exif)
    parts = [exif.get(ExifTags.Base.Make), exif.get(ExifTags.Base.Model), details.get(ExifTags.Base.LensModel)]
    return " ".join(str(part).strip("\0 ") for part in parts if part)


def is_video(path: Path) -> bool:
    """Whether a path names a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()


def read_times(folder: Path) -> dict[str, float]:
    """Seconds of every frame that was extracted into a folder; empty if there are none."""
    path = folder / TIMES_NAME
    times = read_json(path) if path.is_file() else {}
    if not isinstance(times, dict) or not all(type(seconds) in (int, float) for seconds in times.values()):
        raise InputError(f"{path}: not the times of frames; remove the folder, they are taken again")
    return times


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
