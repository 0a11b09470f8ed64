"""Features and matches from files: read back as written, in either order, or refused by name."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from mbasfm.errors import InputError
from mbasfm.models.base import Matcher, load_model
from mbasfm.types.observations import Features, Photo

NAMES = ("left/1.jpg", "left/2.jpg", "3.jpg")
WIDTH, HEIGHT = 96, 64
IMAGE = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
PIXELS = np.random.default_rng(0).uniform(0, HEIGHT, (20, 2))
INDICES = np.array([[0, 3], [7, 1], [19, 5]])


def write(path: Path, **arrays: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three photographs, two pairs; one with confidence."""
    for name in NAMES:
        write(tmp_path / "features" / f"{name}.npz", pixels=PIXELS)
    write(tmp_path / "matches" / NAMES[0] / f"{NAMES[1]}.npz", indices=INDICES, confidence=np.array([0.0, 0.5, 1.0]))
    write(tmp_path / "matches" / NAMES[2] / f"{NAMES[0]}.npz", indices=INDICES.astype(np.uint32))
    return tmp_path


def describe(folder: Path, name: str) -> Features:
    photo = Photo(name, Path(name), WIDTH, HEIGHT, None, "", "0")
    return load_model("matcher", f"files:{folder}").describe(photo, IMAGE)


def test_what_was_written_is_read(folder):
    matcher = load_model("matcher", f"files:{folder}")
    assert isinstance(matcher, Matcher)
    first, second, third = (describe(folder, name) for name in NAMES)
    np.testing.assert_allclose(first.pixels, PIXELS, atol=1e-4)
    assert first.descriptors.shape == (20, 0) and first.name == NAMES[0] and first.size == (WIDTH, HEIGHT)
    found = matcher.match(first, second)
    np.testing.assert_array_equal(found.indices, INDICES)
    np.testing.assert_allclose(found.confidence, [0, 0.5, 1])
    assert len(matcher.match(second, third).indices) == 0


def test_the_order_of_a_pair_does_not_matter(folder):
    matcher = load_model("matcher", f"files:{folder}")
    first, second, third = (describe(folder, name) for name in NAMES)
    for pair in ((first, second), (first, third)):
        forward, backward = matcher.match(*pair), matcher.match(*pair[::-1])
        np.testing.assert_array_equal(forward.indices, backward.indices[:, ::-1])
        np.testing.assert_array_equal(forward.confidence, backward.confidence)
    assert matcher.match(first, third).confidence.tolist() == [1, 1, 1]


def test_pairs_are_listed_once_even_with_names_in_subfolders(folder):
    write(folder / "matches" / NAMES[1] / f"{NAMES[0]}.npz", indices=INDICES)
    assert load_model("matcher", f"files:{folder}").pairs() == [("3.jpg", "left/1.jpg"), ("left/1.jpg", "left/2.jpg")]


def test_matches_of_an_unknown_photograph_are_refused(folder):
    write(folder / "matches" / "left" / "1.jpg" / "9.jpg.npz", indices=INDICES)
    with pytest.raises(InputError, match=r"9.jpg.npz: its path is not that of two photographs"):
        load_model("matcher", f"files:{folder}").pairs()


def test_descriptors_are_brought_to_unit_length(folder):
    values = np.arange(60.0).reshape(20, 3)
    write(folder / "features" / f"{NAMES[0]}.npz", pixels=PIXELS, descriptors=values)
    descriptors = describe(folder, NAMES[0]).descriptors
    np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.cross(descriptors, values), 0, atol=1e-3)


def test_the_key_follows_the_content(folder, tmp_path_factory):
    key = load_model("matcher", f"files:{folder}").key
    assert load_model("matcher", f"files:{folder}").key == key
    write(folder / "matches" / NAMES[0] / f"{NAMES[1]}.npz", indices=INDICES[:2])
    changed = load_model("matcher", f"files:{folder}").key
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("copy") / "of")
    assert len({key, changed, load_model("matcher", f"files:{copy}").key}) == 3


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({}, "no array in it"),
        ({"other": PIXELS}, "needs pixels"),
        ({"pixels": PIXELS.T}, "needs pixels"),
        ({"pixels": PIXELS * np.nan}, "needs pixels"),
        ({"pixels": PIXELS * 10}, "scale them to its full size"),
        ({"pixels": PIXELS - 20}, "pixels reach from"),
        ({"pixels": PIXELS, "descriptors": np.ones((19, 8))}, "one for each row of pixels"),
        ({"pixels": PIXELS, "descriptors": np.array(["a"] * 20)[:, None]}, "rows of numbers"),
    ],
)
def test_wrong_features_are_refused_by_name(folder, arrays, words):
    write(folder / "features" / f"{NAMES[2]}.npz", **arrays)
    with pytest.raises(InputError, match=words) as caught:
        describe(folder, NAMES[2])
    assert "3.jpg.npz" in str(caught.value)


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({}, "no array in it"),
        ({"other": PIXELS}, "needs indices"),
        ({"indices": INDICES * 1.0}, "two whole numbers"),
        ({"indices": INDICES.T}, "two whole numbers"),
        ({"indices": INDICES + 1}, "count from 0 to below 20 and 20"),
        ({"indices": INDICES - 1}, "count from 0"),
        ({"indices": INDICES, "confidence": np.ones(2)}, "one for each row"),
        ({"indices": INDICES, "confidence": np.array([0, 0, 1.1])}, r"in \[0, 1\]"),
    ],
)
def test_wrong_matches_are_refused_by_name(folder, arrays, words):
    write(folder / "matches" / NAMES[0] / f"{NAMES[1]}.npz", **arrays)
    pair = [describe(folder, name) for name in NAMES[:2]]
    with pytest.raises(InputError, match=words) as caught:
        load_model("matcher", f"files:{folder}").match(*pair)
    assert "2.jpg.npz" in str(caught.value)


def test_what_is_not_there_or_not_readable_is_named(folder):
    with pytest.raises(InputError, match=r"4.jpg: no features; looked for .*4.jpg.npz"):
        describe(folder, "4.jpg")
    path = folder / "features" / "3.jpg.npz"
    for content in (b"junk", path.read_bytes()[:200]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="3.jpg.npz: cannot be read as npz"):
            describe(folder, "3.jpg")
    with path.open("wb") as file:
        np.save(file, PIXELS)
    with pytest.raises(InputError, match="3.jpg.npz: cannot be read as npz"):
        describe(folder, "3.jpg")
    with pytest.raises(InputError, match="features is not a folder"):
        load_model("matcher", f"files:{folder / 'nowhere'}")
    nameless = Features(PIXELS.astype(np.float32), np.zeros((20, 0), np.float32))
    with pytest.raises(InputError, match="these features have none"):
        load_model("matcher", f"files:{folder}").match(nameless, nameless)
