"""Checks of a scene folder before hours of work."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mbasfm.errors import InputError
from mbasfm.io.calibration import KnownCamera
from mbasfm.io.images import is_upright
from mbasfm.types.observations import Photo

BYTES_PER_PHOTO = 8_000_000
"""Approximate bytes of features, matches, depth and points of one photograph."""


def refuse_overwriting(
    folder: Path, photos: Sequence[Photo], depth: str, held: Mapping[str, KnownCamera], is_pinhole: bool
) -> None:
    """Refuse input where output will be written, except photographs that are already as they would be written.

    ``depth`` is the setting; ``held`` are intrinsics that are given, by name; other lenses may be pinholes for sure.
    """
    images, masks = (folder / "images").resolve(), (folder / "masks").resolve()
    inside = [photo for photo in photos if images in photo.path.resolve().parents]
    if inside:
        _refuse_moving(inside, images)
        _refuse_straightening(inside, images, held, is_pinhole or len(held) == len(photos))
    masked = [photo.name for photo in photos if photo.mask is not None and masks in photo.mask.resolve().parents]
    if masked:
        raise InputError(
            f"the mask of {masked[0]} lies in {masks}, where masks of the result are written; move them to"
            f" {folder / 'input_masks'} or choose another --output"
        )
    maps = Path(depth.removeprefix("files:").partition("?")[0]).resolve()
    if depth.startswith("files:") and maps in ((folder / "depth").resolve(), (folder / "depths").resolve()):
        raise InputError(f"{maps} is where aligned depth is written; move your maps or choose another --output")


def _refuse_moving(inside: Sequence[Photo], images: Path) -> None:
    """Refuse photographs in the folder of the result that would be written elsewhere or turned upright."""
    advice = _advice(images)
    moved = [photo.name for photo in inside if photo.path.resolve() != images / photo.name]
    if moved:
        raise InputError(f"{moved[0]} lies in {images}, where photographs are written; {advice}")
    turned = [photo.name for photo in inside if not is_upright(photo.path)]
    if turned:
        raise InputError(f"{turned[0]} lies in {images} and is not stored upright, so it would be rewritten; {advice}")


def _refuse_straightening(
    inside: Sequence[Photo], images: Path, held: Mapping[str, KnownCamera], is_straight: bool
) -> None:
    """Refuse photographs in the folder of the result that would be undistorted."""
    bent = any(camera.is_fisheye or any(camera.distortion) for camera in held.values())
    if bent or not is_straight:
        raise InputError(
            f"{inside[0].name} lies in {images}, where undistorted photographs are written; say --lens pinhole if they"
            f" have no distortion, else {_advice(images)}"
        )


def _advice(images: Path) -> str:
    return f"move them to {images.parent / 'input'} or choose another --output"


def check_room(folder: Path, photos: Sequence[Photo]) -> None:
    """Refuse to start if the disk cannot hold the scene."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(2 * photo.path.stat().st_size + BYTES_PER_PHOTO for photo in photos)
    free = shutil.disk_usage(folder).free
    if free < needed:
        have, want = (f"{size / 1e9:.1f} GB" for size in (free, needed))
        raise InputError(f"{folder}: the disk has {have} free, but the scene may need {want}; choose another --output")
