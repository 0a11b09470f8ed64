"""The photographs of a run: found in a folder, a list or a video, with their masks."""

from pathlib import Path

from mbasfm.errors import InputError
from mbasfm.io.images import find_photos
from mbasfm.io.masks import with_masks
from mbasfm.io.video import FRAMES_FOLDER, extract_frames, is_video
from mbasfm.runtime.distributed import from_main
from mbasfm.runtime.progress import say, stage
from mbasfm.types.photos import Photo, SkippedFile


def folder_of(photos: Path, output: Path | None) -> Path:
    """The photographs as given, or the folder inside the output to which the frames of a video were written."""
    if not is_video(photos):
        return photos
    if output is None:
        raise InputError(f"{photos}: the frames of a video need a folder; give an output")
    with stage("video") as facts:
        facts["frames"] = from_main(lambda: extract_frames(photos, output / FRAMES_FOLDER))
    return output / FRAMES_FOLDER


def input_photos(source: Path, masks: str | None) -> tuple[tuple[Photo, ...], tuple[SkippedFile, ...]]:
    """Photographs of a folder or list with their masks, and the files that cannot be used."""
    with stage("photos") as facts:
        found, skipped = find_photos(source)
        found = with_masks(found, None if masks is None else Path(masks))
        facts.update(found=len(found), skipped=len(skipped), masks=sum(photo.mask is not None for photo in found))
    for item in skipped:
        say(f"skipped {item.name}: {item.reason}")
    return found, tuple(skipped)
