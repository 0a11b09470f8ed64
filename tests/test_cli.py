"""The command line: what it writes, what it prints, and how it fails."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mbasfm
from mbasfm.cli import main

NUM_FRAMES = 16
README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    assert main(["demo", "--output", str(folder)]) == 0
    return folder


def test_the_demo_writes_photographs_depth_and_a_scene(demo_folder: Path) -> None:
    photos = sorted(path.name for path in (demo_folder / "photos").iterdir())
    assert photos == [f"{number:03d}.png" for number in range(NUM_FRAMES)]
    with Image.open(demo_folder / "photos" / photos[0]) as photo:
        assert photo.size == (640, 480)
    depth = np.load(demo_folder / "monocular" / "000.npy")
    assert depth.shape == (480, 640) and np.isfinite(depth).any()
    assert (demo_folder / "scene" / "sparse" / "0" / "images.bin").is_file()
    assert (demo_folder / "scene" / "report.html").stat().st_size > 10_000


def test_the_demo_compares_and_the_scene_is_near_the_truth(demo_folder: Path) -> None:
    result = json.loads((demo_folder / "result.json").read_text())
    assert result["settings"]["num_frames"] == NUM_FRAMES
    assert list(result["runs"]) == ["no depth", "paper", "anchored", "anchored, polished"]
    best = result["runs"]["anchored, polished"]
    assert best["registered"] == NUM_FRAMES and best["auc_5"] > 0.9
    assert best["auc_5"] > result["runs"]["paper"]["auc_5"]
    assert abs(best["focal_error"]) < 0.05


def test_the_readme_tells_what_the_demo_prints(demo_folder: Path) -> None:
    """AUCs and their range, row by row."""
    runs = json.loads((demo_folder / "result.json").read_text())["runs"]
    rows = re.findall(r"^\| (no depth|paper|anchored|anchored, polished) \| (.*) \|$", README.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == list(runs)
    for name, cells in rows:
        *areas, focal, placed = cells.split(" | ")
        for limit, cell in zip((1, 3, 5), areas, strict=True):
            value, spread = map(float, cell.split(" ± "))
            assert abs(runs[name][f"auc_{limit}"] - value) <= spread, (name, limit)
        percent, spread = map(float, focal.removesuffix(" %").split(" ± "))
        assert abs(100 * runs[name]["focal_error"] - percent) <= spread, name
        assert placed == f"{runs[name]['registered']}/{NUM_FRAMES}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-frames", "1"], "--num-frames is 1"),
        (["--num-frames", "-4"], "--num-frames is -4"),
        (["--depth-error", "-0.1"], "--depth-error is -0.1"),
        (["--depth-error", "nan"], "--depth-error is nan"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--output", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "demo"),
        (["demo"], "--output"),
        (["demo", "--output", "x", "--kind", "castle"], "castle"),
        (["demo", "--output", "x", "--num-frames", "many"], "many"),
        (["fly"], "fly"),
    ],
)
def test_a_bad_option_is_explained_with_exit_code_2(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert word in error
    assert "Traceback" not in error


def test_an_output_that_is_a_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--output", str(tmp_path / "file")]) == 2
    assert "choose another --output" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mba {mbasfm.__version__}\n"


def test_module_passes_the_exit_code_on() -> None:
    command = [sys.executable, "-m", "mbasfm", "demo", "--output", "x", "--num-frames", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_public_names_are_sorted_and_exist() -> None:
    assert mbasfm.__all__ == sorted(mbasfm.__all__)
    assert all(hasattr(mbasfm, name) for name in mbasfm.__all__)
