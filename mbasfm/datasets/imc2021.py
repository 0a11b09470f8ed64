"""IMC 2021 PhotoTourism test: SCENE/set_100/{images, calibration/calibration_NAME.h5, sub_set/5bag_000.txt}.

Calibration has K, R and T with x_cam = R x_world + T. Bags list images, one per line, as images/NAME.jpg or NAME.jpg.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float64

from mbasfm.datasets.base import IMAGE_ENDINGS, DatasetScene, Published
from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.colmap import StoredCamera, numbered_lines
from mbasfm.io.poses import nearest_rotation

PUBLISHED = Published(
    "IMC 2021 (imc-2021-test-gt-phototourism.tar.gz)", "https://www.cs.ubc.ca/~kmyi/imw2021/data.html"
)
HALF_PIXEL = 0.5
"""Shift of pixels: the first centre is at 0 there and at 0.5 here."""


@dataclass(frozen=True)
class IMC2021:
    """Internet photographs of 9 places in bags of 3 to 25; the truth is SfM of thousands."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the places."""
        return PUBLISHED.folders(self.folder, lambda path: (path / "set_100" / "calibration").is_dir())

    def load(self, scene: str) -> DatasetScene:
        """All images of a place, with its bags as splits."""
        folder = PUBLISHED.need(self.folder / scene / "set_100")
        images = PUBLISHED.need(folder / "images")
        names = tuple(sorted(path.name for path in images.iterdir() if path.suffix.lower() in IMAGE_ENDINGS))
        if not names:
            raise InputError(f"{images}: no images in this folder; {PUBLISHED.title} is published at {PUBLISHED.url}")
        files = [PUBLISHED.need(folder / "calibration" / f"calibration_{Path(name).stem}.h5") for name in names]
        poses, cameras = zip(*(_calibration(path) for path in files), strict=True)
        splits = {path.stem: _bag(path, names) for path in sorted((folder / "sub_set").glob("*bag_*.txt"))}
        return DatasetScene(scene, images, names, np.stack(poses), tuple(cameras), splits, grouping="per-image")


def _calibration(path: Path) -> tuple[Float64[np.ndarray, "3 4"], StoredCamera]:
    content = read_h5(path)
    matrices = {}
    for key, size in (("K", 9), ("R", 9), ("T", 3)):
        if key not in content or content[key].size != size or not np.isfinite(content[key]).all():
            raise InputError(f"{path}: needs {key} with {size} finite numbers")
        matrices[key] = content[key].astype(float).reshape(3, -1) if size == 9 else content[key].astype(float).ravel()
    intrinsics = matrices["K"]
    camera = StoredCamera(
        (float(intrinsics[0, 0]), float(intrinsics[1, 1])),
        (float(intrinsics[0, 2]) + HALF_PIXEL, float(intrinsics[1, 2]) + HALF_PIXEL),
        (0.0, 0.0, 0.0, 0.0),
        None,
    )
    return np.column_stack([nearest_rotation(matrices["R"], str(path)), matrices["T"]]), camera


def read_h5(path: Path) -> Mapping[str, np.ndarray]:
    """All arrays of an HDF5 file."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("IMC 2021's calibration", "imc") from error
    try:
        with h5py.File(path, "r") as file:
            return {key: np.asarray(file[key]) for key in file}
    except OSError as error:
        raise InputError(f"{path}: cannot be read as HDF5 ({error})") from error


def _bag(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for place, line in numbered_lines(path):
        name = PurePosixPath(line).name
        if line and name not in names:
            raise InputError(f"{place}: no image is named {name}")
        found += [name] if line else []
    return tuple(found)
