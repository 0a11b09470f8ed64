"""The focal length of one photograph from the points that a network sees through its pixels."""

import numpy as np
from jaxtyping import Float32

MIN_FOCAL, MAX_FOCAL = 0.3, 6.0
"""Range of focal lengths that are searched [image widths (long side)]."""
MAX_RAYS, NUM_PROPOSALS, RAY_TOLERANCE = 20_000, 200, 0.01
"""Of a point map: number of judging pixels, of proposing ones, and how far off a point may be seen [long sides]."""


def focal_from_points(points: Float32[np.ndarray, "h w 3"], width: int, height: int) -> float:
    """Focal length [px] under which most points of a map are seen where they are; NaN if there are too few to tell.

    The map spans the whole image; its pixels' rays (x/z, y/z) are the incidence field. Single pixels propose, all judge
    (RANSAC), and the least squares of those that agree is the answer. The principal point is taken as the middle.
    """
    rows, columns = points.shape[:2]
    across = ((np.arange(columns) + 0.5) / columns - 0.5) * width
    down = ((np.arange(rows) + 0.5) / rows - 0.5) * height
    offset = np.stack(np.meshgrid(across, down), -1).reshape(-1, 2)
    x, y, z = points.reshape(-1, 3).astype(np.float64).T
    known = np.flatnonzero(np.isfinite(x + y + z) & (z > 0))
    known = known[np.linspace(0, len(known) - 1, min(len(known), MAX_RAYS)).astype(np.int64)] if len(known) else known
    ray, offset = np.column_stack([x[known], y[known]]) / z[known, None], offset[known]
    along, squared = (offset * ray).sum(1), (ray * ray).sum(1)
    long_side = max(width, height)
    telling = np.flatnonzero((along > 0) & (np.linalg.norm(offset, axis=1) > 0.1 * long_side))
    if len(telling) == 0:
        return float("nan")
    chosen = telling[np.linspace(0, len(telling) - 1, min(len(telling), NUM_PROPOSALS)).astype(np.int64)]
    tolerance = RAY_TOLERANCE * long_side
    agreeing = [np.linalg.norm(focal * ray - offset, axis=1) < tolerance for focal in along[chosen] / squared[chosen]]
    best = max(agreeing, key=lambda mask: int(mask[telling].sum()))
    return float(along[best].sum() / squared[best].sum())
