"""Which pairs are matched: enumerations by their definitions, retrieval on made-up places and in a real kitchen."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbasfm.io.images import find_photos, read_upright
from mbasfm.matching import choose_pairs as choose_pairs_module
from mbasfm.matching import visual_words
from mbasfm.matching.choose_pairs import (
    PairSettings,
    choose_pairs,
    exhaustive_pairs,
    looks_ordered,
    recall_at_k,
    retrieval_pairs,
    sequential_pairs,
)
from mbasfm.matching.visual_words import vlad
from mbasfm.models.matchers.sift import SiftMatcher
from mbasfm.types.outcome import PairChoice

KITCHEN = Path(__file__).parents[2] / "shared" / "data" / "sevenscenes_redkitchen"
NUM_PLACES, FRAMES_PER_PLACE = 8, 6
SAME_PLACE = np.kron(np.eye(NUM_PLACES), np.ones((FRAMES_PER_PLACE, FRAMES_PER_PLACE))).astype(bool)


def as_set(found: np.ndarray) -> set[tuple[int, int]]:
    return {(int(i), int(j)) for i, j in found}


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def visits(seed: int = 0, columns: int = 32) -> list[np.ndarray]:
    """Each frame shows a noisy half of its place's landmarks, and as many things that no other frame shows."""
    generator = np.random.default_rng(seed)
    frames = []
    for _ in range(NUM_PLACES):
        landmarks = generator.standard_normal((120, columns))
        for _ in range(FRAMES_PER_PLACE):
            seen = landmarks[generator.permutation(120)[:60]]
            noisy = seen + 0.3 * generator.standard_normal(seen.shape)
            frames.append(unit(np.concatenate([noisy, generator.standard_normal((60, columns))])))
    return frames


@given(num_frames=st.integers(0, 40))
def test_exhaustive_is_every_combination_in_order(num_frames):
    assert exhaustive_pairs(num_frames).tolist() == [
        list(pair) for pair in itertools.combinations(range(num_frames), 2)
    ]


@given(num_frames=st.integers(0, 80), overlap=st.integers(0, 12))
def test_sequential_is_the_next_ones_and_powers_of_two(num_frames, overlap):
    expected = [
        [i, j]
        for i, j in itertools.combinations(range(num_frames), 2)
        if j - i <= overlap or (j - i).bit_count() == 1  # one bit: a power of two
    ]
    assert sequential_pairs(num_frames, overlap).tolist() == expected


