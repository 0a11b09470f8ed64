"""Masks: found by name, checked for shape, and nothing black is used."""

import numpy as np
import pytest
from PIL import Image
from test_pipeline import FOCAL, settings, write_scene

from mbasfm import reconstruct
from mbasfm.errors import InputError
from mbasfm.io.images import find_photos, read_mask, with_masks
from mbasfm.matching.inference import counts, estimate_depths
from mbasfm.models.depth.flat import FlatDepth

WHITE, BLACK = 255, 0


def write_photos(folder, names=("a/1.png", "2.jpg"), size=(120, 80)):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (10 * number, 20, 30)).save(folder / name)
    return find_photos(folder)[0]


def write_mask(path, size=(120, 80)):
    """Black on the left half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.full(size[::-1], WHITE, np.uint8)
    values[:, : size[0] // 2] = BLACK
    Image.fromarray(values).save(path)


def test_masks_beside_photographs_are_masks_and_not_photographs(tmp_path):
    photos = write_photos(tmp_path)
    write_mask(tmp_path / "2.jpg.png")
    again, skipped = find_photos(tmp_path)
    assert [photo.name for photo in again] == [photo.name for photo in photos] and not skipped
    masks = {photo.name: photo.mask for photo in with_masks(again, None)}
    assert masks == {"2.jpg": tmp_path / "2.jpg.png", "a/1.png": None}


def test_masks_of_a_folder_have_the_photographs_names(tmp_path):
    photos = write_photos(tmp_path / "photos")
    write_mask(tmp_path / "masks" / "a" / "1.png.png")
    by_name = {photo.name: photo for photo in with_masks(photos, tmp_path / "masks")}
    assert by_name["2.jpg"].mask is None
    pixels = np.array([[10.0, 40.0], [59.9, 0.5], [60.1, 79.9], [119.9, 40.0]], np.float32)
    assert counts(by_name["a/1.png"], pixels).tolist() == [False, False, True, True]
    assert counts(by_name["2.jpg"], pixels).all()


def test_a_smaller_mask_of_the_same_shape_is_fine_and_another_shape_is_refused_by_name(tmp_path):
    photos = write_photos(tmp_path / "photos", ["1.png"])
    write_mask(tmp_path / "1.png.png", (60, 40))
    (photo,) = with_masks(photos, tmp_path)
    assert counts(photo, np.array([[59.0, 1.0], [61.0, 1.0]], np.float32)).tolist() == [False, True]
    write_mask(tmp_path / "1.png.png", (80, 80))
    with pytest.raises(InputError, match="1.png.png.*80 x 80 px, but 1.png upright is 120 x 80"):
        read_mask(photo)
    (tmp_path / "1.png.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"mask of 1\.png cannot be decoded"):
        read_mask(photo)


def test_a_folder_without_masks_is_a_mistake(tmp_path):
    photos = write_photos(tmp_path / "photos")
    with pytest.raises(InputError, match="no mask for any photograph"):
        with_masks(photos, tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        with_masks(photos, tmp_path / "nowhere")


def test_nothing_black_is_given_depth(tmp_path):
    photos = write_photos(tmp_path / "photos", ["1.png", "2.png"])
    write_mask(tmp_path / "masks" / "1.png.png")
    first, second = estimate_depths(with_masks(photos, tmp_path / "masks"), FlatDepth())
    assert np.isnan(first.values[:, 0]).all() and (first.values[:, 1] == 1).all()
    assert (second.values == 1).all()


def test_nothing_black_is_matched(tmp_path):
    write_scene(tmp_path)
    for frame in range(6):
        write_mask(tmp_path / "masks" / f"0_{frame}.png.png", (1024, 768))
    config = settings(tmp_path, focal=FOCAL, masks=str(tmp_path / "masks"))
    result = reconstruct(tmp_path / "images", None, config)
    assert result.registered.all()
    seen = [p.xy[0] for image in result.models[0].images.values() for p in image.points2D if p.has_point3D()]
    assert len(seen) > 300 and min(seen) >= 512
