"""Arrays in npy and npz files, checked before memory is allocated: a damaged header may claim any size."""

import io
import math
import zipfile
from pathlib import Path

import numpy as np

from mbasfm.errors import InputError

MOST_EXPANSION = 1100
"""Largest compression ratio that deflate can reach."""
HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


def read_array(path: Path) -> np.ndarray:
    """Array of an npy file."""
    try:
        return _array(path.read_bytes())
    except Exception as error:  # numpy parses headers as Python, which fails in many ways; all mean the same here
        raise InputError(f"{path}: cannot be read as npy ({error})") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if not entries:
                raise ValueError("there is no array in it")
            return {entry.filename.removesuffix(".npy"): _entry(archive, entry) for entry in entries}
    except Exception as error:  # a damaged zip raises many kinds of errors too
        raise InputError(f"{path}: cannot be read as npz ({error})") from error


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if entry.file_size > MOST_EXPANSION * max(entry.compress_size, 1):
        raise ValueError(f"{entry.filename} claims {entry.file_size} bytes")
    return _array(archive.read(entry))


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    major, _ = np.lib.format.read_magic(file)
    if major not in HEADERS:
        raise ValueError(f"version {major} of the format")
    shape, is_fortran, dtype = HEADERS[major](file)
    held = len(content) - file.tell()
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never loaded")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"claims {shape} values of {dtype}, but has {held} bytes")
    values = np.frombuffer(content, dtype, offset=file.tell()).copy()
    return values.reshape(shape, order="F" if is_fortran else "C")
