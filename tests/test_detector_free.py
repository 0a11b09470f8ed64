"""Matchers of images: keypoints from matches of pairs, and everything after them as with any other matcher."""

from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import pycolmap
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import angle_deg
from PIL import Image
from test_localize import FOCAL, MAP, QUERIES, SIZE, STRANGER, error_of, folder, see  # noqa: F401

from mbasfm import Config, LocalizeConfig, Map, reconstruct, relocalize, two_view
from mbasfm.extend import extend
from mbasfm.matching.merge_keypoints import End, consolidate, nearest_keypoints, one_to_one
from mbasfm.models.base import ImageMatcher, load_model
from mbasfm.types.observations import PixelMatches

GRID_PX, NOISE_PX = 8, 0.1


# ----------------------------------------------------------------------------------------------------------------
# Keypoints from matches


def ends_of(seed: int, num_frames: int, num_ends: int) -> list[End]:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 40, num_ends)
    return [
        End(
            int(generator.integers(num_frames)),
            (generator.random((count, 2)) * [16, 12]).astype(np.float32),
            generator.random(count).astype(np.float32),
        )
        for count in counts
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 12))
def test_every_pixel_has_a_keypoint_within_its_cell(seed, num_frames, num_ends):
    ends, sizes = ends_of(seed, num_frames, num_ends), [(2048, 1536)] * num_frames  # cells of two pixels
    keypoints, numbers = consolidate(ends, sizes)
    for end, number in zip(ends, numbers, strict=True):
        found = keypoints[end.frame][number]
        assert (np.floor(found / 2 - 1e-6) <= np.floor(end.pixels / 2)).all()
        assert (np.abs(found - end.pixels) <= 2).all()
    for frame, found in enumerate(keypoints):
        used = {int(n) for end, part in zip(ends, numbers, strict=True) if end.frame == frame for n in part}
        assert used == set(range(len(found)))  # none is left over
        assert len(np.unique(np.floor(found.astype(np.float64) / 2), axis=0)) >= len(found) - 2  # up to rounding


def test_pixels_apart_stay_exactly_where_they_are_and_near_ones_are_averaged_by_confidence():
    ends = [
        End(0, np.array([[10.2, 20.4], [30.5, 5.5]], np.float32), np.array([0.9, 1.0], np.float32)),
        End(0, np.array([[10.6, 20.8], [50.0, 60.0]], np.float32), np.array([0.3, 0.5], np.float32)),
    ]
    (keypoints,), (first, second) = consolidate(ends, [(1024, 768)])
    assert len(keypoints) == 3 and first[0] == second[0]
    np.testing.assert_allclose(keypoints[first[0]], [10.3, 20.5], atol=1e-4)
    np.testing.assert_array_equal(keypoints[[first[1], second[1]]], [[30.5, 5.5], [50.0, 60.0]])


def test_no_keypoint_has_two_matches_in_a_pair_and_the_confident_one_stays():
    indices = np.array([[0, 0], [0, 1], [1, 1], [2, 3], [2, 3]])
    kept = one_to_one(indices, np.array([0.5, 0.9, 0.7, 0.2, 0.3], np.float32))
    np.testing.assert_array_equal(kept, [False, True, False, False, True])
    assert one_to_one(np.zeros((0, 2), np.int64), np.zeros(0, np.float32)).shape == (0,)


def test_a_pixel_takes_the_keypoint_that_is_near_enough():
    keypoints = np.array([[5.0, 5.0], [9.0, 5.0]], np.float32)
    pixels = np.array([[5.4, 5.0], [7.0, 5.0], [8.8, 5.1]], np.float32)
    np.testing.assert_array_equal(nearest_keypoints(pixels, keypoints, 1.0), [0, -1, 1])
    np.testing.assert_array_equal(nearest_keypoints(pixels, keypoints[:0], 1.0), [-1, -1, -1])


# ----------------------------------------------------------------------------------------------------------------
# From photographs to poses: a matcher that knows the made-up corner


@dataclass
class Oracle(ImageMatcher):
    """Knows its images: pixels on a grid of the first and, with some noise, where the second shows the same."""

    name, licence, key = "oracle", "none", "oracle-1"
    calls: list[int] = field(default_factory=list)

    def __post_init__(self):
        self._known = {}
        for name, pose, seed in [*((n, p, 0) for n, p in {**MAP, **QUERIES}.items()), (STRANGER, QUERIES["a.png"], 1)]:
            image, depth = see(pose, seed)
            self._known[image.tobytes()] = (name, pose, depth, seed)

    def match_images(self, first, second):
        self.calls.append(1)
        one, other = (self._known.get(np.ascontiguousarray(image).tobytes()) for image in (first, second))
        if one is None or other is None or one[3] != other[3]:
            return PixelMatches(*np.zeros((2, 0, 2), np.float32), np.zeros(0, np.float32))
        pixels = np.stack(np.meshgrid(*(np.arange(GRID_PX, side, GRID_PX) + 0.5 for side in SIZE)), -1).reshape(-1, 2)
        depth = one[2][tuple(pixels.astype(int).T[::-1])]
        rays = np.column_stack([(pixels - np.array(SIZE) / 2) / FOCAL, np.ones(len(pixels))])
        world = (rays * depth[:, None] - one[1][:, 3]) @ one[1][:, :3]
        seen = world @ other[1][:, :3].T + other[1][:, 3]
        found = seen[:, :2] / seen[:, 2:] * FOCAL + np.array(SIZE) / 2
        there = cv2.remap(other[2].astype(np.float32), (found - 0.5).astype(np.float32)[None], None, cv2.INTER_LINEAR)
        good = (np.abs(there[0] / seen[:, 2] - 1) < 0.02) & (found > 1).all(1) & (found < np.array(SIZE) - 1).all(1)
        noise = np.random.default_rng(len(self._known)).normal(0, NOISE_PX, found.shape)
        both = pixels[good].astype(np.float32), (found + noise)[good].astype(np.float32)
        return PixelMatches(*both, np.full(int(good.sum()), 0.9, np.float32))


