"""What models compute is kept, results come in order, and maps are read at the right place."""

import threading
import time

import cv2
import numpy as np
import pytest
import torch

from mbasfm.geometry.camera import values_at
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos
from mbasfm.matching.inference import describe_photos, estimate_depths, keypoints_of, match_pairs
from mbasfm.models.base import DepthModel, Matcher
from mbasfm.models.depth.files import FilesDepth
from mbasfm.runtime import parallel
from mbasfm.runtime.parallel import in_parallel
from mbasfm.types.observations import DepthEstimate, Features, Matches

WIDTH, HEIGHT = 96, 64


class FakeMatcher(Matcher):
    """Features at fixed pixels; counts what it is asked."""

    name, licence = "fake", "none"

    def __init__(self, key="fake-1"):
        self.key = key
        self.described, self.matched, self.sizes = [], [], set()

    def describe(self, photo, image):
        self.described.append(photo.name)
        pixels = np.array([[0.5, 0.5], [WIDTH - 0.5, 0.5], [10.2, HEIGHT - 0.1]], np.float32)
        return Features(pixels, np.eye(3, dtype=np.float32), photo.name, (image.shape[1], image.shape[0]))

    def match(self, first, second):
        self.matched.append((first.name, second.name))
        self.sizes |= {first.size, second.size}
        return Matches(np.array([[0, 2], [1, 1]]), np.array([0.5, 1.0], np.float32))


class FakeDepth(DepthModel):
    """Depth that tells photographs apart; counts what it is asked."""

    name, licence = "fake", "none"

    def __init__(self, key="fake-1"):
        self.key = key
        self.asked = []

    def estimate(self, photo, image):
        self.asked.append(photo.name)
        return DepthEstimate(np.full((2, 3), float(image[0, 0, 0]), np.float32), photo.name == "b.png", False)


