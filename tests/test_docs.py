"""The documentation names what exists, and the picture of the packages is that of the present code."""

import ast
import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_layers import LAYERS

import mbasfm

ROOT = Path(__file__).parents[1]
FOLDER = Path(mbasfm.__file__).parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
NOT_DRAWN = ("__init__", "__main__")
ELSEWHERE = ("dataclasses", "torch", "numpy", "mbasfm.depth", "mbasfm.matcher", "naver_dust3r_main")
"""Other libraries, groups of entry points, and a folder of other people's."""

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w/]+/\w+\.py")
SLASHED = re.compile(r"(?P<module>\w+(?:/\w+)+)\.(?P<names>[A-Za-z_][\w.]*)(?:\(.*\))?")
DOTTED = re.compile(r"(?P<names>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
LONE = re.compile(r"[A-Za-z]+(?:_\w+|[a-z][A-Z]\w*)")
CALLED = re.compile(r"(?P<name>[A-Za-z_]\w*)\(.*\)")


@dataclass(frozen=True)
class Names:
    """Names that the package defines."""

    modules: dict[str, set[str]]
    """What each module defines or imports, by its name without the package's own; members as ``Class.member``."""

    @property
    def everywhere(self) -> set[str]:
        """Names of all modules."""
        return {name for names in self.modules.values() for name in names}

    @property
    def callables(self) -> set[str]:
        """Last parts of all names: functions, classes and members."""
        return {name.split(".")[-1] for name in self.everywhere}


def names_of(body: list[ast.stmt], owner: str = "") -> set[str]:
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(owner + node.name)
            if isinstance(node, ast.ClassDef):
                found |= names_of(node.body, f"{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(owner + node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {owner + name.id for target in node.targets for name in ast.walk(target) if _is_name(name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {owner + (alias.asname or alias.name) for alias in node.names}
    return found


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def read_names() -> Names:
    modules = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = names_of(ast.parse(path.read_text(encoding="utf-8")).body)
    return Names(modules)


NAMES = read_names()
WORDS = {
    word
    for path in FOLDER.rglob("*")
    if path.suffix in (".py", ".toml")
    for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
}
"""All words of the sources: settings and parameters are named without their owner."""


def missing_names(page: str, names: Names = NAMES) -> list[str]:
    """What a page names in backticks, or as the path of a file, and neither the package nor the repository has."""
    text = FENCE.sub("", page)
    paths = [path for path in PATH.findall(text) if not _is_file(path)]
    return paths + [quoted for quoted in QUOTED.findall(text) if not exists(quoted, names)]


def _is_file(path: str) -> bool:
    return (FOLDER / path).exists() or (ROOT / path).exists()


def exists(quoted: str, names: Names = NAMES) -> bool:
    """Whether quoted words name something that is there; true for all that do not name code of the package."""
    if match := SLASHED.fullmatch(quoted):
        return match["names"] == "py" or _is_in(match["module"].replace("/", "."), match["names"], names)
    if match := DOTTED.fullmatch(quoted):
        return _dotted_exists(match["names"], quoted.endswith(")"), names)
    if match := CALLED.fullmatch(quoted):
        return match["name"] in names.callables
    return not LONE.fullmatch(quoted) or quoted in WORDS or quoted in ELSEWHERE


def _is_in(module: str, name: str, names: Names) -> bool:
    folder = module.partition(".")[0]
    if folder not in LAYERS:
        return True
    return name in names.modules.get(module, ())


def _dotted_exists(dotted: str, is_called: bool, names: Names) -> bool:
    """Full names of the package, members of classes, and classes or functions of modules by the module's last name."""
    if dotted.startswith(ELSEWHERE):
        return True
    first, _, rest = dotted.partition(".")
    if first == mbasfm.__name__:
        return _is_full_name(rest, names)
    if first in LAYERS and "." in rest:
        return _is_full_name(dotted, names)
    if first[0].isupper():
        return dotted in names.everywhere or first not in names.everywhere
    if is_called or rest[0].isupper():
        homes = [module for module in names.modules if module.split(".")[-1] == first]
        return any(rest in names.modules[home] for home in homes)
    return True


def _is_full_name(dotted: str, names: Names) -> bool:
    parts = dotted.split(".")
    splits = ((".".join(parts[:count]), ".".join(parts[count:])) for count in range(len(parts) + 1))
    return any(module in names.modules and (not name or name in names.modules[module]) for module, name in splits)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_exists(page):
    assert missing_names(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "words",
    [
        "`adjust/adjust.py`",
        "`adjust/adjust.adjust`",
        "`sfm/pairs/pose_graph.select_edges`",
        "`mbasfm.geometry.rigid.compose`",
        "`objective.split.SplitForm.freeze`",
        "`mbasfm.reconstruct`",
        "`adjust()`",
        "`Cameras.depth_scale`",
        "`config.Loss`",
        "`report.json`, `sparse/0/images.bin`, `fine.steps`",
        "tests/test_docs.py",
    ],
)
def test_what_exists_is_found(words):
    assert missing_names(words) == []


@pytest.mark.parametrize(
    "words, wrong",
    [
        ("in `adjust/adjusting.py`", ["adjust/adjusting.py"]),
        ("tests/test_nothing.py", ["tests/test_nothing.py"]),
        ("`adjust/adjust.adjusting`", ["adjust/adjust.adjusting"]),
        ("`adjust/adjusting.adjust`", ["adjust/adjusting.adjust"]),
        ("`sfm/pairs.select_edges`", ["sfm/pairs.select_edges"]),
        ("`mbasfm.geometry.rigid.composed`", ["mbasfm.geometry.rigid.composed"]),
        ("`mbasfm.reconstructed`", ["mbasfm.reconstructed"]),
        ("`geometry.rigid.composed`", ["geometry.rigid.composed"]),
        ("`readjust()`", ["readjust()"]),
        ("`readjust(cameras, samples)`", ["readjust(cameras, samples)"]),
        ("`Cameras.depth_scales`", ["Cameras.depth_scales"]),
        ("`forms.Form`", ["forms.Form"]),
        ("`solve_backwards`", ["solve_backwards"]),
        ("`DepthModelling`", ["DepthModelling"]),
        ("`config.read()`", ["config.read()"]),
        ("`adjust()` and `readjust()`", ["readjust()"]),
    ],
)
def test_what_does_not_exist_is_found_out(words, wrong):
    assert set(missing_names(words)) == set(wrong)


# ----------------------------------------------------------------------------------------------------------------
# The picture

DRAWING = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))


def test_the_picture_is_that_of_the_code():
    drawn = DRAWING["PICTURE"].read_text(encoding="utf-8")
    assert drawn == DRAWING["draw"](), "run python docs/draw_architecture.py"


def test_packages_are_drawn_in_the_order_of_their_layers():
    assert DRAWING["ORDER"] == tuple(layer for layer in LAYERS if layer not in NOT_DRAWN)


def test_lines_of_the_picture_are_import_statements():
    assert DRAWING["imports_of"]("geometry") == {"types"}
    assert DRAWING["imports_of"]("errors") == set()
