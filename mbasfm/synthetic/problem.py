"""Problems with a known answer: cameras in a made-up scene, with simulated depth and matches.

The observed depth is a fixed function of frame and pixel, so that all edges of a frame meet the same error of its
depth map. Errors are values (``DepthError``, ``MatchError``); all zero gives exact data.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from mbasfm.errors import ConfigError, InputError
from mbasfm.geometry.camera import pixel_rays, project
from mbasfm.geometry.rigid import camera_centers, transform
from mbasfm.synthetic.cameras import COVISIBILITY_GRID, ORBITS, make_cameras, pixel_grid, visible_points
from mbasfm.synthetic.depth_errors import DepthError, draw_depth_affine, observe_depth
from mbasfm.synthetic.solids import Scene, first_hit, make_scene, seeded
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import PoseGraph, Samples

OCCLUSION_TOLERANCE = 0.01
"""A point is hidden if something stands before it by more than this share of its distance."""
CANDIDATES_PER_CHUNK = 1 << 19
"""Number of pixels tried at once; bounds the memory."""


@dataclass(frozen=True)
class MatchError:
    """How estimated matches differ from the truth; all zero is exact."""

    noise_px: float = 1.0
    """Standard deviation along each axis of image j."""
    outliers: float = 0.1
    """Share of matches that are anywhere in image j."""
    repeated: float = 0.0
    """Share of an edge's matches that are off by one common offset, as where a facade repeats its windows."""


@dataclass(frozen=True)
class Settings:
    """What kind of problem to make."""

    kind: str = "room"
    """Kind of scene: room, place or object."""
    samples_per_edge: int = 200
    depth_error: DepthError = field(default_factory=DepthError)
    match_error: MatchError = field(default_factory=MatchError)
    max_degree: int | None = None
    """Largest number of neighbours of a frame; None keeps all."""
    min_covisibility: float = 0.15
    disparity: bool = False
    """Whether depth maps hold disparity."""
    distortion: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """k1, k2, p1, p2."""


@dataclass(frozen=True)
class Problem:
    """Samples with errors, and the true cameras."""

    scene: Scene
    truth: Cameras
    graph: PoseGraph
    samples: Samples
    inlier: Bool[Tensor, "E K"]
    """Matches that are right up to noise, whatever their depth."""


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
    samples, inlier = draw_samples(scene, truth, graph, settings, seed)
    return Problem(scene, truth, graph, samples, inlier)


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
    scene: Scene, cameras: Cameras, graph: PoseGraph, settings: Settings, seed: int
) -> tuple[Samples, Bool[Tensor, "E K"]]:
    """Random pixels of frame i that frame j sees, with their matches and depths; and which matches are right."""
    generator, samples_per_edge = seeded(seed, 8), settings.samples_per_edge
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
        depth = observe_depth(scene, cameras, i, pixels, settings.depth_error, seed)
        matches, inlier[rows] = _disturb(matches, cameras.intrinsics.sizes[j, None], settings.match_error, generator)
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
