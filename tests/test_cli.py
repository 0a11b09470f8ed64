"""The command line: what it writes, what it prints, and how it fails."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import mbasfm
from mbasfm.cli import main
from mbasfm.plots import FIGURE_INCHES

NUM_FRAMES = 4


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    assert main(["demo", "--output", str(folder), "--num-frames", str(NUM_FRAMES), "--kind", "object"]) == 0
    return folder


def numbers_in(tree: object) -> list[float]:
    if isinstance(tree, dict):
        return [number for value in tree.values() for number in numbers_in(value)]
    return [float(tree)] if isinstance(tree, int | float) else []


def test_demo_draws_a_picture_with_content_in_every_part(demo_folder: Path) -> None:
    picture = Image.open(demo_folder / "demo.png").convert("RGB")
    width, height = picture.size
    assert width / height == pytest.approx(FIGURE_INCHES[0] / FIGURE_INCHES[1], abs=0.02)
    assert (demo_folder / "demo.png").stat().st_size < 400_000
    for left in range(0, width - width // 4 + 1, width // 4):
        for top in (0, height // 2):
            part = picture.crop((left, top, left + width // 4, top + height // 2))
            assert len(part.getcolors(part.width * part.height)) > 20, (left, top)


def test_demo_writes_finite_numbers_and_split_improves_on_the_start(demo_folder: Path) -> None:
    result = json.loads((demo_folder / "result.json").read_text())
    assert all(math.isfinite(number) for number in numbers_in(result))
    assert result["version"] == mbasfm.__version__
    assert result["settings"]["num_frames"] == NUM_FRAMES
    start, paper, split = (result["runs"][name] for name in ("start", "paper", "split"))
    assert start["focal_error"] == pytest.approx(0.15)
    assert split["auc_5"] > max(start["auc_5"] + 0.5, 0.8)
    assert split["rotation_deg"] < 0.2 * start["rotation_deg"]
    assert split["center_share"] < 0.2 * start["center_share"]
    assert abs(split["focal_error"]) < 0.05
    assert paper["auc_5"] > start["auc_5"]
    assert split["registered"] == NUM_FRAMES
    assert split["steps"] > 0


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


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--output", str(tmp_path)]) == 2
    assert "mbasfm[plots]" in capsys.readouterr().err


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
