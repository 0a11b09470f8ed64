"""Appearance of made-up scenes: textures, light and haze."""

from functools import lru_cache

import cv2
import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from mbasfm.synthetic.solids import MISS, Hits, Scene, hash_unit, seeded, uniform

TEXTURE_SIZE = 1024
"""Texels along one side of a tile; a power of two."""
NUM_TEXTURES = 6
SKY_COLOR = ((0.55, 0.70, 0.90), (0.86, 0.90, 0.94))
"""Colours of the sky at the zenith and at the horizon."""
HAZE_TILES = 25
"""Distance at which most of the light is haze, in tiles."""
TOWARDS_LIGHT = (0.40, 0.25, 0.88)


def shade(
    scene: Scene, hits: Hits, directions: Float[Tensor, "*B 3"], texels_per_pixel: Float[Tensor, "*B"]
) -> Float[Tensor, "*B 3"]:
    """Colours in 0 to 255: texture times tint times Lambert's cosine law, or the sky."""
    texture = _sample_texture(scene, hits, texels_per_pixel)
    num_primitives = scene.num_boxes + scene.num_spheres + 1
    tint = hash_unit(scene.seed, torch.arange(num_primitives)[:, None], torch.arange(3))[hits.primitive]
    light = torch.nn.functional.normalize(torch.tensor(TOWARDS_LIGHT), dim=0).to(directions)
    # Light also comes from all around, so that no face is black.
    brightness = 0.78 + 0.22 * (hits.normal @ light)
    painted = texture * (0.75 + 0.25 * tint).to(texture) * brightness[..., None]
    rise = torch.nn.functional.normalize(directions, dim=-1)[..., 2:].clamp(0, 1).sqrt()
    zenith, horizon = torch.tensor(SKY_COLOR).to(directions) * 255
    # Haze: the ground fades into the horizon before it gets too fine for the pixels.
    clear = (hits.ray_parameter / (-HAZE_TILES * scene.tile_size)).exp()[..., None]
    painted = clear * painted + (1 - clear) * horizon
    return painted.where(hits.primitive[..., None] != MISS, rise * zenith + (1 - rise) * horizon)


def _sample_texture(scene: Scene, hits: Hits, texels_per_pixel: Float[Tensor, "*B"]) -> Float[Tensor, "*B 3"]:
    """Bilinear texture colours, from the pyramid level whose texels are as large as the pixel."""
    atlas = texture_atlas(scene.seed)
    num_levels = TEXTURE_SIZE.bit_length()
    level = texels_per_pixel.clamp_min(1).log2().round().clamp_max(num_levels - 1).long()
    phase = hash_unit(scene.seed, 6 * hits.primitive + hits.face)[..., None].to(hits.surface)
    tiles = hits.surface / scene.tile_size + torch.cat([phase, (7 * phase).frac()], -1)
    # Each tile of a face draws its own texture: walls and ground do not repeat.
    texture = NUM_TEXTURES * hash_unit(scene.seed, hits.primitive, hits.face, *tiles.floor().long().unbind(-1))
    side = TEXTURE_SIZE >> level
    position = (tiles - tiles.floor()) * side[..., None] - 0.5
    corner = position.floor()
    weight = (position - corner).unbind(-1)
    start = _level_starts()[level] + texture.long() * side * side
    color = torch.zeros(*texels_per_pixel.shape, 3).to(hits.surface)
    for dy in (0, 1):
        for dx in (0, 1):
            column, row = (corner.long() + torch.tensor([dx, dy])).unbind(-1)
            index = start + (row & (side - 1)) * side + (column & (side - 1))
            share = (weight[0] if dx else 1 - weight[0]) * (weight[1] if dy else 1 - weight[1])
            color += share[..., None] * atlas[index].to(color)
    return color


def _level_starts() -> Int[Tensor, " L"]:
    """Start of each pyramid level in the atlas."""
    sizes = [NUM_TEXTURES * (TEXTURE_SIZE >> level) ** 2 for level in range(TEXTURE_SIZE.bit_length())]
    return torch.tensor([0, *sizes[:-1]]).cumsum(0)


@lru_cache(maxsize=2)
def texture_atlas(seed: int) -> UInt8[Tensor, "A 3"]:
    """All texels of all textures, level after level of their image pyramids."""
    generator = seeded(seed, 2)
    level = torch.stack([torch.from_numpy(_paint_texture(generator)) for _ in range(NUM_TEXTURES)]).float()
    levels = [level]
    while level.shape[1] > 1:
        level = level.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).mean((2, 4))
        levels.append(level)
    return torch.cat([level.reshape(-1, 3).add(0.5).byte() for level in levels])


def _paint_texture(generator: torch.Generator) -> np.ndarray:
    """Shapes of a few colours and of all sizes over cloudy ground: corners and blobs at every distance."""
    palette = 0.45 * uniform(generator, 0.0, 255.0, 7, 3).numpy() + 0.55 * uniform(generator, 30.0, 255.0, 7, 1).numpy()
    canvas = np.empty((TEXTURE_SIZE, TEXTURE_SIZE, 3), np.uint8)
    canvas[:] = 0.4 * palette[0] + 110
    numbers = uniform(generator, 0.0, 1.0, 400, 16)
    # Large shapes first, so that small ones stay visible.
    for row in numbers[numbers[:, 3].argsort(descending=True)].numpy():
        _draw_shape(canvas, row, palette[int(row[0] * 7)].tolist())
    return np.clip(canvas + _clouds(generator)[..., None], 0, 255).astype(np.uint8)


def _clouds(generator: torch.Generator) -> np.ndarray:
    """Noise of several octaves, as a texture."""
    total = np.zeros((TEXTURE_SIZE, TEXTURE_SIZE), np.float32)
    for cells, strength in ((4, 16.0), (16, 10.0), (64, 8.0), (256, 6.0)):
        grid = torch.randn(cells, cells, generator=generator).numpy()
        total += strength * cv2.resize(grid, (TEXTURE_SIZE, TEXTURE_SIZE), interpolation=cv2.INTER_CUBIC)
    return total


def _draw_shape(canvas: np.ndarray, random: np.ndarray, color: list[float]) -> None:
    """Paint one polygon, disc, stroke or letter; the numbers in random choose which, where and how large."""
    middle = random[1:3] * TEXTURE_SIZE
    size = TEXTURE_SIZE * 0.006 * 25 ** (random[3] ** 2)
    corner, thickness = middle.astype(int).tolist(), 1 + int(size / 10)
    kind = int(random[4] * 5)
    if kind == 0:
        cv2.circle(canvas, corner, int(size / 2), color, -1, cv2.LINE_AA)
    elif kind == 1:
        letter = chr(ord("A") + int(random[5] * 26))
        cv2.putText(canvas, letter, corner, cv2.FONT_HERSHEY_DUPLEX, size / 25, color, thickness, cv2.LINE_AA)
    elif kind == 2:
        end = (middle + 3 * size * (random[5:7] - 0.5)).astype(int).tolist()
        cv2.line(canvas, corner, end, color, thickness, cv2.LINE_AA)
    else:
        num_corners = kind  # triangles and quadrilaterals
        angles = 2 * np.pi * (np.arange(num_corners) + random[5] + 0.5 * random[6 : 6 + num_corners]) / num_corners
        spokes = size * np.stack([np.cos(angles), np.sin(angles)], -1) * (0.5 + random[10 : 10 + num_corners, None])
        cv2.fillPoly(canvas, [(middle + spokes).astype(np.int32)], color, cv2.LINE_AA)
