"""Matches of queries with a prepared map: features, neighbours, matches, and quarter turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Int64

from mbasfm.estimators.absolute import Sightings
from mbasfm.estimators.two_view import verify
from mbasfm.localization.prepared_map import Index, PreparedMap
from mbasfm.matching.choose_pairs import nearest_of, retrieval_pairs
from mbasfm.matching.image_matching import match_with_map
from mbasfm.matching.inference import counts, describe_photos, match_pairs
from mbasfm.matching.observe import MANY_MATCHES
from mbasfm.matching.visual_words import aggregate
from mbasfm.models.base import ImageMatcher
from mbasfm.runtime.parallel import in_parallel
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import Features, Photo, TwoView

QUARTER_TURNS = (1, 2, 3)
FEW_INLIERS = 30
"""A query whose best pair has fewer inliers may lie on its side."""
NUM_VERIFIED = 3
"""Number of pairs, those with most matches, whose two-view geometry is estimated."""

Matches = Int64[np.ndarray, "_ 2"]


@dataclass(frozen=True)
class Query:
    """A photograph to localize, and its matches with the map."""

    photo: Photo
    features: tuple[Features | None, ...]
    """Features by matcher; None if a second matcher was not needed."""
    usable: tuple[Bool[np.ndarray, " _"], ...]
    matches: Mapping[int, Matches]
    """Keypoints of the query and of the map's frame, by frame; keypoints of all matchers, one after the other."""
    quarter_turns: int = 0
    """Quarter turns with which its features were found."""
    views: tuple[TwoView, ...] = ()
    """Verified pairs (0: the map's frame, 1: the query) of those with most matches, by inliers."""
    frames: tuple[int, ...] = ()
    """Frames of the verified pairs."""

    @property
    def pixels(self) -> Float32[np.ndarray, "A 2"]:
        """Positions of the keypoints of all matchers."""
        return np.concatenate([np.zeros((0, 2), np.float32), *(item.pixels for item in self.features if item)])

    @property
    def num_verified(self) -> int:
        """Number of inliers of the best pair."""
        return max((view.num_inliers for view in self.views), default=0)

    def sightings(self, prepared: PreparedMap) -> Sightings:
        """All matches, with the points of the map that they show."""
        pixels = self.pixels.astype(np.float64)
        empty = np.zeros((0, 2), np.int64)
        pairs = np.concatenate([empty, *self.matches.values()])
        frame = np.repeat(np.array([*self.matches], np.int64), [len(item) for item in self.matches.values()])
        points = [prepared.points[number][item[:, 1]] for number, item in self.matches.items()]
        return Sightings(
            pairs[:, 0], frame, pairs[:, 1], pixels[pairs[:, 0]], np.concatenate([np.zeros((0, 3)), *points])
        )


def match_queries(
    prepared: PreparedMap, photos: Sequence[Photo], lenses: Sequence[Lens], num_neighbours: int, max_error_px: float
) -> list[Query]:
    """Match every query with its neighbours in the map, turned by quarter turns where upright finds little."""
    how = num_neighbours, max_error_px
    queries = _match(prepared, photos, lenses, *how, 0)
    for turns in QUARTER_TURNS if all(index.matcher.looks_at_images for index in prepared.indexes) else ():
        weak = [number for number, query in enumerate(queries) if query.num_verified < FEW_INLIERS]
        again = [queries[number].photo for number in weak]
        turned = _match(prepared, again, [lenses[number] for number in weak], *how, turns)
        for number, query in zip(weak, turned, strict=True):
            queries[number] = max(queries[number], query, key=lambda item: item.num_verified)
    return queries


def _match(
    prepared: PreparedMap,
    photos: Sequence[Photo],
    lenses: Sequence[Lens],
    num_neighbours: int,
    max_error_px: float,
    turns: int,
) -> list[Query]:
    queries = [Query(photo, (), (), {}, turns) for photo in photos]
    for index in prepared.indexes:
        weak = [number for number, query in enumerate(queries) if not _has_many(query.matches)]
        queries = [replace(query, features=(*query.features, None)) for query in queries]
        found = _with_matches(index, prepared, [queries[number] for number in weak], num_neighbours)
        for number, query in zip(weak, found, strict=True):
            queries[number] = query

    def verified(number: int) -> Query:
        return _verified(queries[number], prepared, lenses[number], max_error_px)

    return list(in_parallel(verified, range(len(queries))))


