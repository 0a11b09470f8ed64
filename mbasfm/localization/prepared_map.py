"""A map prepared once: features, retrieval vectors and depth of its photographs, ready for any number of queries.

Depth of a map is always in the world's unit. Points that the known poses triangulate help it: they fill the holes of
given maps (a sensor's), which are taken as they are elsewhere. Where they are many they replace the maps of a depth
model, where they are few these are fitted to them.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pycolmap
import torch
from jaxtyping import Bool, Float32, Float64, Int64

from mbasfm.errors import InputError
from mbasfm.geometry.camera import line_distances_px, unproject, values_at
from mbasfm.geometry.rigid import invert, transform
from mbasfm.io.files import active_cache
from mbasfm.localization.map_source import MapSource
from mbasfm.matching.choose_pairs import exhaustive_pairs, retrieval_pairs
from mbasfm.matching.image_matching import Indices, match_as_images
from mbasfm.matching.inference import counts, describe_photos, estimate_depths, match_pairs
from mbasfm.matching.observe import AnyMatcher, chooser_of, warn_if_slow
from mbasfm.matching.visual_words import aggregate, learn_words
from mbasfm.models.base import DepthModel, ImageMatcher, Matcher
from mbasfm.models.depth.files import FilesDepth
from mbasfm.polish.polish import triangulate
from mbasfm.runtime.progress import each, stage
from mbasfm.scene.derived import MIN_POINTS_SCALE, DepthFit, fit_depth
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import DepthEstimate, Features, Keypoints, Photo, TwoView

EXHAUSTIVE_UP_TO, NUM_NEIGHBOURS = 25, 20
"""Pairs of the map to triangulate from: all up to the first number, else the second number of most similar ones."""
POSE_SLACK = 2.0
"""Factor on the distance from epipolar lines that matches may have, as known poses are not exact."""
MIN_MATCHES = 12
MANY_POINTS = 30
"""Number of triangulated points from which a photograph needs no depth network, which errs far more."""
NO_DEPTH = DepthEstimate(np.full((1, 1), np.nan, np.float32), is_disparity=False, is_metric=False)


@dataclass(frozen=True)
class Index:
    """Features of the map by one matcher."""

    matcher: Matcher | ImageMatcher
    chooser: Matcher
    """Matcher whose features tell which photographs look alike."""
    features: list[Features]
    usable: list[Bool[np.ndarray, " _"]]
    """Which keypoints are not masked."""
    offset: list[int]
    """Index of a frame's first keypoint of this matcher among those of all matchers."""
    words: Float32[np.ndarray, "W C"]
    vectors: Float32[np.ndarray, "M D"]
    pairs: Int64[np.ndarray, "P 2"]
    """Pairs of photographs of the map that look alike."""
    found: list[Indices] | None = None
    """Matches of these pairs, if features follow from them."""


@dataclass(frozen=True)
class PreparedMap:
    """Everything that localization needs of a map."""

    photos: tuple[Photo, ...]
    cameras: Cameras
    """Cameras with depth corrections one and zero: depth is in the world's unit already."""
    keypoints: list[Keypoints]
    """Keypoints of all matchers, one after the other."""
    points: list[Float64[np.ndarray, "_ 3"]]
    """World points of the keypoints; NaN where depth is unknown."""
    indexes: tuple[Index, ...]

    @property
    def num_frames(self) -> int:
        """Number of photographs of the map, M."""
        return len(self.photos)


def prepare(
    source: MapSource,
    matchers: Sequence[AnyMatcher],
    load_model: Callable[[], DepthModel] | None,
    max_error_px: float,
    seed: int,
) -> PreparedMap:
    """Features of all matchers, retrieval vectors, depth; what is in the cache is not computed again.

    Depth is the map's own where there is no ``load_model``.
    """
    with stage("map features") as facts:
        indexes = _indexes(source.photos, matchers, seed)
        pixels = [np.concatenate([index.features[n].pixels for index in indexes]) for n in range(len(source.photos))]
        facts.update(photographs=len(source.photos), keypoints=sum(map(len, pixels)))
    cameras = Cameras.with_depth_as_given(source.cam_from_world, source.intrinsics)
    is_given = load_model is None
    with stage("map depth") as facts:
        triangulated = _triangulated_depths(source, cameras, indexes[0], max_error_px)
        if load_model is None:
            depths = given_depths(source)
        else:
            depths = _model_depths(source, triangulated, load_model())
        raw = [_at_pixels(*item) for item in zip(depths, source.photos, pixels, strict=True)]
        items = zip(depths, raw, triangulated, strict=True)
        raw = [
            _filled(values, known) if is_given else aligned(estimate.is_disparity, values, known)
            for estimate, values, known in items
        ]
        facts.update(given=is_given, maps=sum(estimate is not NO_DEPTH for estimate in depths))
        facts["known"] = float(np.mean([np.isfinite(values).mean() for values in raw]))
    keypoints = [Keypoints(*item) for item in zip(pixels, raw, strict=True)]
    points = [_points(cameras, frame, item) for frame, item in enumerate(keypoints)]
    return PreparedMap(source.photos, cameras, keypoints, points, indexes)


