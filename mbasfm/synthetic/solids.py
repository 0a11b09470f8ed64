"""Made-up scenes: solids whose rays are intersected in closed form.

A scene is boxes, spheres and perhaps a ground plane; the inside of one large box is a room. World axes: z is up,
lengths are metres. Everything depends on an integer seed and on nothing else.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.geometry.rigid import exp_so3, invert, transform

RAYS_PER_CHUNK = 1 << 16
"""Number of rays intersected at once: few enough to stay in the processor's cache."""
MISS = -1


@dataclass(frozen=True)
class Scene:
    """Solids, numbered: first the P boxes, then the S spheres, then the ground."""

    kind: str
    """Kind of scene, room, place or object: decides how cameras move."""
    world_from_box: Float[Tensor, "P 3 4"]
    half_size: Float[Tensor, "P 3"]
    """Half of the boxes' edge lengths."""
    is_hollow: tuple[bool, ...]
    """Whether each box is a room, seen from inside."""
    sphere_center: Float[Tensor, "S 3"]
    sphere_radius: Float[Tensor, " S"]
    has_ground: bool
    """Whether the plane z = 0 is part of the scene."""
    tile_size: float
    """Size of the area that one texture covers [m]."""
    seed: int

    @property
    def num_boxes(self) -> int:
        """Number of boxes, P."""
        return len(self.half_size)

    @property
    def num_spheres(self) -> int:
        """Number of spheres, S."""
        return len(self.sphere_radius)


@dataclass(frozen=True)
class Hits:
    """First intersections of rays with the scene."""

    ray_parameter: Float[Tensor, "*B"]
    """The point is origin + ray_parameter * direction; infinite for a ray that meets nothing."""
    primitive: Int[Tensor, "*B"]
    """Number of the solid; MISS for a ray that meets nothing."""
    face: Int[Tensor, "*B"]
    """Face of a box or sphere: 2 axis + (on the positive side)."""
    surface: Float[Tensor, "*B 2"]
    """Position on the face [m]."""
    normal: Float[Tensor, "*B 3"]
    """Unit vector in the world, out of the solid."""


