"""Every example runs and says what its docstring promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import HANG_S

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED = {
    "01_adjust": (["6"], ["6 frames", "start ", "adjusted", "6 frames registered"]),
    "02_paper_and_split": (["4"], ["paper: AUC@1", "split: AUC@1", "15 %"]),
    "03_fixed_frames": (["6"], ["2 query frames", "unchanged to the last bit: True"]),
    "04_rival_losses": (["4", "5"], ["after coarse", "mba", "cauchy", "adam", "5 steps"]),
    "05_uncertainty": (["6"], ["sigma deg", "is the root", "not registered"]),
}
"""Arguments that make it small, and words of its output."""


def run_example(name: str, arguments: list[str]) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs(name: str) -> None:
    arguments, words = EXPECTED[name]
    output = run_example(name, arguments)
    assert [word for word in words if word not in output] == []
    assert not re.search(r"\bnan\b|\binf\b", output)


def test_code_in_the_documentation_runs(tmp_path: Path) -> None:
    pages = [EXAMPLES.parent / "README.md", *sorted((EXAMPLES.parent / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    assert blocks
    script = tmp_path / "documentation.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 frames registered" in re.sub(r"tensor\((\d+)\)", r"\1", done.stdout)
