"""Cameras in a made-up scene: their path, their photographs, and perturbed copies to start from."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from mbasfm.errors import DegenerateError
from mbasfm.geometry.camera import pixel_rays
from mbasfm.geometry.rigid import camera_centers, exp_so3
from mbasfm.synthetic.solids import MISS, RAYS_PER_CHUNK, Scene, cast, clearance, first_hit, seeded, uniform
from mbasfm.synthetic.textures import TEXTURE_SIZE, shade
from mbasfm.types.cameras import Cameras, Intrinsics

COVISIBILITY_GRID = (20, 15)
"""Rays of a frame, across and down, that stand for its pixels."""
SUBPIXELS = ((-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25), (0.25, 0.25))


@dataclass(frozen=True)
class Orbit:
    """Path of cameras around the middle of a scene; pairs are smallest and largest values [m]."""

    radius: tuple[float, float]
    height: tuple[float, float]
    aim_height: tuple[float, float]
    aim_spread: float
    """Spread of the points that cameras look at, around the middle."""
    aim_across: float
    """How far beyond the middle a camera looks, as a share of its distance to it."""
    margin: float
    """Free space around a camera; twice as much in front."""


ORBITS = {
    "room": Orbit((1.0, 2.8), (0.9, 2.3), (0.6, 1.7), aim_spread=1.2, aim_across=0.6, margin=0.35),
    "place": Orbit((22.0, 34.0), (1.7, 14.0), (1.5, 4.0), aim_spread=5.0, aim_across=0.0, margin=1.5),
    "object": Orbit((2.0, 3.2), (0.5, 2.2), (0.1, 0.4), aim_spread=0.3, aim_across=0.0, margin=0.3),
}
STEP_DEG = 11.0
"""Angle between successive cameras: neighbours overlap, and some thirty of them see everything."""
NUM_TRIES = 64


def make_cameras(
    scene: Scene,
    num_frames: int,
    seed: int,
    size: tuple[int, int] = (640, 480),
    focal_ratio: float = 0.9,
    distortion: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
) -> Cameras:
    """Cameras of one group on a winding path around the middle, with exact depth; focal = focal_ratio * width."""
    sizes = torch.tensor([size]).expand(num_frames, 2).clone()
    focal = focal_ratio * sizes[:, 0].double()
    intrinsics = Intrinsics.pinhole(focal, sizes, torch.zeros(num_frames, dtype=torch.int64))
    intrinsics = replace(intrinsics, distortion=torch.tensor([distortion], dtype=torch.float64).repeat(num_frames, 1))
    return Cameras(
        cam_from_world=_wander(scene, num_frames, seeded(seed, 3)),
        intrinsics=intrinsics,
        depth_scale=torch.ones(num_frames, dtype=torch.float64),
        depth_shift=torch.zeros(num_frames, dtype=torch.float64),
        is_disparity=torch.zeros(num_frames, dtype=torch.bool),
    )


def _wander(scene: Scene, num_frames: int, generator: torch.Generator) -> Float[Tensor, "N 3 4"]:
    """Poses cam_from_world along the path; where it is blocked, the nearest of a few random detours."""
    orbit = ORBITS[scene.kind]
    angle = math.radians(STEP_DEG) * torch.arange(num_frames) + 2 * math.pi * uniform(generator, 0.0, 1.0, 1)
    angle = angle + 0.1 * (_swing(num_frames, generator) - 0.5)
    around = torch.stack([angle.cos(), angle.sin()], -1)
    low, high = torch.tensor([orbit.radius, orbit.height, orbit.aim_height], dtype=torch.float64).T[..., None]
    radius, height, aim_height = low + (high - low) * torch.stack([_swing(num_frames, generator) for _ in range(3)])
    centers = torch.cat([around * radius[:, None], height[:, None]], -1)
    aim_xy = orbit.aim_spread * torch.stack([2 * _swing(num_frames, generator) - 1 for _ in range(2)], -1)
    aim = torch.cat([aim_xy - orbit.aim_across * centers[:, :2], aim_height[:, None]], -1)
    detour = torch.randn(num_frames, NUM_TRIES, 3, generator=generator, dtype=torch.float64)
    detour *= (orbit.radius[1] * torch.linspace(0, 0.6, NUM_TRIES))[:, None]
    tries = centers[:, None] + detour
    cam_from_world = _look_at(tries, aim[:, None].expand_as(tries), 0.15 * (_swing(num_frames, generator) - 0.5))
    is_free = (clearance(scene, tries) > orbit.margin) & (tries[..., 2] < 1.2 * orbit.height[1])
    is_free &= _nearest_in_view(scene, cam_from_world) > 2 * orbit.margin
    if not is_free.any(-1).all():
        raise DegenerateError(f"no room for camera {int((~is_free.any(-1)).nonzero()[0])}; make fewer objects")
    return cam_from_world[torch.arange(num_frames), is_free.int().argmax(-1)]


def _swing(num_frames: int, generator: torch.Generator) -> Float[Tensor, " N"]:
    """A smooth random walk in [0, 1], the same speed for few frames and for many."""
    frequency, phase = uniform(generator, 0.015, 0.06, 3, 1), uniform(generator, 0.0, 1.0, 3, 1)
    return 0.5 + (2 * math.pi * (frequency * torch.arange(num_frames) + phase)).sin().mean(0) / 2


def _look_at(
    centers: Float[Tensor, "N C 3"], aim: Float[Tensor, "N C 3"], roll: Float[Tensor, " N"]
) -> Float[Tensor, "N C 3 4"]:
    """cam_from_world of cameras that look at a point, upright up to the roll about the optical axis."""
    forward = torch.nn.functional.normalize(aim - centers, dim=-1)
    right = torch.linalg.cross(forward, torch.tensor([0.0, 0.0, 1.0]).to(forward).expand_as(forward))
    right = torch.nn.functional.normalize(right, dim=-1)
    upright = torch.stack([right, torch.linalg.cross(forward, right), forward], -2)
    rotation = exp_so3(roll[:, None] * torch.tensor([0.0, 0.0, 1.0]).to(roll))[:, None] @ upright
    return torch.cat([rotation, -(rotation @ centers[..., None])], -1)


def _nearest_in_view(scene: Scene, cam_from_world: Float[Tensor, "N C 3 4"]) -> Float[Tensor, "N C"]:
    """Smallest depth of a few rays that span the view."""
    grid = torch.tensor([[x, y, 1.0] for x in (-0.45, 0.0, 0.45) for y in (-0.35, 0.0, 0.35)]).to(cam_from_world)
    centers = camera_centers(cam_from_world)
    return first_hit(scene, centers[..., None, :], grid @ cam_from_world[..., :3])[0].amin(-1)


def perturb(cameras: Cameras, seed: int, rotation_deg: float, translation: float, focal_factor: float = 1.0) -> Cameras:
    """Cameras to start from: all but frame 0 turned by an angle and moved by a length, in random directions.

    The correction of the depth is forgotten (scale 1, shift 0).
    """
    generator = seeded(seed, 4)
    draws = torch.randn(2, cameras.num_frames, 3, generator=generator, dtype=torch.float64)
    axis, step = torch.nn.functional.normalize(draws, dim=-1)
    amount = (torch.arange(cameras.num_frames) > 0).double()[:, None]
    rotation = exp_so3(math.radians(rotation_deg) * amount * axis) @ cameras.cam_from_world[..., :3]
    centers = camera_centers(cameras.cam_from_world) + translation * amount * step
    moved = torch.cat([rotation, -(rotation @ centers[..., None])], -1)
    return replace(
        cameras,
        cam_from_world=torch.cat([cameras.cam_from_world[:1], moved[1:]]),
        intrinsics=replace(cameras.intrinsics, focal=cameras.intrinsics.focal * focal_factor),
        depth_scale=torch.ones_like(cameras.depth_scale),
        depth_shift=torch.zeros_like(cameras.depth_shift),
    )


def scene_size(scene: Scene, cameras: Cameras) -> float:
    """Twice the median distance of visible points and camera centres from their middle: far ground counts little."""
    frame = torch.arange(cameras.num_frames)
    pixels = pixel_grid(cameras.intrinsics, frame, COVISIBILITY_GRID)
    points, depth = visible_points(scene, cameras, frame, pixels)
    centers = camera_centers(cameras.cam_from_world)
    pool = torch.cat([points[depth.isfinite()], centers])
    return 2 * float((pool - pool.median(0).values).norm(dim=-1).median())


# ----------------------------------------------------------------------------------------------------------------
# Images


def render(scene: Scene, cameras: Cameras, frame: int) -> tuple[UInt8[Tensor, "H W 3"], Float[Tensor, "H W"]]:
    """A photograph, and the exact depth at the pixels' centres, infinite in the sky."""
    pixels = pixel_centers(cameras.intrinsics, frame)
    origin = camera_centers(cameras.cam_from_world[frame])
    depth, _ = first_hit(scene, origin, ray_directions(cameras, torch.tensor([frame]), pixels.flatten(0, 1)[None])[0])
    color, part, slope = _see(scene, cameras, frame, pixels.flatten(0, 1), 1.0)
    is_rough = _is_rough(part.reshape(pixels.shape[:2]), slope.reshape(pixels.shape[:2])).flatten()
    offsets = torch.tensor(SUBPIXELS, dtype=torch.float64)
    fine, _, _ = _see(scene, cameras, frame, (pixels.flatten(0, 1)[is_rough, None] + offsets).flatten(0, 1), 0.5)
    color[is_rough] = fine.reshape(-1, len(SUBPIXELS), 3).mean(1)
    image = color.round().clamp(0, 255).byte()
    return image.reshape(*pixels.shape[:2], 3), depth.reshape(pixels.shape[:2]).float()


