"""Depth maps that somebody else made: one file per photograph, with the photograph's name and another ending."""

import hashlib
from pathlib import Path

import cv2
import numpy as np

from mbasfm.errors import InputError
from mbasfm.geometry.focal import focal_from_points
from mbasfm.io.files import read_array, read_arrays
from mbasfm.io.images import is_plausible
from mbasfm.models.base import DepthModel
from mbasfm.types.observations import RGB, DepthEstimate, Photo

SUFFIXES = (".npy", ".npz", ".png", ".exr", ".tif", ".tiff")
MILLIMETRE = 1e-3


class FilesDepth(DepthModel):
    """``files:DIR`` reads depth, ``files:DIR?disparity`` disparity.

    npy: an array; npz: its entry ``depth`` or ``disparity``, or its only one; 16-bit PNG: millimetres, 0 for unknown;
    EXR and TIFF: floats. A map may have any resolution; it spans the whole image. Three numbers per pixel are a point
    map in the camera's frame: its z is the depth, and its rays tell the focal length. So does an entry ``rays`` of an
    npz, an incidence field, beside depth or disparity.
    """

    name, looks_at_images = "files", False
    licence = "that of your files"

    def __init__(self, argument: str = ""):
        folder, _, kind = argument.partition("?")
        if kind not in ("", "depth", "disparity"):
            raise InputError(f"files:{argument}: after '?' comes depth or disparity")
        self.folder, self._is_disparity = Path(folder), kind == "disparity"
        if not self.folder.is_dir():
            raise InputError(f"files:{argument}: {self.folder} is not a folder; give the folder with the depth maps")
        self.key = f"files-1-{kind or 'depth'}-{self.folder.resolve()}"

    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Read the map of a photograph."""
        del image
        path = self.find(photo.name)
        if path is None:
            looked = ", ".join(Path(photo.name).with_suffix(suffix).as_posix() for suffix in SUFFIXES[:3])
            raise InputError(f"{photo.name}: no depth map in {self.folder}; looked for {looked} ...")
        values, is_disparity, rays = self._read(path)
        if _is_field(values):
            values, is_disparity, rays = values[..., 2], False, values
        focal_px = None
        if rays is not None:
            if not _is_field(rays):
                raise InputError(f"{path}: rays must be three numbers per pixel, not shape {rays.shape}")
            focal = focal_from_points(rays.astype(np.float32), photo.width, photo.height)
            focal_px = focal if np.isfinite(focal) else None
        if values.ndim != 2 or values.dtype.kind not in "iuf" or not ((values > 0) & np.isfinite(values)).any():
            what = f"values of {values.dtype} in shape {values.shape}"
            raise InputError(f"{path}: not a depth map with at least one known value, but {what}")
        with np.errstate(over="ignore"):  # beyond all numbers is as far as the sky
            values = np.where(np.isneginf(values), np.nan, values).astype(np.float32)
        return DepthEstimate(values, is_disparity, is_metric=not is_disparity, focal_px=focal_px)

    def content_of(self, photo: Photo) -> str:
        """Digest of the depth file for the cache, as it may change while the photograph stays."""
        path = self.find(photo.name)
        return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()

    def find(self, name: str) -> Path | None:
        """The first file that belongs to a photograph: name.npy, or name.jpg.npy, in the same subfolder."""
        base = self.folder / name
        for suffix in SUFFIXES:
            for path in (base.with_suffix(suffix), base.with_name(base.name + suffix)):
                if path.is_file():
                    return path
        return None

    def _read(self, path: Path) -> tuple[np.ndarray, bool, np.ndarray | None]:
        """Values, whether they are disparity, and the rays of the pixels if the file has them."""
        if path.suffix == ".npy":
            return read_array(path).squeeze(), self._is_disparity, None
        if path.suffix == ".npz":
            return self._read_npz(path)
        values = _read_picture(path)
        if values.dtype == np.uint16:
            return np.where(values > 0, values * MILLIMETRE, np.nan), self._is_disparity, None
        return values, self._is_disparity, None

    def _read_npz(self, path: Path) -> tuple[np.ndarray, bool, np.ndarray | None]:
        arrays = read_arrays(path)
        rays = arrays.pop("rays", None)
        for name, is_disparity in (("points", False), ("depth", False), ("disparity", True)):
            if name in arrays:
                return arrays[name].squeeze(), is_disparity, rays
        if len(arrays) != 1:
            raise InputError(f"{path}: has entries {[*arrays]}; name one of them points, depth or disparity")
        return next(iter(arrays.values())).squeeze(), self._is_disparity, rays


def _is_field(values: np.ndarray) -> bool:
    return values.ndim == 3 and values.shape[2] == 3 and values.dtype.kind == "f"


def _read_picture(path: Path) -> np.ndarray:
    """First channel of an image, in its own number format."""
    try:
        values = cv2.imread(str(path), cv2.IMREAD_UNCHANGED) if is_plausible(path) else None
    except cv2.error as error:
        raise InputError(f"{path}: cannot be read as a depth map ({error.err})") from error
    if values is None:
        advice = "; few builds of OpenCV read EXR, npy or tiff will do" if path.suffix == ".exr" else ""
        raise InputError(f"{path}: cannot be decoded as a picture{advice}")
    return values[..., 0] if values.ndim == 3 else values
