"""Values of maps and pictures at given places."""

import numpy as np
from jaxtyping import Float32


def values_at(image: np.ndarray, relative: Float32[np.ndarray, "M 2"]) -> np.ndarray:
    """Values at positions given as shares of width and height: a map, or a picture, spans the whole image."""
    height, width = image.shape[:2]
    column = np.clip((relative[:, 0] * width).astype(np.int64), 0, width - 1)
    row = np.clip((relative[:, 1] * height).astype(np.int64), 0, height - 1)
    return image[row, column]
