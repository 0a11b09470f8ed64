"""Problems with a known answer: cameras in a made-up scene, and what a depth model and a matcher would say there.

The observed depth is a fixed function of frame and pixel, so that all edges of a frame meet the same error of its
depth map. Errors are values (``DepthError``, ``MatchError``); all zero gives exact data.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from mbasfm.errors import ConfigError, InputError
from mbasfm.geometry import camera_centers, pixel_rays, project, transform
from mbasfm.scenery import Scene, first_hit, hash_unit, make_scene, seeded, uniform
from mbasfm.staging import (
    COVISIBILITY_GRID,
    ORBITS,
    make_cameras,
    pixel_centers,
    pixel_grid,
    ray_directions,
    visible_points,
)
from mbasfm.types import Cameras, PoseGraph, Samples

OCCLUSION_TOLERANCE = 0.01
"""A point is hidden if something stands before it by more than this share of its distance."""
CANDIDATES_PER_CHUNK = 1 << 19
"""Pixels tried at once; bounds the memory."""
NUM_DISCS = 6
"""Discs of gross depth error in a frame."""
GROSS_FACTOR = (1.6, 2.5)
"""Depth within a disc is too large or too small by a factor from this range."""
SAFE_SHIFT = 0.25
"""Largest shift as a share of the nearest depth."""
FIELD_TERMS = (4, 5)
"""Cosine terms of the smooth depth error, down and across."""


@dataclass(frozen=True)
class DepthError:
    """How an estimated depth map differs from the truth; all zero is exact."""

    scale: float = 0.2
    """Standard deviation of the logarithm of a frame's scale."""
    shift: float = 0.05
    """Standard deviation of a frame's shift, as a share of its median depth (or disparity)."""
    smooth: float = 0.05
    """Root mean square over the image of a slowly varying relative error."""
    edge_blur_px: float = 1.5
    """Radius within which disparity is averaged: edges of objects are soft."""
    outliers: float = 0.02
    """Share of the image, in discs, whose depth is wrong by a large factor."""
    noise: float = 0.0
    """Standard deviation of an independent relative error of each pixel."""


@dataclass(frozen=True)
class MatchError:
    """How estimated matches differ from the truth; all zero is exact."""

    noise_px: float = 1.0
    """Standard deviation along each axis of image j."""
    outliers: float = 0.1
    """Share of matches that are anywhere in image j."""
    repeated: float = 0.0
    """Share of an edge's matches that are off by one common offset, as where a facade repeats its windows."""


EXACT_DEPTH = DepthError(scale=0.0, shift=0.0, smooth=0.0, edge_blur_px=0.0, outliers=0.0, noise=0.0)
EXACT_MATCH = MatchError(noise_px=0.0, outliers=0.0, repeated=0.0)


@dataclass(frozen=True)
class Settings:
    """What kind of problem to make."""

    kind: str = "room"
    """room, place or object."""
    samples_per_edge: int = 200
    depth_error: DepthError = field(default_factory=DepthError)
    match_error: MatchError = field(default_factory=MatchError)
    max_degree: int | None = None
    """Neighbours a frame keeps; None keeps all."""
    min_covisibility: float = 0.15
    disparity: bool = False
    """Depth maps hold disparity."""
    distortion: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """k1, k2, p1, p2."""


@dataclass(frozen=True)
class Problem:
    """Data, and the answer."""

    scene: Scene
    truth: Cameras
    graph: PoseGraph
    samples: Samples
    inlier: Bool[Tensor, "E K"]
    """Matches that are right up to noise; says nothing about the depth."""


def make_problem(num_frames: int, seed: int, settings: Settings | None = None) -> Problem:
    """A scene, cameras in it, and samples with errors."""
    settings = settings or Settings()
    if num_frames < 2:
        raise ConfigError(f"{num_frames} frames give no pair; ask for at least 2")
    if settings.kind not in ORBITS:
        raise ConfigError(f"unknown kind of scene {settings.kind!r}; known: {', '.join(ORBITS)}")
    scene = make_scene(settings.kind, seed)
    truth = make_cameras(scene, num_frames, seed, distortion=settings.distortion)
    truth = draw_depth_affine(scene, truth, settings.depth_error, seed, settings.disparity)
    graph = covisibility_graph(scene, truth, settings.min_covisibility, settings.max_degree)
    samples, inlier = draw_samples(
        scene, truth, graph, settings.samples_per_edge, settings.depth_error, settings.match_error, seed
    )
    return Problem(scene, truth, graph, samples, inlier)


# ----------------------------------------------------------------------------------------------------------------
# Depth


