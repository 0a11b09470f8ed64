"""Mutual nearest neighbours: equal to the definition for small sets, close to it for large ones."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mbasfm.models.matchers.sift import MIN_FOR_CELLS, mutual_nearest


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def by_definition(first, second, max_ratio=1.0, min_similarity=-1.0):
    """Every pair compared, in float64: index pairs with similarity and ratio of distances."""
    similarity = first.astype(np.float64) @ second.astype(np.float64).T
    distance = np.sqrt(np.maximum(2 - 2 * similarity, 0))
    found = {}
    for row, column in enumerate(similarity.argmax(1)):
        nearest, runner_up = np.sort(distance[row])[:2]
        if similarity[:, column].argmax() == row and similarity[row, column] >= min_similarity:
            if nearest <= max_ratio * runner_up:
                found[row, int(column)] = (similarity[row, column], nearest / runner_up)
    return found


def as_set(matches):
    return {(int(a), int(b)) for a, b in matches.indices}


def two_sets(num_first, num_second, num_common, seed, columns=16, noise=0.15):
    generator = np.random.default_rng(seed)
    common = generator.standard_normal((num_common, columns))
    sides = []
    for count in (num_first, num_second):
        seen = common + noise * generator.standard_normal(common.shape)
        rows = np.concatenate([seen, generator.standard_normal((count - num_common, columns))])
        sides.append(unit(rows[generator.permutation(count)]))
    return sides


@given(
    num_first=st.integers(2, 60),
    num_second=st.integers(2, 60),
    max_ratio=st.sampled_from([1.0, 0.9, 0.6]),
    min_similarity=st.sampled_from([-1.0, 0.0, 0.8]),
    seed=st.integers(0, 1000),
)
def test_small_sets_equal_the_definition(num_first, num_second, max_ratio, min_similarity, seed):
    first, second = two_sets(num_first, num_second, min(num_first, num_second) // 2, seed)
    expected = by_definition(first, second, max_ratio, min_similarity)
    found = mutual_nearest(first, second, max_ratio, min_similarity)
    assert as_set(found) == set(expected)
    for (row, column), confidence in zip(found.indices.tolist(), found.confidence.tolist(), strict=True):
        similarity, ratio = expected[row, column]
        assert confidence == pytest.approx(max(similarity, 0) if max_ratio == 1 else 1 - ratio, abs=2e-3)


def test_only_allowed_pairs_are_compared_and_one_without_rival_passes_the_ratio_test():
    first, second = two_sets(40, 50, 20, 3)
    allowed = np.random.default_rng(4).random((40, 50)) < 0.2
    similarity = np.where(allowed, first @ second.T, -np.inf)
    best = similarity.argmax(1)
    mutual = similarity.argmax(0)[best] == np.arange(40)
    found = mutual_nearest(first, second, allowed=torch.from_numpy(allowed))
    assert as_set(found) == {(row, int(best[row])) for row in np.flatnonzero(mutual & allowed.any(1))}
    lonely = np.zeros((40, 50), dtype=bool)
    lonely[7, 9] = True
    assert as_set(mutual_nearest(first, second, 0.5, allowed=torch.from_numpy(lonely))) == {(7, 9)}
    assert len(mutual_nearest(first, second, 0.5, 0.9999, torch.from_numpy(lonely)).indices) == 0


def test_exchanging_the_sets_exchanges_the_columns():
    first, second = two_sets(80, 50, 30, seed=2)
    forward, backward = mutual_nearest(first, second), mutual_nearest(second, first)
    assert as_set(forward) == {(a, b) for b, a in as_set(backward)} and len(forward.indices) > 20


def test_a_set_matches_itself_one_to_one():
    first, _ = two_sets(100, 100, 0, seed=3)
    found = mutual_nearest(first, first.copy(), max_ratio=0.8)
    assert as_set(found) == {(number, number) for number in range(100)}
    assert found.confidence.min() > 0.99


@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 5), (5, 1)])
def test_empty_and_single_descriptors_match_nothing(counts):
    """A single one has no runner-up to be better than."""
    first, second = (unit(np.random.default_rng(0).standard_normal((count, 8))) for count in counts)
    found = mutual_nearest(first, second)
    assert found.indices.shape == (0, 2) and found.confidence.shape == (0,)


def test_a_descriptor_that_the_other_image_has_twice_is_ambiguous():
    first, second = two_sets(20, 20, 10, seed=0)
    first[0] = second[3] = second[7] = np.eye(16, dtype=np.float32)[0]
    assert 0 not in mutual_nearest(first, second, max_ratio=0.8).indices[:, 0]


def test_every_feature_is_matched_at_most_once():
    first, second = two_sets(20, 20, 10, seed=0)
    first[0] = first[5] = second[3] = np.eye(16, dtype=np.float32)[0]
    for max_ratio in (1.0, 0.8):
        indices = mutual_nearest(first, second, max_ratio).indices
        assert len(set(indices[:, 1])) == len(indices)


def clustered(seed, count=4000, columns=64):
    """Descriptors around 200 prototypes, as those of photographs are; half of each set is seen in both."""
    generator = np.random.default_rng(seed)
    prototypes = generator.standard_normal((200, columns))
    common = prototypes[generator.integers(0, 200, count // 2)] + 0.7 * generator.standard_normal((count // 2, columns))
    sides = []
    for size in (count, count - 500):
        own = prototypes[generator.integers(0, 200, size - len(common))]
        own = own + 0.7 * generator.standard_normal(own.shape)
        seen = common + 0.15 * generator.standard_normal(common.shape)
        sides.append(unit(np.concatenate([seen, own])[generator.permutation(size)]))
    return sides


@pytest.mark.parametrize("max_ratio, min_similarity", [(0.8, -1.0), (1.0, 0.82)])
@pytest.mark.parametrize("seed", range(2))
def test_large_sets_find_most_of_the_full_search_and_little_else(seed, max_ratio, min_similarity):
    first, second = clustered(seed)
    assert min(len(first), len(second)) > MIN_FOR_CELLS
    expected = set(by_definition(first, second, max_ratio, min_similarity))
    found = as_set(mutual_nearest(first, second, max_ratio, min_similarity))
    assert len(expected) > 1000
    assert len(found & expected) >= 0.8 * len(expected)
    assert len(found - expected) <= 0.03 * len(expected)


def test_large_sets_give_the_same_matches_each_time():
    first, second = clustered(3)
    one, two = mutual_nearest(first, second, 0.8), mutual_nearest(first, second, 0.8)
    assert np.array_equal(one.indices, two.indices) and np.array_equal(one.confidence, two.confidence)


def test_large_sets_of_one_cluster_only_are_searched_in_full():
    """All descriptors in one cell but for the pivots' own: nothing is lost where cells cannot help."""
    generator = np.random.default_rng(4)
    base = np.eye(32)[0] * 20
    common = base + generator.standard_normal((MIN_FOR_CELLS + 100, 32))
    first, second = (unit(common + 0.05 * generator.standard_normal(common.shape)) for _ in range(2))
    expected = set(by_definition(first, second, 0.8))
    found = as_set(mutual_nearest(first, second, 0.8))
    assert len(found & expected) >= 0.8 * len(expected) > 1000
