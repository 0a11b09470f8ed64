"""Photographs on disk: what is found, what is skipped and why, upright pixels, focal lengths."""

from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from mbasfm.errors import InputError
from mbasfm.io.images import find_photos, read_upright


def save(
    path: Path, size: tuple[int, int] = (96, 80), seed: int = 0, exif: Image.Exif | None = None, **options
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, exif=Image.Exif() if exif is None else exif)
    return path


def test_nested_folders_are_searched_in_the_order_of_names(tmp_path):
    for number, name in enumerate(["b/2.jpg", "a.PNG", "b/c/1.webp", "z.tif"]):
        save(tmp_path / name, seed=number)
    (tmp_path / "notes.txt").write_text("not a photograph")
    photos, skipped = find_photos(tmp_path)
    assert [photo.name for photo in photos] == ["a.PNG", "b/2.jpg", "b/c/1.webp", "z.tif"]
    assert skipped == ()
    assert (photos[0].width, photos[0].height) == (96, 80)


def test_a_list_file_names_photographs_relative_to_itself(tmp_path):
    save(tmp_path / "photos" / "1.jpg", seed=1)
    listing = tmp_path / "list.txt"
    listing.write_text("# a comment\nphotos/1.jpg\n\nphotos/gone.jpg\n")
    photos, skipped = find_photos(listing)
    assert [photo.name for photo in photos] == ["photos/1.jpg"]
    assert [(file.name, file.reason) for file in skipped] == [("photos/gone.jpg", "the file does not exist")]


def test_what_cannot_be_used_is_listed_with_its_reason(tmp_path):
    good = save(tmp_path / "good.jpg", (200, 150), seed=1)
    (tmp_path / "copy.jpg").write_bytes(good.read_bytes())
    (tmp_path / "cut.jpg").write_bytes(good.read_bytes()[: len(good.read_bytes()) // 3])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    save(tmp_path / "tiny.png", (40, 200), seed=2)
    photos, skipped = find_photos(tmp_path)
    assert [photo.name for photo in photos] == ["copy.jpg"]  # the first by name
    reasons = {file.name: file.reason for file in skipped}
    assert reasons["good.jpg"] == "the same file as copy.jpg"
    assert all("cannot be decoded" in reasons[name] for name in ("cut.jpg", "empty.png", "text.jpg"))
    assert "40 x 200 px" in reasons["tiny.png"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_and_sizes_are_upright(tmp_path, orientation):
    """The tag says where the first row and column are shown; a white upper left corner must end up where it says."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    pixels = np.zeros((80, 120, 3), np.uint8)
    pixels[:20, :30] = 255
    Image.fromarray(pixels).save(tmp_path / "1.png", exif=exif)
    ((photo,), _) = find_photos(tmp_path)
    upright = read_upright(photo.path)
    assert upright.shape == (photo.height, photo.width, 3)
    assert (photo.width, photo.height) == ((120, 80) if orientation <= 4 else (80, 120))
    corner = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}
    assert int(upright[corner[orientation]].min()) == 255
    assert int((upright == 255).all(-1).sum()) == 600


def test_focal_length_from_the_35_mm_equivalent(tmp_path):
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.FocalLengthIn35mmFilm] = 50
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Maker", "One"
    save(tmp_path / "1.jpg", (300, 200), exif=exif)
    ((photo,), _) = find_photos(tmp_path)
    # A 36 x 24 mm film has the same shape as the image: 50 mm are 50 / 36 of its width.
    assert photo.exif_focal_px == pytest.approx(300 * 50 / 36, rel=1e-3)
    assert photo.device == "Maker One"


def test_focal_length_from_millimetres_and_sensor_resolution(tmp_path):
    exif = Image.Exif()
    details = exif.get_ifd(ExifTags.IFD.Exif)
    details[ExifTags.Base.FocalLength] = 25.4
    details[ExifTags.Base.FocalPlaneXResolution] = 300.0
    details[ExifTags.Base.FocalPlaneResolutionUnit] = 2  # inch
    save(tmp_path / "1.jpg", (300, 200), exif=exif)
    ((photo,), _) = find_photos(tmp_path)
    assert photo.exif_focal_px == pytest.approx(300, rel=1e-3)


def test_nonsense_metadata_is_no_focal_length(tmp_path):
    exif = Image.Exif()
    details = exif.get_ifd(ExifTags.IFD.Exif)
    details[ExifTags.Base.FocalLengthIn35mmFilm] = 0
    details[ExifTags.Base.FocalLength] = 25.4
    details[ExifTags.Base.FocalPlaneXResolution] = 1e6  # would be a focal length of three thousand image widths
    save(tmp_path / "1.jpg", exif=exif)
    ((photo,), _) = find_photos(tmp_path)
    assert photo.exif_focal_px is None


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "I;16", "1"])
def test_every_mode_becomes_eight_bit_rgb(tmp_path, mode):
    ramp = np.tile(np.linspace(0, 255, 128, dtype=np.uint8), (80, 1))
    if mode == "I;16":
        image = Image.fromarray(ramp.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(ramp).convert("RGB" if mode == "CMYK" else "L").convert(mode)
    path = tmp_path / ("1.tif" if mode == "CMYK" else "1.png")
    image.save(path)
    pixels = read_upright(path)
    assert pixels.shape == (80, 128, 3) and pixels.dtype == np.uint8
    assert int(pixels[:, -1].mean()) > 240 and int(pixels[:, 0].mean()) < 15


def test_a_missing_folder_and_a_binary_list_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        find_photos(tmp_path / "nowhere")
    binary = tmp_path / "list.bin"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="one path per line"):
        find_photos(binary)


def test_paths_that_lead_out_of_the_lists_folder_are_named_from_their_common_parent(tmp_path):
    save(tmp_path / "a" / "1.jpg", seed=1)
    save(tmp_path / "a" / "deep" / "2.jpg", seed=2)
    listing = tmp_path / "lists" / "list.txt"
    listing.parent.mkdir()
    listing.write_text(f"{tmp_path / 'a' / '1.jpg'}\n../a/deep/2.jpg\n")
    photos, _ = find_photos(listing)
    assert [photo.name for photo in photos] == ["1.jpg", "deep/2.jpg"]
    assert all(photo.path.is_file() for photo in photos)