def _see(
    scene: Scene, cameras: Cameras, frame: int, pixels: Float[Tensor, "M 2"], width_px: float
) -> tuple[Float[Tensor, "M 3"], Int[Tensor, " M"], Float[Tensor, " M"]]:
    """Colours seen at pixels of the given width, which face is there, and the cosine under which it is seen."""
    origin = camera_centers(cameras.cam_from_world[frame]).float()
    footprint = width_px / float(cameras.intrinsics.focal[frame].mean()) * TEXTURE_SIZE / scene.tile_size
    parts = []
    for chunk in pixels.float().split(RAYS_PER_CHUNK):
        directions = ray_directions(cameras, torch.tensor([frame]), chunk[None])[0]
        hits = cast(scene, origin, directions)
        slope = (hits.normal * torch.nn.functional.normalize(directions, dim=-1)).sum(-1).abs()
        slope = slope.masked_fill(hits.primitive == MISS, 1)
        # A slanted pixel is long: something between its length and its width.
        texels = footprint * hits.ray_parameter / slope.clamp_min(0.02) ** 0.7
        # Half an octave apart: no seam where the level of the texture changes.
        color = sum(shade(scene, hits, directions, texels * 2**octave) for octave in (-0.5, 0.0)) / 2
        parts.append((color, 6 * hits.primitive + hits.face, slope))
    color, part, slope = (torch.cat(column) for column in zip(*parts, strict=True))
    return color, part, slope