@pytest.fixture
def oracle(monkeypatch):
    made = Oracle()
    assert isinstance(made, ImageMatcher)
    known = {"oracle": made}
    monkeypatch.setattr(
        "mbasfm.matching.observe.load_model", lambda kind, spec: known.get(spec) or load_model(kind, spec)
    )
    return made


def test_poses_equal_the_truth_tracks_are_long_and_a_second_run_matches_nothing(oracle, folder, tmp_path):  # noqa: F811
    config = Config(matcher="oracle", depth="flat", focal=FOCAL)
    result = reconstruct(folder / "map/images", tmp_path / "scene", config)
    assert bool(result.registered.all()) and len(oracle.calls) == 10
    poses = dict(zip(result.names, result.cameras.cam_from_world.numpy(), strict=True))
    first, true_first = (pose["map0.png"] for pose in (poses, MAP))
    for name, pose in MAP.items():
        relative, truth = (b[:, :3] @ a[:, :3].T for a, b in ((first, poses[name]), (true_first, pose)))
        assert angle_deg(relative, truth) < 0.1
    model = pycolmap.Reconstruction(tmp_path / "scene/sparse/0")
    assert model.compute_mean_track_length() > 2.5 and model.compute_mean_reprojection_error() < 0.3
    oracle.calls.clear()
    again = reconstruct(folder / "map/images", tmp_path / "again", config, tmp_path / "scene/cache")
    assert not oracle.calls
    np.testing.assert_array_equal(again.cameras.cam_from_world.numpy(), result.cameras.cam_from_world.numpy())


@pytest.mark.parametrize("matcher", ["sift+oracle", "oracle+sift"])
def test_beside_other_matchers(oracle, folder, tmp_path, matcher, monkeypatch):  # noqa: F811
    monkeypatch.setattr("mbasfm.matching.observe.MANY_MATCHES", 10_000)  # the first never suffices
    result = reconstruct(folder / "map/images", None, Config(matcher=matcher, depth="flat", focal=FOCAL))
    assert bool(result.registered.all()) and oracle.calls


def test_pixels_that_masks_exclude_are_not_matched(oracle, folder, tmp_path):  # noqa: F811
    mask = np.full(SIZE[::-1], 255, np.uint8)
    mask[:, : SIZE[0] // 2] = 0
    for name in MAP:
        Image.fromarray(mask).save(tmp_path / f"{name}.png")
    photos = [folder / "map/images" / f"map{number}.png" for number in (1, 2)]
    config = Config(matcher="oracle", depth="flat", focal=FOCAL)
    free, masked = (two_view(*photos, replace(config, masks=masks)) for masks in (None, str(tmp_path)))
    assert free.found and free.pixels_i[:, 0].min() < SIZE[0] / 4
    assert 50 < len(masked.pixels_i) < len(free.pixels_i) and masked.pixels_i[:, 0].min() > SIZE[0] / 2 - 1


@pytest.mark.parametrize("depth", ["auto", "flat"])
def test_queries_are_localized_and_a_stranger_is_nowhere(oracle, folder, tmp_path, depth):  # noqa: F811
    """With the map's own depth, and with points that its matches triangulate."""
    config = LocalizeConfig(matcher="oracle", focal=FOCAL, depth=depth)
    result = relocalize(folder / "map", folder / "queries", None, config, tmp_path / "cache")
    by_name = {query.name: query for query in result.queries}
    for name, pose in QUERIES.items():
        distance, angle = error_of(by_name[name], pose)
        assert distance < 0.03 and angle < 0.3
    assert not by_name[STRANGER].localized


@pytest.mark.parametrize("turns", [1, 2])
def test_a_photograph_on_its_side_is_matched_turned(oracle, folder, tmp_path, turns):  # noqa: F811
    image, _ = see(QUERIES["a.png"], 0)
    Image.fromarray(np.rot90(image, turns)).save(tmp_path / "turned.png")
    chart = Map.load(folder / "map", LocalizeConfig(matcher="oracle", focal=FOCAL), tmp_path / "cache")
    located = chart.localize(tmp_path / "turned.png")
    assert located.quarter_turns == 4 - turns
    turn = np.linalg.matrix_power(np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1]]), turns)
    distance, angle = error_of(located, turn @ QUERIES["a.png"])
    assert distance < 0.03 and angle < 0.3


def test_a_scene_grows_by_photographs(oracle, folder, tmp_path):  # noqa: F811
    config = Config(matcher="oracle", depth="flat", focal=FOCAL)
    reconstruct(folder / "map/images", tmp_path / "scene", config)
    grown = extend(tmp_path / "scene", folder / "queries", tmp_path / "grown", config)
    registered = dict(zip(grown.names, grown.registered.tolist(), strict=True))
    assert registered == dict.fromkeys([*MAP, *QUERIES], True) | {STRANGER: False}
    model = pycolmap.Reconstruction(tmp_path / "grown/sparse/0")
    assert min(image.num_points3D for image in model.images.values()) > 20