def draw_depth_affine(scene: Scene, cameras: Cameras, error: DepthError, seed: int, disparity: bool = False) -> Cameras:
    """The cameras with the scale and shift that correct each frame's observed depth (or disparity)."""
    frame = torch.arange(cameras.num_frames)
    _, depth = visible_points(scene, cameras, frame, pixel_grid(cameras.intrinsics, frame, (40, 30)))
    nearest = depth.amin(-1)
    median = depth.where(depth.isfinite(), torch.nan).nanmedian(-1).values.nan_to_num(1.0)
    draws = torch.randn(2, cameras.num_frames, generator=seeded(seed, 5), dtype=torch.float64)
    shift = error.shift * draws[1]
    # Raw depth stays positive, even where a gross error makes it small.
    shift = shift / median if disparity else torch.minimum(shift * median, SAFE_SHIFT * nearest)
    return replace(
        cameras,
        depth_scale=(error.scale * draws[0]).exp(),
        depth_shift=shift,
        is_disparity=torch.full_like(cameras.is_disparity, disparity),
    )


def observe_depth(
    scene: Scene,
    cameras: Cameras,
    frame: Int[Tensor, " B"],
    pixels: Float[Tensor, "B K 2"],
    error: DepthError,
    seed: int,
) -> Float[Tensor, "B K"]:
    """What the depth maps say at the given pixels.

    The cameras' own scale and shift lead back to the depth that the rest of the error left: infinite in the sky,
    whose disparity is 0 before scale and shift.
    """
    inverse = _inverse_depth(scene, cameras, frame, pixels, error.edge_blur_px)
    inverse = inverse * (-_log_error(cameras, frame, pixels, error, seed)).exp()
    scale, shift = (column[frame, None].to(pixels) for column in (cameras.depth_scale, cameras.depth_shift))
    is_disparity = cameras.is_disparity[frame, None]
    # Division by 0 is meant: the sky.
    return torch.where(is_disparity, (inverse - shift) / scale, ((1 / inverse - shift) / scale).clamp_min(1e-3))


def observe_depth_map(scene: Scene, cameras: Cameras, frame: int, error: DepthError, seed: int) -> Float[Tensor, "H W"]:
    """What the depth map of a frame says at all its pixels, float32."""
    pixels = pixel_centers(cameras.intrinsics, frame)
    depth = observe_depth(scene, cameras, torch.tensor([frame]), pixels.reshape(1, -1, 2), error, seed)
    return depth.reshape(pixels.shape[:2]).float()


def _inverse_depth(
    scene: Scene, cameras: Cameras, frame: Int[Tensor, " B"], pixels: Float[Tensor, "B K 2"], blur_px: float
) -> Float[Tensor, "B K"]:
    """Disparity, averaged over a small cross of rays: on a plane the average is exact, at an edge it is soft."""
    centers = camera_centers(cameras.cam_from_world[frame]).to(pixels)[:, None]
    cross = blur_px * torch.tensor([[0.0, 0.0], [0.8, 0.6], [-0.6, 0.8], [-0.8, -0.6], [0.6, -0.8]]).to(pixels)
    offsets = cross if blur_px else cross[:1]
    taps = [1 / first_hit(scene, centers, ray_directions(cameras, frame, pixels + offset))[0] for offset in offsets]
    return torch.stack(taps).mean(0)


def _log_error(
    cameras: Cameras, frame: Int[Tensor, " B"], pixels: Float[Tensor, "B K 2"], error: DepthError, seed: int
) -> Float[Tensor, "B K"]:
    """Logarithm of observed by true depth, without scale and shift."""
    place = pixels / cameras.intrinsics.sizes[frame, None].to(pixels)
    total = torch.zeros_like(pixels[..., 0])
    if error.smooth:
        total = error.smooth * _smooth_field(cameras, frame, place, seed)
    if error.outliers:
        total = total + _disc_field(cameras, frame, place, error.outliers, seed)
    if error.noise:
        steps = (pixels.double() * 64).round().long().unbind(-1)
        one, two = (hash_unit(seed, frame[:, None], *steps, torch.tensor(part)) for part in (1, 2))
        normal = (-2 * (1 - one).log()).sqrt() * (2 * math.pi * two).cos()  # G. Box, M. Muller, 1958
        total = total + error.noise * normal.to(pixels)
    return total


def _smooth_field(
    cameras: Cameras, frame: Int[Tensor, " B"], place: Float[Tensor, "B K 2"], seed: int
) -> Float[Tensor, "B K"]:
    """Sum of a few cosines; they are orthogonal, so mean 0 and variance 1 over each image hold in closed form."""
    down, across = (torch.arange(count) for count in FIELD_TERMS)
    weight = torch.randn(cameras.num_frames, *FIELD_TERMS, generator=seeded(seed, 6), dtype=torch.float64)
    weight = weight / (1 + down[:, None] + across)
    weight[:, 0, 0] = 0
    power = 0.5 ** ((down > 0).double()[:, None] + (across > 0))
    weight = (weight / (weight.square() * power).sum((1, 2), keepdim=True).sqrt()).to(place)
    cosine_x, cosine_y = (math.pi * place[..., :1] * across).cos(), (math.pi * place[..., 1:] * down).cos()
    return ((cosine_y @ weight[frame]) * cosine_x).sum(-1)