def _is_rough(part: Int[Tensor, "H W"], slope: Float[Tensor, "H W"]) -> Bool[Tensor, "H W"]:
    """Pixels at an edge or seen at a slant, for which one ray is not enough."""
    is_rough = slope < 0.2
    across, down = part[:, 1:] != part[:, :-1], part[1:] != part[:-1]
    is_rough[:, 1:] |= across
    is_rough[:, :-1] |= across
    is_rough[1:] |= down
    is_rough[:-1] |= down
    return is_rough


def pixel_centers(intrinsics: Intrinsics, frame: int) -> Float[Tensor, "H W 2"]:
    """Centres of all pixels of a frame."""
    width, height = intrinsics.sizes[frame].tolist()
    return pixel_grid(intrinsics, torch.tensor([frame]), (width, height)).reshape(height, width, 2)


def pixel_grid(intrinsics: Intrinsics, frame: Int[Tensor, " B"], shape: tuple[int, int]) -> Float[Tensor, "B C 2"]:
    """Centres of equal cells of the frames, as many across and down as shape says."""
    x, y = ((torch.arange(count, dtype=torch.float64) + 0.5) / count for count in shape)
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    return grid * intrinsics.sizes[frame, None]


def ray_directions(
    cameras: Cameras, frame: Int[Tensor, " B"], pixels: Float[Tensor, "B K 2"]
) -> Float[Tensor, "B K 3"]:
    """World directions of pixels, scaled so that the ray parameter is the depth."""
    rays = pixel_rays(pixels, cameras.intrinsics, frame[:, None])
    rays = torch.cat([rays, torch.ones_like(rays[..., :1])], -1)
    return rays @ cameras.cam_from_world[frame, :, :3].to(pixels)


def visible_points(
    scene: Scene, cameras: Cameras, frame: Int[Tensor, " B"], pixels: Float[Tensor, "B K 2"]
) -> tuple[Float[Tensor, "B K 3"], Float[Tensor, "B K"]]:
    """What pixels see, and its depth; not finite for the sky."""
    centers = camera_centers(cameras.cam_from_world[frame]).to(pixels)[:, None]
    directions = ray_directions(cameras, frame, pixels)
    depth, _ = first_hit(scene, centers, directions)
    return centers + directions * depth[..., None], depth