def seeded(seed: int, stream: int) -> torch.Generator:
    """Separate generator for each purpose, so that drawing more of one thing does not change another."""
    return torch.Generator().manual_seed(seed * 1_000_003 + stream)


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Float[Tensor, "..."]:
    """Uniform numbers between low and high, float64."""
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def hash_unit(seed: int, *keys: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Pseudo-random number in [0, 1) that depends only on the given integers."""
    state = torch.full((), seed * 7_919 + 12_345, dtype=torch.int64)
    for key in keys:
        # Multiply and shift, as in the finalizer of MurmurHash3; int64 wraps around.
        state = (state ^ key) * -49_064_778_989_728_563
        state = (state ^ ((state >> 33) & 0x7FFFFFFF)) * -4_265_267_296_055_464_877
        state = state ^ ((state >> 33) & 0x7FFFFFFF)
    return (state & 0xFFFFFFFFFFFF).double() / float(1 << 48)


# ----------------------------------------------------------------------------------------------------------------
# Scenes


def make_scene(kind: str, seed: int) -> Scene:
    """A scene of the given kind with its usual number of objects."""
    return {"room": make_room, "place": make_place, "object": make_object}[kind](seed)


def make_room(seed: int, num_objects: int = 8) -> Scene:
    """A furnished room of 8 x 8 x 3.5 m: tall things along the walls, low ones in the middle."""
    generator = seeded(seed, 1)
    num_spheres = num_objects // 4
    num_boxes = num_objects - num_spheres
    is_central = torch.arange(num_boxes) % 3 == 2
    angle = 2 * torch.pi * (torch.arange(num_boxes) + uniform(generator, 0.0, 0.8, num_boxes)) / max(num_boxes, 1)
    radius = torch.where(is_central, uniform(generator, 0.2, 0.9, num_boxes), uniform(generator, 2.7, 3.5, num_boxes))
    half = uniform(generator, 0.25, 0.65, num_boxes, 3)
    half[:, 2] = torch.where(is_central, half[:, 2].clamp(max=0.4), 1.5 * half[:, 2])
    centers = torch.stack([radius * angle.cos(), radius * angle.sin(), half[:, 2]], -1)
    boxes = _place_boxes(centers, uniform(generator, -0.5, 0.5, num_boxes) + angle)
    room = torch.eye(3, 4, dtype=torch.float64)[None]
    room[..., 2, 3] = 1.75
    ball = uniform(generator, 0.2, 0.4, num_spheres)
    # Every other sphere is a lamp under the ceiling.
    height = torch.where(torch.arange(num_spheres) % 2 == 0, ball, 3.0 - ball)
    ball_xy = uniform(generator, -2.5, 2.5, num_spheres, 2)
    return Scene(
        kind="room",
        world_from_box=torch.cat([room, boxes]),
        half_size=torch.cat([torch.tensor([[4.0, 4.0, 1.75]], dtype=torch.float64), half]),
        is_hollow=(True,) + (False,) * num_boxes,
        sphere_center=torch.cat([ball_xy, height[:, None]], -1),
        sphere_radius=ball,
        has_ground=False,
        tile_size=2.5,
        seed=seed,
    )


def make_place(seed: int, num_objects: int = 12) -> Scene:
    """Buildings and round trees within about 16 m around the middle of a plain, under the sky."""
    return _make_outdoor("place", seed, num_objects, extent=14.0, tile_size=7.0)


def make_object(seed: int, num_objects: int = 9) -> Scene:
    """A heap of boxes and balls within about 1 m, on a plain, to walk around."""
    return _make_outdoor("object", seed, num_objects, extent=1.0, tile_size=1.2)


def _make_outdoor(kind: str, seed: int, num_objects: int, extent: float, tile_size: float) -> Scene:
    """Solids on the ground, spread like the seeds of a sunflower so that none hides all others."""
    generator = seeded(seed, 1)
    count = torch.arange(num_objects, dtype=torch.float64)
    angle = 2.39996 * count + uniform(generator, 0.0, 0.5, num_objects)
    radius = extent * ((count + 0.5) / max(num_objects, 1)).sqrt()
    xy = radius[:, None] * torch.stack([angle.cos(), angle.sin()], -1)
    is_sphere = torch.arange(num_objects) % 4 == 1
    num_boxes, num_spheres = int((~is_sphere).sum()), int(is_sphere.sum())
    half = extent * uniform(generator, 0.1, 0.24, num_boxes, 3)
    half[:, 2] *= uniform(generator, 0.6, 1.7, num_boxes)
    ball = extent * uniform(generator, 0.1, 0.2, num_spheres)
    return Scene(
        kind=kind,
        world_from_box=_place_boxes(
            torch.cat([xy[~is_sphere], half[:, 2:]], -1), uniform(generator, 0.0, 3.0, num_boxes)
        ),
        half_size=half,
        is_hollow=(False,) * num_boxes,
        sphere_center=torch.cat([xy[is_sphere], ball[:, None]], -1),
        sphere_radius=ball,
        has_ground=True,
        tile_size=tile_size,
        seed=seed,
    )


def _place_boxes(centers: Float[Tensor, "P 3"], yaw: Float[Tensor, " P"]) -> Float[Tensor, "P 3 4"]:
    """world_from_box of boxes turned about the vertical."""
    omega = torch.zeros_like(centers)
    omega[:, 2] = yaw
    return torch.cat([exp_so3(omega), centers[..., None]], -1)


def clearance(scene: Scene, points_world: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B"]:
    """Distance to the nearest surface; negative inside a solid or outside a room."""
    nearest = points_world[..., 2] if scene.has_ground else torch.full_like(points_world[..., 2], torch.inf)
    box_from_world = invert(scene.world_from_box).to(points_world)
    for box in range(scene.num_boxes):
        beyond = transform(box_from_world[box], points_world.reshape(-1, 3)).abs() - scene.half_size[box].to(
            points_world
        )
        outside = beyond.clamp_min(0).norm(dim=-1) + beyond.amax(-1).clamp_max(0)
        nearest = torch.minimum(nearest, (-outside if scene.is_hollow[box] else outside).reshape(nearest.shape))
    for center, radius in zip(scene.sphere_center, scene.sphere_radius, strict=True):
        nearest = torch.minimum(nearest, (points_world - center.to(points_world)).norm(dim=-1) - radius)
    return nearest


# ----------------------------------------------------------------------------------------------------------------
# Rays


def first_hit(
    scene: Scene, origins: Float[Tensor, "*#B 3"], directions: Float[Tensor, "*#B 3"]
) -> tuple[Float[Tensor, "*B"], Int[Tensor, "*B"]]:
    """Ray parameter and primitive of the first surface in front; (infinity, MISS) where there is none."""
    shape = torch.broadcast_shapes(origins.shape, directions.shape)[:-1]
    chunks = [d.T.contiguous() for d in directions.expand(*shape, 3).reshape(-1, 3).split(RAYS_PER_CHUNK)]
    if origins.numel() == 3:
        # Rays of one camera: its centre is moved to each box once, not once per ray.
        starts = [origins.reshape(3, 1)] * len(chunks)
    else:
        starts = [o.T.contiguous() for o in origins.expand(*shape, 3).reshape(-1, 3).split(RAYS_PER_CHUNK)]
    parts = [_first_hit_chunk(scene, *rays) for rays in zip(starts, chunks, strict=True)]
    parameters, primitives = zip(*parts, strict=True)
    return torch.cat(parameters).reshape(shape), torch.cat(primitives).reshape(shape)


def _first_hit_chunk(
    scene: Scene, origins: Float[Tensor, "3 #R"], directions: Float[Tensor, "3 R"]
) -> tuple[Float[Tensor, " R"], Int[Tensor, " R"]]:
    """First hits of some rays; one row per axis, so that each operation runs along memory."""
    best = torch.full_like(directions[0], torch.inf)
    primitive = torch.full_like(best, MISS, dtype=torch.int64)
    for number in range(scene.num_boxes + scene.num_spheres + scene.has_ground):
        if number < scene.num_boxes:
            parameter = _meet_box(scene, number, origins, directions)
        elif number < scene.num_boxes + scene.num_spheres:
            parameter = _meet_sphere(scene, number - scene.num_boxes, origins, directions)
        else:
            parameter = -origins[2] / directions[2]
        is_nearer = (parameter > 0) & (parameter < best)
        best = torch.where(is_nearer, parameter, best)
        primitive.masked_fill_(is_nearer, number)
    return best, primitive


def _meet_box(
    scene: Scene, box: int, origins: Float[Tensor, "3 #R"], directions: Float[Tensor, "3 R"]
) -> Float[Tensor, " R"]:
    """Where rays enter a solid box or leave a hollow one (the slab method); NaN or negative if they do not."""
    box_from_world = invert(scene.world_from_box[box]).to(origins)
    start = box_from_world[:, :3] @ origins + box_from_world[:, 3:]
    slope = box_from_world[:, :3] @ directions
    # A ray along a face would give 0 / 0.
    inverse = 1 / slope.where(slope.abs() > 1e-20, torch.full_like(slope, 1e-20))
    middle = -start * inverse
    reach = scene.half_size[box].to(origins)[:, None] * inverse.abs()
    enter, leave = (middle - reach).amax(0), (middle + reach).amin(0)
    if scene.is_hollow[box]:
        return leave
    return enter.masked_fill(enter > leave, -1)


def _meet_sphere(
    scene: Scene, sphere: int, origins: Float[Tensor, "3 #R"], directions: Float[Tensor, "3 R"]
) -> Float[Tensor, " R"]:
    """Where rays enter a sphere: the smaller root of a quadratic; NaN if there is none."""
    start = origins - scene.sphere_center[sphere].to(origins)[:, None]
    a = directions.square().sum(0)
    b = (directions * start).sum(0)
    # The discriminant through the rejected part of start: no difference of two large squares.
    squared = (start - directions * (b / a)).square().sum(0)
    return -b / a - ((scene.sphere_radius[sphere].to(origins).square() - squared) / a).sqrt()


def cast(scene: Scene, origins: Float[Tensor, "*#B 3"], directions: Float[Tensor, "*#B 3"]) -> Hits:
    """First hits of rays, with their place on the surface. Directions need no unit length."""
    origins, directions = torch.broadcast_tensors(origins, directions)
    parameter, primitive = first_hit(scene, origins, directions)
    points = origins + directions * parameter.masked_fill(primitive == MISS, 0)[..., None]
    parts = [
        _locate(scene, points_chunk, primitive_chunk)
        for points_chunk, primitive_chunk in zip(
            points.reshape(-1, 3).split(RAYS_PER_CHUNK), primitive.reshape(-1).split(RAYS_PER_CHUNK), strict=True
        )
    ]
    face, surface, normal = (torch.cat(column) for column in zip(*parts, strict=True))
    shape = primitive.shape
    return Hits(parameter, primitive, face.reshape(shape), surface.reshape(*shape, 2), normal.reshape(*shape, 3))


def _locate(
    scene: Scene, points: Float[Tensor, "R 3"], primitive: Int[Tensor, " R"]
) -> tuple[Int[Tensor, " R"], Float[Tensor, "R 2"], Float[Tensor, "R 3"]]:
    """Face, position on it and normal, of points on the surfaces of the given primitives."""
    solid_from_world, half_size, outward = (table.to(points)[primitive] for table in _solids(scene))
    local = transform(solid_from_world, points[:, None])[:, 0]
    axis = (local.abs() / half_size).argmax(-1, keepdim=True)
    on_axis = local.gather(-1, axis)
    # A sphere is painted like the cube around it; on a box the factor is 1.
    factor = half_size.gather(-1, axis) / on_axis.abs()
    surface = torch.cat([local.gather(-1, (axis + 1) % 3), local.gather(-1, (axis + 2) % 3)], -1) * factor
    is_sphere = (primitive >= scene.num_boxes) & (primitive < scene.num_boxes + scene.num_spheres)
    facing = torch.zeros_like(local).scatter(-1, axis, on_axis.sign() * outward[:, None])
    facing = torch.nn.functional.normalize(local, dim=-1).where(is_sphere[:, None], facing)
    normal = (facing[:, None] @ solid_from_world[..., :3])[:, 0]
    return (2 * axis + (on_axis > 0))[:, 0], surface, normal


def _solids(scene: Scene) -> tuple[Float[Tensor, "Q 3 4"], Float[Tensor, "Q 3"], Float[Tensor, " Q"]]:
    """solid_from_world, half sizes and the normal's sign of all primitives as if they were boxes.

    The last row is the ground, an endless slab below z = 0; it also stands in for MISS, which is index -1.
    """
    identity = torch.eye(3, dtype=torch.float64).expand(scene.num_spheres + 1, 3, 3)
    center = torch.cat([scene.sphere_center, torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64)])
    radius = scene.sphere_radius[:, None].expand(-1, 3)
    slab = torch.tensor([[1e30, 1e30, 1.0]], dtype=torch.float64)
    outward = torch.ones(scene.num_boxes + scene.num_spheres + 1)
    outward[: scene.num_boxes] -= 2 * torch.tensor(scene.is_hollow)
    return (
        torch.cat([invert(scene.world_from_box), torch.cat([identity, -center[..., None]], -1)]),
        torch.cat([scene.half_size, radius, slab]),
        outward,
    )