def _disc_field(
    cameras: Cameras, frame: Int[Tensor, " B"], place: Float[Tensor, "B K 2"], share: float, seed: int
) -> Float[Tensor, "B K"]:
    """Logarithm of the gross error: discs that wrap around the image, so that each pixel is hit alike."""
    generator = seeded(seed, 7)
    centers = uniform(generator, 0.0, 1.0, NUM_DISCS, cameras.num_frames, 1, 2).to(place)
    factor = uniform(generator, *GROSS_FACTOR, NUM_DISCS, cameras.num_frames, 1).to(place)
    sign = (uniform(generator, 0.0, 1.0, NUM_DISCS, cameras.num_frames, 1) < 0.5).to(place) * 2 - 1
    sizes = cameras.intrinsics.sizes[frame, None].to(place)
    # Discs may overlap: 1 - (1 - area)^n of the image is covered.
    squared_radius = (1 - (1 - share) ** (1 / NUM_DISCS)) * sizes.prod(-1) / math.pi
    total = torch.zeros_like(place[..., 0])
    for disc in range(NUM_DISCS):
        away = place - centers[disc, frame]
        is_inside = ((away - away.round()) * sizes).square().sum(-1) < squared_radius
        total = torch.where(is_inside, (sign * factor.log())[disc, frame], total)
    return total


# ----------------------------------------------------------------------------------------------------------------
# Graph and samples


def covisibility_graph(
    scene: Scene, cameras: Cameras, min_covisibility: float = 0.15, max_degree: int | None = None
) -> PoseGraph:
    """Pairs of frames that both see enough of each other; of these at most max_degree of a frame, the strongest.

    A strongest spanning tree goes first, so that the bound does not cut the graph apart if it can be helped.
    """
    share = covisibility(scene, cameras)
    strength = torch.minimum(share, share.T).fill_diagonal_(0)
    strength = strength.masked_fill(strength < min_covisibility, 0)
    if max_degree is not None:
        tree = torch.from_numpy(minimum_spanning_tree(csr_array(-strength.numpy())).toarray() < 0)
        strength = strength.masked_fill(~_strongest(strength + (tree | tree.T).double(), max_degree), 0)
    edges = strength.nonzero()
    return PoseGraph(edges, share[edges[:, 0], edges[:, 1]])


def covisibility(scene: Scene, cameras: Cameras) -> Float[Tensor, "N N"]:
    """Share of the pixels of frame i (row) whose points frame j (column) sees too, on a grid."""
    frame = torch.arange(cameras.num_frames)
    pixels = pixel_grid(cameras.intrinsics, frame, COVISIBILITY_GRID).float()
    points, _ = visible_points(scene, cameras, frame, pixels)
    rows = [_look_from(scene, cameras, frame, points[i].expand_as(points))[1].double().mean(-1) for i in frame]
    return torch.stack(rows)


def _strongest(strength: Float[Tensor, "N N"], max_degree: int) -> Bool[Tensor, "N N"]:
    """Greedy choice of pairs in order of strength, in rounds: a pair is taken if both want it most.

    The strongest pair left is always wanted by both, so that each round takes at least one.
    """
    chosen = torch.zeros_like(strength, dtype=torch.bool)
    while True:
        spare = max_degree - chosen.sum(-1)
        is_open = (strength > 0) & ~chosen & (spare > 0) & (spare > 0)[:, None]
        if not is_open.any():
            return chosen
        # The index breaks ties alike on both sides.
        rank = torch.arange(strength.numel()).reshape(strength.shape)
        wish = torch.where(is_open, strength - 1e-12 * torch.minimum(rank, rank.T), -torch.inf)
        place = wish.argsort(-1, descending=True).argsort(-1)
        wanted = is_open & (place < spare[:, None])
        chosen = chosen | (wanted & wanted.T)


def _look_from(
    scene: Scene, cameras: Cameras, frame: Int[Tensor, " B"], points_world: Float[Tensor, "B C 3"]
) -> tuple[Float[Tensor, "B C 2"], Bool[Tensor, "B C"]]:
    """Pixels of points in the given frames, and whether they are in the image and not hidden."""
    points_cam = transform(cameras.cam_from_world[frame].to(points_world), points_world)
    pixels = project(points_cam, cameras.intrinsics, frame[:, None])
    is_seen = ((pixels > 0) & (pixels < cameras.intrinsics.sizes[frame, None])).all(-1)
    if cameras.intrinsics.distortion.any():
        # Far outside the image the lens polynomial turns back and would show points that are not there.
        rays = points_cam[..., :2] / points_cam[..., 2:]
        is_seen &= (pixel_rays(pixels, cameras.intrinsics, frame[:, None]) - rays).abs().amax(-1) < 1e-3
    batch = is_seen.nonzero()[:, 0]
    centers = camera_centers(cameras.cam_from_world[frame]).to(points_world)[batch]
    if len(batch):
        reach, _ = first_hit(scene, centers, points_world[is_seen] - centers)
        is_seen[is_seen.clone()] = reach > 1 - OCCLUSION_TOLERANCE
    return pixels, is_seen