@pytest.fixture
def photos(tmp_path):
    """Three photographs; the first pixel's red is 10, 20, 30."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, name in enumerate("abc"):
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        image[..., 0] = np.arange(WIDTH)
        image[..., 1] = np.arange(HEIGHT)[:, None]
        image[0, 0] = 10 * (number + 1)
        cv2.imwrite(str(folder / f"{name}.png"), image[..., ::-1])
    return find_photos(folder)[0]


# ----------------------------------------------------------------------------------------------------------------
# Cache


def run_all(photos, matcher, depth, cache):
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    with cache.active():
        described, depths = list(describe_photos(photos, matcher)), list(estimate_depths(photos, depth))
        matches = list(match_pairs(pairs, [item.features for item in described], photos, matcher))
    return described, depths, matches


def flat(results):
    described, depths, matches = results
    arrays = [array for item in described for array in (item.features.pixels, item.features.descriptors, item.colors)]
    arrays += [item.values for item in depths] + [array for pair in matches for array in pair]
    return arrays, [item.features.name for item in described], [(item.is_disparity, item.is_metric) for item in depths]


def test_the_second_run_computes_nothing_and_gives_the_same(photos, tmp_path):
    matcher, depth = FakeMatcher(), FakeDepth()
    first = flat(run_all(photos, matcher, depth, Cache(tmp_path / "cache")))
    assert sorted(matcher.described) == sorted(depth.asked) == ["a.png", "b.png", "c.png"]
    assert sorted(matcher.matched) == [("a.png", "b.png"), ("a.png", "c.png"), ("b.png", "c.png")]
    again, depth_again = FakeMatcher(), FakeDepth()
    second = flat(run_all(photos, again, depth_again, Cache(tmp_path / "cache")))
    assert not again.described and not again.matched and not depth_again.asked
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(first[0], second[0], strict=True))
    assert first[1:] == second[1:]
    assert first[1:] == (["a.png", "b.png", "c.png"], [(False, False), (True, False), (False, False)])


def test_another_model_does_not_get_the_results_of_the_first(photos, tmp_path):
    run_all(photos, FakeMatcher(), FakeDepth(), Cache(tmp_path / "cache"))
    matcher, depth = FakeMatcher("fake-2"), FakeDepth("fake-2")
    run_all(photos, matcher, depth, Cache(tmp_path / "cache"))
    assert len(matcher.described) == len(matcher.matched) == len(depth.asked) == 3


def test_without_a_folder_everything_is_computed_each_time(photos):
    matcher, depth = FakeMatcher(), FakeDepth()
    for _ in range(2):
        run_all(photos, matcher, depth, Cache(None))
    assert len(matcher.described) == len(matcher.matched) == len(depth.asked) == 6


def test_depth_that_is_read_from_files_is_read_again_when_these_change(photos, tmp_path):
    folder = tmp_path / "depth"
    folder.mkdir()
    found = []
    for value in (1.0, 2.0):
        np.save(folder / "a.npy", np.full((2, 2), value, np.float32))
        model = FilesDepth(str(folder))
        with Cache(tmp_path / "cache").active():
            found += [item.values[0, 0] for item in estimate_depths(photos[:1], model)]
    assert found == [1.0, 2.0]


def test_matchers_get_the_size_of_the_photograph_also_with_features_from_the_cache(photos, tmp_path):
    """LighterGlue cannot do without."""
    for second in ([0, 1], [0, 2]):
        matcher = FakeMatcher()
        with Cache(tmp_path / "cache").active():
            features = [item.features for item in describe_photos(photos, matcher)]
            list(match_pairs(np.array([second]), features, photos, matcher))
        assert matcher.sizes == {(WIDTH, HEIGHT)}


# ----------------------------------------------------------------------------------------------------------------
# Reading maps


def test_colours_are_those_of_the_pixels_under_the_features(photos):
    for number, item in enumerate(describe_photos(photos, FakeMatcher())):
        first = 10 * (number + 1)
        assert item.colors.tolist() == [[first] * 3, [WIDTH - 1, 0, 0], [10, HEIGHT - 1, 0]]
        assert item.colors.dtype == np.uint8


def test_a_map_is_read_by_the_pixel_that_holds_the_point():
    """(0, 0) is the corner: the first of four columns ends at a quarter of the width."""
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    relative = np.array([[0, 0], [0.249, 0.49], [0.251, 0.49], [0.5, 0.51], [0.99, 0.99], [1, 1], [-0.01, 1.2]])
    assert values_at(values, relative.astype(np.float32)).tolist() == [0, 0, 1, 6, 7, 7, 4]
    assert values_at(values, np.zeros((0, 2), np.float32)).shape == (0,)


def test_a_map_of_any_size_spans_the_whole_photograph(photos):
    """Depth that grows with x, at three resolutions, is read to within half of one of its pixels."""
    pixels = np.random.default_rng(0).uniform([0, 0], [WIDTH, HEIGHT], (200, 2)).astype(np.float32)
    features = Features(pixels, np.zeros((200, 1), np.float32))
    for columns in (24, 96, 384):
        ramp = ((np.arange(columns) + 0.5) * WIDTH / columns).astype(np.float32)
        found = keypoints_of(photos[0], features, DepthEstimate(np.tile(ramp, (5, 1)), False, True))
        assert np.abs(found.raw_depth - pixels[:, 0]).max() <= 0.5 * WIDTH / columns + 1e-4
        assert np.array_equal(found.pixels, pixels)


def test_depth_that_is_not_positive_is_unknown(photos):
    values = np.array([[1.0, 0.0, -2.0, np.nan]], np.float32)
    pixels = (np.array([[0.1, 0.5], [0.3, 0.5], [0.6, 0.5], [0.9, 0.5]]) * [WIDTH, HEIGHT]).astype(np.float32)
    found = keypoints_of(photos[0], Features(pixels, np.zeros((4, 1), np.float32)), DepthEstimate(values, True, False))
    assert found.raw_depth[0] == 1 and np.isnan(found.raw_depth[1:]).all() and found.raw_depth.dtype == np.float32


# ----------------------------------------------------------------------------------------------------------------
# Parallel work


def test_results_come_in_the_order_of_the_items(monkeypatch):
    """Later items are done first; more items than can wait at once."""
    monkeypatch.setattr(parallel, "WORKERS", 3)
    count, threads = 40, set()

    def work(item):
        threads.add(threading.get_ident())
        time.sleep(0.004 * (item % 3 == 0))
        return item * item

    assert list(in_parallel(work, range(count))) == [item * item for item in range(count)]
    assert len(threads) > 1
    assert list(in_parallel(work, [])) == []


def test_an_error_of_the_work_is_the_error_of_the_run(monkeypatch):
    monkeypatch.setattr(parallel, "WORKERS", 2)

    def work(item):
        if item == 5:
            raise ValueError("item 5 is bad")
        return item

    results = in_parallel(work, range(30))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="item 5 is bad"):
        next(results)


def test_items_are_taken_as_they_are_needed(monkeypatch):
    """A long list of pairs is not handed out all at once."""
    monkeypatch.setattr(parallel, "WORKERS", 2)
    taken = []
    results = in_parallel(lambda item: item, (taken.append(item) or item for item in range(1000)))
    next(results)
    assert len(taken) < 50
    results.close()


def test_workers_do_not_take_the_cores_from_what_comes_after(monkeypatch):
    monkeypatch.setattr(parallel, "WORKERS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(in_parallel(lambda _: torch.get_num_threads(), range(4))) == [1] * 4
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