@pytest.mark.parametrize("num_neighbours", [2, 4])
def test_neighbours_on_a_circle_are_those_beside(num_neighbours):
    angle = 2 * np.pi * np.arange(12) / 12
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    expected = {tuple(sorted((i, (i + step) % 12))) for i in range(12) for step in range(1, num_neighbours // 2 + 1)}
    assert as_set(retrieval_pairs(vectors, num_neighbours)) == expected


@given(seed=st.integers(0, 1000), num_neighbours=st.integers(1, 20))
def test_laws_of_retrieval(seed, num_neighbours):
    """Ordered pairs, each once; at least k for each frame; renumbering the frames renumbers the pairs."""
    generator = np.random.default_rng(seed)
    vectors = unit(generator.standard_normal((15, 4)))
    found = retrieval_pairs(vectors, num_neighbours)
    assert (found[:, 0] < found[:, 1]).all()
    assert [tuple(pair) for pair in found.tolist()] == sorted(as_set(found))
    assert np.bincount(found.ravel(), minlength=15).min() >= min(num_neighbours, 14)
    order = generator.permutation(15)
    renumbered = np.sort(order[retrieval_pairs(vectors[order], num_neighbours)], axis=1)
    assert as_set(renumbered) == as_set(found)


def test_asking_for_all_neighbours_gives_all_pairs_but_those_of_unknown_frames():
    vectors = unit(np.random.default_rng(0).standard_normal((9, 3)))
    assert np.array_equal(retrieval_pairs(vectors, 100), exhaustive_pairs(9))
    vectors[4] = 0
    assert as_set(retrieval_pairs(vectors, 100)) == {pair for pair in as_set(exhaustive_pairs(9)) if 4 not in pair}
    assert retrieval_pairs(np.zeros((3, 2), np.float32), 2).shape == (0, 2)


def test_one_word_is_the_mean_and_the_vector_points_away_from_it():
    """With a single word k-means is the mean of all, so the vector is the frame's own mean less that, normalised."""
    generator = np.random.default_rng(1)
    frames = [unit(generator.standard_normal((count, 8))) for count in (5, 9, 14)]
    mean = np.concatenate(frames).mean(axis=0)
    expected = unit(np.stack([frame.mean(axis=0) - mean for frame in frames]))
    np.testing.assert_allclose(vlad(frames, seed=3, num_words=1), expected, atol=1e-5)


def test_each_word_counts_the_same_however_often_it_is_seen():
    """Two words far apart, one seen once and one fifty times: after normalisation both halves are equally long."""
    generator = np.random.default_rng(2)
    centers = np.array([[10, 0, 0, 0], [0, 10, 0, 0]], np.float32)
    frames = []
    for counts in ((1, 50), (50, 1), (20, 20)):
        seen = np.repeat(centers, counts, axis=0)
        frames.append((seen + generator.standard_normal(seen.shape)).astype(np.float32))
    halves = np.linalg.norm(vlad(frames, seed=0, num_words=2).reshape(3, 2, 4), axis=2)
    np.testing.assert_allclose(halves, math.sqrt(0.5), atol=1e-5)


def test_vectors_find_the_frames_of_the_same_place():
    frames = visits()
    vectors = vlad(frames, seed=0, num_words=32)
    assert recall_at_k(vectors, SAME_PLACE, FRAMES_PER_PLACE - 1) > 0.95
    random = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    assert recall_at_k(random, SAME_PLACE, FRAMES_PER_PLACE - 1) < 0.3


def test_vectors_have_unit_length_and_repeat_for_the_same_seed():
    frames = visits()
    vectors = vlad(frames, seed=5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.array_equal(vectors, vlad(frames, seed=5))
    assert not np.array_equal(vectors, vlad(frames, seed=6))


def test_the_size_of_the_chunks_does_not_matter(monkeypatch):
    frames = visits()
    whole = choose_pairs("retrieval", frames, False, 0, PairSettings(num_neighbours=4))[0]
    monkeypatch.setattr(visual_words, "CHUNK_ROWS", 7)
    monkeypatch.setattr(choose_pairs_module, "CHUNK_ROWS", 7)
    assert np.array_equal(choose_pairs("retrieval", frames, False, 0, PairSettings(num_neighbours=4))[0], whole)


def test_frames_without_features_are_zero_and_in_no_pair():
    frames = visits()
    frames[3] = np.zeros((0, 32), np.float32)
    vectors = vlad(frames, seed=0)
    assert not vectors[3].any() and vectors[4].any()
    assert 3 not in retrieval_pairs(vectors, 5)
    nothing = [np.zeros((0, 32), np.float32)] * 4
    assert retrieval_pairs(vlad(nothing, seed=0), 2).shape == (0, 2)


def test_few_descriptors_make_few_words():
    vectors = vlad([np.eye(4, dtype=np.float32)[:2], np.eye(4, dtype=np.float32)[2:]], seed=0, num_words=64)
    assert vectors.shape == (2, 16) and np.isfinite(vectors).all()


def test_a_frame_with_many_features_is_not_judged_by_the_first_alone(monkeypatch):
    """Features may come sorted by place in the image: the last ones must count as much as the first."""
    monkeypatch.setattr(visual_words, "MAX_PER_FRAME", 120)
    frames = visits()
    first, last = frames[0], frames[-1]
    panorama = np.concatenate([np.repeat(first, 3, axis=0), np.repeat(last, 3, axis=0)])
    vectors = vlad([*frames, panorama], seed=0, num_words=32)
    similarity = vectors[:-1] @ vectors[-1]
    assert set(np.argsort(-similarity)[:2]) == {0, len(frames) - 1}


def test_recall_by_hand():
    """Frames on a quarter circle at 0, 10, 25 and 60 degrees; those at the smaller angle are nearer."""
    angle = np.radians([0, 10, 25, 60])
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    relevant = np.zeros((4, 4), bool)
    relevant[0, 1] = relevant[1, 2] = relevant[1, 3] = relevant[2, 0] = True
    # One nearest: frame 0 finds 1; 1 finds 0 instead of 2 or 3; 2 finds 1 instead of 0; 3 has nothing to find.
    assert recall_at_k(vectors, relevant, 1) == pytest.approx((1 + 0 + 0) / 3)
    # Two nearest: frame 1 also finds 2, one of its two; frame 2 finds 0.
    assert recall_at_k(vectors, relevant, 2) == pytest.approx((1 + 0.5 + 1) / 3)
    assert recall_at_k(vectors, relevant, 100) == 1
    assert recall_at_k(vectors, relevant | np.eye(4, dtype=bool), 1) == recall_at_k(vectors, relevant, 1)
    assert math.isnan(recall_at_k(vectors, np.zeros((4, 4), bool), 2))


def test_automatic_choice():
    """All pairs of few frames; of many, those that look alike, and the following ones if the frames have an order."""
    frames = visits()
    few = PairSettings(exhaustive_up_to=47, num_neighbours=4, overlap_beside_retrieval=3)
    alike = as_set(retrieval_pairs(vlad(frames, seed=1), 4))
    following = as_set(sequential_pairs(48, 3))

    found, why = choose_pairs("auto", frames, ordered=False, seed=1)
    assert np.array_equal(found, exhaustive_pairs(48)) and str(why) == "All pairs, as there are only 48 frames."
    found, why = choose_pairs("auto", frames, ordered=False, seed=1, settings=few)
    assert as_set(found) == alike and "more than 47 frames" in str(why)
    found, why = choose_pairs("auto", frames, ordered=True, seed=1, settings=few)
    assert as_set(found) == alike | following and found.tolist() == sorted(found.tolist())
    assert "the 4 that look most alike (by VLAD of local features) and the 3 following" in str(why)


def test_a_choice_asked_for_is_made():
    frames = visits()
    found, why = choose_pairs("exhaustive", frames, ordered=True, seed=0)
    assert len(found) == 48 * 47 // 2 and "as asked for" in str(why)
    found, why = choose_pairs("sequential", frames, ordered=True, seed=0)
    assert np.array_equal(found, sequential_pairs(48)) and "although" not in str(why)
    assert choose_pairs("sequential", frames, ordered=False, seed=0)[1].kind is PairChoice.SEQUENCE_UNNUMBERED
    found, why = choose_pairs("retrieval", frames[:10], ordered=True, seed=0, settings=PairSettings(0, 2))
    assert as_set(found) == as_set(retrieval_pairs(vlad(frames[:10], seed=0), 2)) and "as asked for" in str(why)


@pytest.mark.parametrize("mode", ["auto", "retrieval"])
def test_without_descriptors_all_pairs_are_matched(mode):
    frames = [np.zeros((30, 0), np.float32)] * 70
    found, why = choose_pairs(mode, frames, ordered=True, seed=0)
    assert len(found) == 70 * 69 // 2 and "nothing to compare" in str(why)


@pytest.mark.parametrize(
    "names, ordered",
    [
        ([f"frame-{i:06d}.color.png" for i in range(0, 100, 5)], True),
        ([f"IMG_{i}.JPG" for i in range(1001, 1030)], True),
        ([f"{folder}/{i:03d}.png" for folder in "ab" for i in range(1, 40)], True),
        ([f"clip{clip}/{i:03d}.png" for clip, step in ((1, 1), (2, 10)) for i in range(0, 30 * step, step)], True),
        ([f"v2/{i:04d}" for i in range(10)], True),
        ([f"{i:03d}.jpg" for i in range(40) if i not in (13, 27)], True),  # lost frames
        (sorted(f"{i}.jpg" for i in range(1, 30)), False),  # 1, 10, 11 ... 2, 20
        ([f"{i:05d}.jpg" for i in (12, 77, 300, 4000, 4100, 9020)], False),
        ([f"{name}_{i:03d}.jpg" for i, name in enumerate(["door", "wall", "yard", "tree"])], False),
        (["kitchen.jpg", "stairs.jpg", "yard.jpg"], False),
        ([f"{i:03d}.jpg" for i in range(30, 0, -1)], False),
        (["1.jpg", "2.jpg"], False),
        ([], False),
    ],
)
def test_names_of_a_sequence_are_recognised(names, ordered):
    assert looks_ordered(names) is ordered


@pytest.mark.slow
@pytest.mark.skipif(not KITCHEN.is_dir(), reason="needs the shared photographs")
def test_a_walk_through_a_kitchen(tmp_path):
    """Every eighth frame of a real sequence: those that look alike are those that look at the same place."""
    listing = tmp_path / "photos.txt"
    listing.write_text("\n".join(str(path) for path in sorted((KITCHEN / "images").iterdir())[::8]))
    photos, _ = find_photos(listing)
    truth = json.loads((KITCHEN / "gt.json").read_text())["images"]
    rotation = np.array([truth[photo.path.name]["R"] for photo in photos])
    center = -np.einsum("nji,nj->ni", rotation, np.array([truth[photo.path.name]["t"] for photo in photos]))
    target = center + 2 * rotation[:, 2]  # two metres ahead, where the furniture is
    relevant = np.linalg.norm(target[:, None] - target, axis=2) < 0.8
    matcher = SiftMatcher()
    vectors = vlad([matcher.describe(photo, read_upright(photo.path)).descriptors for photo in photos], seed=0)
    chance = (relevant.sum() - len(photos)) / (len(photos) * (len(photos) - 1))
    assert recall_at_k(vectors, relevant, 3) > 2 * chance
    assert looks_ordered([photo.name for photo in photos])
