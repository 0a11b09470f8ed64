"""Frames of a video: the sharpest one each time the camera has moved on.

A video has too many frames, most of them nearly the same and some blurred by motion. Motion is measured on shrunken
frames by tracked corners, sharpness by the variance of the Laplacian.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float32, UInt8

from mbasfm.errors import InputError
from mbasfm.io.files import write_text
from mbasfm.io.images import TIMES_NAME, read_times

SMALL_SIDE_PX = 320
STEP = 0.08
"""Median motion between chosen frames, as a share of the long side."""
LATEST = 1.5
"""A frame is chosen among those that moved by one to this many steps."""
MIN_TRACKED = 20
"""With fewer tracked corners, the picture is taken to have changed altogether."""
MAX_CORNERS = 200


@dataclass(frozen=True)
class VideoFrame:
    """One frame while the video is read."""

    number: int
    seconds: float
    pixels: UInt8[np.ndarray, "H W 3"]
    """BGR, as OpenCV reads."""
    small: UInt8[np.ndarray, "h w"]
    sharpness: float


def extract_frames(video: Path, folder: Path) -> int:
    """Write chosen frames as frame_000000.jpg ... with times.json (name to seconds) into a folder; returns how many.

    A folder that was finished before is left as it is.
    """
    done = folder / TIMES_NAME
    if done.is_file():
        return len(read_times(folder))
    folder.mkdir(parents=True, exist_ok=True)
    times = {}
    for frame in choose_frames(_read(video)):
        name = f"frame_{frame.number:06d}.jpg"
        cv2.imwrite(str(folder / name), frame.pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
        times[name] = frame.seconds
    if not times:
        raise InputError(f"{video}: no frame can be decoded; try another file format, e.g. MP4 with H.264")
    write_text(done, json.dumps(times, indent=1))
    return len(times)


def choose_frames(frames: Iterator[VideoFrame]) -> Iterator[VideoFrame]:
    """The first frame, then the sharpest of each window that is one to one and a half steps from the last one.

    Motion is summed from frame to frame: over a whole step corners would often be lost.
    """
    previous: VideoFrame | None = None
    best: VideoFrame | None = None
    moved = moved_at_best = 0.0
    for frame in frames:
        if previous is None:
            yield frame
        else:
            moved += motion(previous.small, frame.small)
        previous = frame
        if moved >= STEP and (best is None or frame.sharpness > best.sharpness):
            best, moved_at_best = frame, moved
        if moved >= LATEST * STEP and best is not None:
            yield best
            # Where corners were lost, a cut perhaps, the way begins anew.
            best, moved = None, moved - moved_at_best if np.isfinite(moved) else 0.0
    if best is not None:
        yield best


def motion(first: UInt8[np.ndarray, "h w"], second: UInt8[np.ndarray, "h w"]) -> float:
    """Median motion of corners as a share of the long side; infinite where they are lost, 0 where there are none."""
    corners = cv2.goodFeaturesToTrack(first, MAX_CORNERS, 0.01, 8)
    if corners is None:
        return 0.0
    moved, found, _ = cv2.calcOpticalFlowPyrLK(first, second, corners, np.empty_like(corners))
    tracked: Float32[np.ndarray, "M 2"] = (moved - corners)[found.ravel() == 1].reshape(-1, 2)
    if len(tracked) < min(MIN_TRACKED, len(corners)):
        return float("inf")
    return float(np.median(np.linalg.norm(tracked, axis=1))) / max(first.shape)


def _read(video: Path) -> Iterator[VideoFrame]:
    capture = cv2.VideoCapture(str(video))
    rate = capture.get(cv2.CAP_PROP_FPS) or 30.0
    number = 0
    try:
        while True:
            good, pixels = capture.read()
            if not good:
                return
            grey = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
            scale = min(1.0, SMALL_SIDE_PX / max(grey.shape))
            small = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            yield VideoFrame(number, number / rate, pixels, small, float(cv2.Laplacian(grey, cv2.CV_32F).var()))
            number += 1
    finally:
        capture.release()