def draw_samples(
    scene: Scene,
    cameras: Cameras,
    graph: PoseGraph,
    samples_per_edge: int,
    depth_error: DepthError,
    match_error: MatchError,
    seed: int,
) -> tuple[Samples, Bool[Tensor, "E K"]]:
    """Random pixels of frame i that frame j sees, with their matches and depths; and which matches are right."""
    generator = seeded(seed, 8)
    data = torch.empty(len(graph.edges), samples_per_edge, 5)
    weight = torch.empty(len(graph.edges), samples_per_edge)
    inlier = torch.empty(len(graph.edges), samples_per_edge, dtype=torch.bool)
    for rows, num_candidates in _edge_chunks(graph.covisibility, samples_per_edge):
        i, j = graph.edges[rows].unbind(-1)
        pixels = torch.rand(len(rows), num_candidates, 2, generator=generator) * cameras.intrinsics.sizes[i, None]
        points, _ = visible_points(scene, cameras, i, pixels.double())
        matches, is_seen = _look_from(scene, cameras, j, points)
        if not is_seen.any(-1).all():
            edge = int((~is_seen.any(-1)).nonzero()[0])
            raise InputError(f"frames {int(i[edge])} and {int(j[edge])} see nothing in common; remove this edge")
        choice, weight[rows] = _choose(is_seen, samples_per_edge)
        pixels, matches = (x.gather(1, choice[..., None].expand(-1, -1, 2)) for x in (pixels.double(), matches))
        depth = observe_depth(scene, cameras, i, pixels, depth_error, seed)
        matches, inlier[rows] = _disturb(matches, cameras.intrinsics.sizes[j, None], match_error, generator)
        data[rows] = torch.cat([pixels, matches, depth[..., None]], -1).float()
    return Samples(graph.edges, data, weight), inlier


def _edge_chunks(share: Float[Tensor, " E"], samples_per_edge: int) -> Iterator[tuple[Int[Tensor, " B"], int]]:
    """Edges of like co-visibility, and how many pixels to try on them so that enough are visible."""
    order = share.argsort()
    while len(order):
        expected = samples_per_edge / max(float(share[order[0]]), 0.02)
        num_candidates = int(1.2 * expected) + 32
        count = max(CANDIDATES_PER_CHUNK // num_candidates, 1)
        yield order[:count], num_candidates
        order = order[count:]


def _choose(is_seen: Bool[Tensor, "B C"], count: int) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K"]]:
    """The first visible candidates; if they are too few, all of them in turn, each with a total weight of 1."""
    num_seen = is_seen.sum(-1, keepdim=True).clamp_max(count)
    turn = torch.arange(count) % num_seen
    copies = count // num_seen + (turn < count % num_seen)
    first = is_seen.byte().argsort(dim=-1, descending=True, stable=True)
    return first.gather(1, turn), 1.0 / copies


def _disturb(
    matches: Float[Tensor, "B K 2"], sizes: Int[Tensor, "B 1 2"], error: MatchError, generator: torch.Generator
) -> tuple[Float[Tensor, "B K 2"], Bool[Tensor, "B K"]]:
    """Matches with errors, and which of them are right up to noise."""
    batch, count, _ = matches.shape
    noise, offset = (torch.randn(batch, k, 2, generator=generator, dtype=torch.float64) for k in (count, 1))
    chance, random_x, random_y = torch.rand(3, batch, count, generator=generator, dtype=torch.float64)
    # Long enough to be wrong, short enough that most matches stay in the image.
    offset = 0.1 * sizes[..., :1] * torch.nn.functional.normalize(offset, dim=-1)
    stays = ((matches + offset > 0) & (matches + offset < sizes)).all(-1)
    share_repeated = error.repeated / stays.double().mean(-1, keepdim=True).clamp_min(1e-9)
    is_outlier = chance < error.outliers
    is_repeated = ~is_outlier & stays & (chance > 1 - share_repeated)
    matches = matches + error.noise_px * noise + offset * is_repeated[..., None]
    matches = torch.where(is_outlier[..., None], torch.stack([random_x, random_y], -1) * sizes, matches)
    return matches, ~(is_outlier | is_repeated)