def _indexes(photos: Sequence[Photo], matchers: Sequence[AnyMatcher], seed: int) -> tuple[Index, ...]:
    found: list[Index] = []
    offset = [0] * len(photos)
    for matcher in matchers:
        chooser, matches = chooser_of(matcher), None
        features = [item.features for item in each(describe_photos(photos, chooser), len(photos))]
        descriptors = [item.descriptors for item in features]
        words, vectors = _vectors(photos, descriptors, chooser, seed)
        few = len(photos) <= EXHAUSTIVE_UP_TO
        pairs = exhaustive_pairs(len(photos)) if few else retrieval_pairs(vectors, NUM_NEIGHBOURS)
        if isinstance(matcher, ImageMatcher):
            features, matches = match_as_images(pairs, photos, matcher)
        usable = [counts(photo, item.pixels) for photo, item in zip(photos, features, strict=True)]
        found.append(Index(matcher, chooser, features, usable, offset, words, vectors, pairs, matches))
        offset = [begin + len(item.pixels) for begin, item in zip(offset, features, strict=True)]
    return tuple(found)


def _vectors(
    photos: Sequence[Photo], descriptors: Sequence[np.ndarray], matcher: Matcher, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    def compute() -> dict[str, np.ndarray]:
        words = learn_words(descriptors, seed)
        return {"words": words, "vectors": aggregate(descriptors, words)}

    arrays = active_cache().get(f"words-1|{matcher.key}|{_digest_of(photos)}|{seed}", compute)
    return arrays["words"], arrays["vectors"]


def _digest_of(photos: Sequence[Photo]) -> str:
    return hashlib.sha256("|".join(photo.digest for photo in photos).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------------------
# Depth


def given_depths(source: MapSource) -> list[DepthEstimate]:
    """Depth maps from files; NaN everywhere for a photograph without one."""
    model = FilesDepth(str(source.depth))
    there = [photo for photo in source.photos if model.find(photo.name) is not None]
    found = dict(zip((photo.name for photo in there), depths_of(there, model), strict=True))
    return [found.get(photo.name, NO_DEPTH) for photo in source.photos]


def _model_depths(
    source: MapSource, triangulated: Sequence[Float64[np.ndarray, " _"]], model: DepthModel
) -> list[DepthEstimate]:
    """A model's maps of the photographs that have enough points to fit one to, but not so many as to do without."""
    numbers = [int(np.isfinite(depth).sum()) for depth in triangulated]
    few = [
        photo for photo, number in zip(source.photos, numbers, strict=True) if MIN_POINTS_SCALE <= number < MANY_POINTS
    ]
    warn_if_slow(few, model)
    estimates = each(depths_of(few, model), len(few))
    found = dict(zip((photo.name for photo in few), estimates, strict=True))
    return [found.get(photo.name, NO_DEPTH) for photo in source.photos]


def depths_of(photos: Sequence[Photo], model: DepthModel) -> Iterator[DepthEstimate]:
    """Depth of every photograph; raises the error of the first that fails."""
    for found in estimate_depths(photos, model):
        if isinstance(found, InputError):
            raise found
        yield found


def _at_pixels(estimate: DepthEstimate, photo: Photo, pixels: Float32[np.ndarray, "A 2"]) -> Float32[np.ndarray, " A"]:
    raw = values_at(estimate.values, pixels / np.array([photo.width, photo.height], np.float32))
    return np.where(raw > 0, raw, np.nan).astype(np.float32)


def aligned(
    is_disparity: bool, raw: Float32[np.ndarray, " A"], known: Float64[np.ndarray, " B"]
) -> Float32[np.ndarray, " A"]:
    """Depth in the world's unit: that of triangulated points, which come first, and the fitted map's if they are few.

    A map with too few points is useless: its scale is unknown.
    """
    depth = np.full(len(raw), np.nan, np.float32)
    if np.isfinite(known).sum() < MANY_POINTS:
        fit, error = fit_depth(raw[: len(known)], known, DepthFit(1.0, 0.0, is_disparity))
        depth = fit.depth(raw) if np.isfinite(error) else depth
    depth[: len(known)] = np.where(np.isfinite(known), known, depth[: len(known)])
    return depth


def _filled(raw: Float32[np.ndarray, " A"], known: Float64[np.ndarray, " B"]) -> Float32[np.ndarray, " A"]:
    """Sensor depth, with that of triangulated points where it is unknown."""
    depth = raw.copy()
    depth[: len(known)] = np.where(np.isfinite(raw[: len(known)]), raw[: len(known)], known)
    return depth


def _triangulated_depths(
    source: MapSource, cameras: Cameras, index: Index, max_error_px: float
) -> list[Float64[np.ndarray, " _"]]:
    """Depth of the first matcher's keypoints that known poses triangulate; NaN for the others."""
    sizes = [len(item.pixels) for item in index.features]

    def compute() -> dict[str, np.ndarray]:
        model = triangulate_map(source, cameras, index, max_error_px)
        return {"depth": np.concatenate([np.zeros(0), *_depths_of(model, sizes)])}

    intrinsics = source.intrinsics
    numbers = [source.cam_from_world, intrinsics.focal, intrinsics.center, intrinsics.distortion]
    state = hashlib.sha256(b"".join(np.ascontiguousarray(value.numpy()).tobytes() for value in numbers)).hexdigest()
    key = f"triangulated-1|{index.matcher.key}|{_digest_of(source.photos)}|{state}|{max_error_px}"
    return np.split(active_cache().get(key, compute)["depth"], np.cumsum(sizes)[:-1])


def triangulate_map(source: MapSource, cameras: Cameras, index: Index, max_error_px: float) -> pycolmap.Reconstruction:
    """A model with the points that known poses triangulate from a matcher's matches; image ids are frames plus one."""
    views = map_views(source.photos, cameras, index, max_error_px)
    keypoints = [Keypoints(item.pixels, np.full(len(item.pixels), np.nan, np.float32)) for item in index.features]
    names = [photo.name for photo in source.photos]
    return triangulate(names, range(len(names)), cameras, views, keypoints)


def map_views(photos: Sequence[Photo], cameras: Cameras, index: Index, max_error_px: float) -> list[TwoView]:
    """Pairs of the map's photographs that look alike, with the matches that agree with their poses."""
    if index.found is None:
        found = match_pairs(index.pairs, index.features, photos, index.chooser)
    else:
        found = iter(index.found)
    views = []
    matched = each(found, len(index.pairs))
    for (i, j), (indices, _) in zip(index.pairs.tolist(), matched, strict=True):
        usable = indices[index.usable[i][indices[:, 0]] & index.usable[j][indices[:, 1]]]
        view = posed_view((i, j), usable, index.features, cameras, POSE_SLACK * max_error_px)
        if view is not None:
            views.append(view)
    return views


def _depths_of(model: pycolmap.Reconstruction, sizes: Sequence[int]) -> list[Float64[np.ndarray, " _"]]:
    """Depth of every frame's keypoints; NaN for those without a point."""
    depths = [np.full(size, np.nan) for size in sizes]
    for image_id, image in model.images.items():
        row = image.cam_from_world().matrix()[2]
        for number, point in enumerate(image.points2D):
            if point.has_point3D():
                depths[image_id - 1][number] = row[:3] @ model.points3D[point.point3D_id].xyz + row[3]
    return depths


def posed_view(
    ends: tuple[int, int],
    matches: Int64[np.ndarray, "M 2"],
    features: Sequence[Features | Keypoints],
    cameras: Cameras,
    max_error_px: float,
) -> TwoView | None:
    """The matches of two placed frames that lie near their epipolar lines; None if they are few."""
    pixels = features[ends[0]].pixels[matches[:, 0]], features[ends[1]].pixels[matches[:, 1]]
    near = matches[line_distances_px(cameras, ends, pixels) < max_error_px]
    if len(near) < MIN_MATCHES:
        return None
    return TwoView.of_matches(*ends, near, len(near) / len(matches))


def _points(cameras: Cameras, frame: int, keypoints: Keypoints) -> Float64[np.ndarray, "A 3"]:
    pixels, depth = (torch.from_numpy(values).double() for values in (keypoints.pixels, keypoints.raw_depth))
    points = unproject(pixels, depth, cameras.intrinsics, torch.tensor(frame))
    return transform(invert(cameras.cam_from_world[frame]), points).numpy()