def _has_many(matches: Mapping[int, Matches]) -> bool:
    """Whether two frames hold the query in place, so that no further matcher is needed."""
    return sum(len(item) >= MANY_MATCHES for item in matches.values()) >= 2


def _with_matches(index: Index, prepared: PreparedMap, queries: Sequence[Query], num_neighbours: int) -> list[Query]:
    """Queries with the features of one more matcher, and its matches joined to those they have."""
    if not queries:
        return []
    photos = [query.photo for query in queries]
    turns = queries[0].quarter_turns
    features = [item.features for item in describe_photos(photos, index.chooser, turns)]
    near = _neighbours(index, features, num_neighbours)
    pairs = np.array([(m, prepared.num_frames + q) for q, row in enumerate(near) for m in row], np.int64).reshape(-1, 2)
    if isinstance(index.matcher, ImageMatcher):
        everything = [*prepared.photos, *photos]
        features, found = match_with_map(pairs, index.features, everything, index.matcher, turns)
    else:
        # The cache identifies a photograph by its digest; turned, it is a different one.
        named = [replace(photo, digest=f"{photo.digest}|{turns}") if turns else photo for photo in photos]
        matched = match_pairs(pairs, [*index.features, *features], [*prepared.photos, *named], index.matcher)
        found = list(matched)
    usable = [counts(photo, item.pixels) for photo, item in zip(photos, features, strict=True)]
    matches: list[dict[int, Matches]] = [dict(query.matches) for query in queries]
    for (frame, number), (indices, _) in zip(pairs.tolist(), found, strict=True):
        q = number - prepared.num_frames
        good = indices[index.usable[frame][indices[:, 0]] & usable[q][indices[:, 1]]][:, ::-1]
        moved = good + np.array([len(queries[q].pixels), index.offset[frame]])
        matches[q][frame] = np.concatenate([matches[q].get(frame, moved[:0]), moved])
    return [
        replace(query, features=(*query.features[:-1], item), usable=(*query.usable, mask), matches=joined)
        for query, item, mask, joined in zip(queries, features, usable, matches, strict=True)
    ]


def _neighbours(index: Index, features: Sequence[Features], count: int) -> Sequence[Sequence[int]]:
    frames = len(index.features)
    if frames <= count or not index.words.size:
        return [list(range(frames))] * len(features)
    vectors = aggregate([item.descriptors for item in features], index.words)
    return nearest_of(vectors, index.vectors, count).tolist()


def _verified(query: Query, prepared: PreparedMap, lens: Lens, max_error_px: float) -> Query:
    """Query with two-view geometry of its pairs with most matches; with poses if the focal length is known."""
    frames = sorted(query.matches, key=lambda frame: -len(query.matches[frame]))[:NUM_VERIFIED]
    pixels, views = query.pixels.astype(np.float64), list[tuple[int, TwoView]]()
    for frame in frames:
        ends = prepared.cameras.intrinsics.lens(frame), lens
        places = prepared.keypoints[frame].pixels.astype(np.float64), pixels
        matches = np.ascontiguousarray(query.matches[frame][:, ::-1])
        view = verify((0, 1), places, matches, ends, max_error_px, bool(np.isfinite(lens.focal).all()))
        views += [] if view is None else [(frame, view)]
    views.sort(key=lambda item: -item[1].num_inliers)
    return replace(query, views=tuple(view for _, view in views), frames=tuple(frame for frame, _ in views))


def match_each_other(
    prepared: PreparedMap, queries: Sequence[Query], num_neighbours: int
) -> dict[tuple[int, int], Int64[np.ndarray, "_ 2"]]:
    """Matches between queries that look alike, by the first matcher, if it has features."""
    index = prepared.indexes[0]
    features = [query.features[0] for query in queries]
    if len(queries) < 2 or num_neighbours == 0 or not index.words.size:
        return {}
    if isinstance(index.matcher, ImageMatcher):
        return {}  # without features, keypoints of queries are those that match the map
    vectors = aggregate([item.descriptors for item in features if item is not None], index.words)
    pairs = retrieval_pairs(vectors, num_neighbours)
    photos = [
        replace(query.photo, digest=f"{query.photo.digest}|{query.quarter_turns}")
        if query.quarter_turns
        else query.photo
        for query in queries
    ]
    found = match_pairs(pairs, [item for item in features if item is not None], photos, index.matcher)
    links = {}
    for (a, b), (indices, _) in zip(pairs.tolist(), found, strict=True):
        usable = queries[a].usable[0][indices[:, 0]] & queries[b].usable[0][indices[:, 1]]
        links[a, b] = indices[usable]
    return links
