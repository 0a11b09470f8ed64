"""Frames of a video: sharp ones, evenly spread over the way the camera goes, with their times."""

import cv2
import numpy as np
import pytest

from mbasfm import reconstruct
from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.io.images import is_video, read_times
from mbasfm.io.video import LATEST, STEP, extract_frames, motion

SIZE = (320, 240)


def texture(width, height, seed=0):
    """Spots of many sizes."""
    generator = np.random.default_rng(seed)
    layers = [generator.uniform(0, 1, (height // cell, width // cell, 3)) for cell in (4, 8, 16, 40)]
    large = [cv2.resize(layer, (width, height), interpolation=cv2.INTER_CUBIC) for layer in layers]
    return (np.mean(large, axis=0) * 255).clip(0, 255).astype(np.uint8)


def write_video(path, num_frames=90, step_px=2, sharp_every=4):
    """A camera that slides along a wall; only every fourth frame is sharp."""
    wall = texture(SIZE[0] + step_px * num_frames, SIZE[1])
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 30, SIZE)
    for number in range(num_frames):
        picture = wall[:, step_px * number : step_px * number + SIZE[0]]
        writer.write(
            np.ascontiguousarray(picture) if number % sharp_every == 0 else cv2.GaussianBlur(picture, (0, 0), 2)
        )
    writer.release()
    return path


def test_chosen_frames_are_sharp_and_a_step_apart(tmp_path):
    video = write_video(tmp_path / "walk.avi")
    count = extract_frames(video, tmp_path / "frames")
    times = read_times(tmp_path / "frames")
    assert count == len(times) == len(list((tmp_path / "frames").glob("*.jpg")))
    numbers = [int(name[6:12]) for name in times]
    assert all(number % 4 == 0 for number in numbers[:-1]), "blurred frames are passed over, but at the very end"
    steps = 2 * np.diff(numbers) / SIZE[0]
    assert (steps >= STEP - 0.02).all() and (steps <= LATEST * STEP + 0.02).all() and len(steps) >= 4
    assert list(times.values()) == pytest.approx([number / 30 for number in numbers])
    assert cv2.imread(str(tmp_path / "frames" / next(iter(times)))).shape == (240, 320, 3)


def test_frames_are_extracted_once(tmp_path):
    video = write_video(tmp_path / "walk.avi", 30)
    extract_frames(video, tmp_path / "frames")
    first = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "frames").iterdir()}
    extract_frames(video, tmp_path / "frames")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "frames").iterdir()} == first


def test_motion_is_a_share_of_the_long_side():
    wall = cv2.cvtColor(texture(400, 240), cv2.COLOR_BGR2GRAY)
    assert motion(wall[:, :320], wall[:, 16:336]) == pytest.approx(16 / 320, abs=0.002)
    assert motion(wall[:, :320], wall[:, :320]) == pytest.approx(0, abs=1e-3)
    assert motion(np.zeros((240, 320), np.uint8), wall[:, :320]) == 0


def test_a_file_that_is_no_video_is_named(tmp_path, capsys):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video")
    assert is_video(broken) and not is_video(tmp_path / "missing.mp4") and not is_video(tmp_path)
    with pytest.raises(InputError, match="broken.mp4: no frame can be decoded"):
        extract_frames(broken, tmp_path / "frames")
    assert main(["sfm", str(broken), "--output", str(tmp_path / "scene")]) == 2
    assert "broken.mp4" in capsys.readouterr().err
    with pytest.raises(InputError, match="give an output"):
        reconstruct(broken)


@pytest.mark.slow
def test_a_video_becomes_a_scene_with_times(tmp_path):
    """A camera that flies past a wall with relief."""
    near, far = texture(1400, 480, 1), texture(1400, 480, 2)
    writer = cv2.VideoWriter(str(tmp_path / "v.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 25, (640, 480))
    for number in range(40):
        picture = far[:, 6 * number : 6 * number + 640].copy()
        picture[240:] = near[240:, 14 * number : 14 * number + 640]
        writer.write(picture)
    writer.release()
    assert (
        main(["sfm", str(tmp_path / "v.avi"), "--output", str(tmp_path / "s"), "--focal", "600", "--depth", "flat"])
        == 0
    )
    lines = (tmp_path / "s" / "trajectory.tum").read_text().splitlines()
    times = [float(line.split()[0]) for line in lines if not line.startswith("#")]
    assert (
        len(times) >= 3 and times == sorted(times) and set(times) <= set(read_times(tmp_path / "s" / "frames").values())
    )
