"""Draw docs/architecture.svg: every package with its contract, and which packages it imports.

    python docs/draw_architecture.py

Contracts are the first lines of docstrings and lines are import statements: the picture says what the code does. A test
draws it again and compares.
"""

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

PACKAGE = "mbasfm"
FOLDER = Path(__file__).parents[1] / PACKAGE
PICTURE = Path(__file__).parent / "architecture.svg"
FLOORS = (
    ("foundations", "#4f6d8f", ("errors", "types", "runtime", "geometry")),
    ("adjustment", "#a2542f", ("objective", "adjust", "config")),
    ("inputs, truth", "#4c7a4a", ("io", "synthetic", "evaluation", "models")),
    ("stages", "#7a5195", ("estimators", "matching", "polish", "scene", "sfm", "localization")),
    ("to look at", "#a0446e", ("report", "viewer")),
    ("pipelines", "#b07d10", ("pair", "localize", "reconstruct", "extend")),
    ("edges", "#4a7f86", ("datasets", "bench", "commands", "cli")),
)
"""Name, colour and packages, bottom to top. Public names (`__init__`) and `__main__` are left out."""
ORDER = tuple(package for _, _, packages in FLOORS for package in packages)
WIDTH, MARGIN, BOX_WIDTH, NAME_WIDTH = 900, 28, 584, 119
LINE, PADDING, GAP, FLOOR_GAP = 14, 6, 4, 12
LANE = 10.4
"""Distance of two vertical lines."""
WRAP = 74
"""Characters of a contract per line."""
APART = 4
"""What a package imports leaves its box this far above the middle, what imports it comes in as far below [px]."""


@dataclass(frozen=True)
class Box:
    """A package in the picture."""

    name: str
    label: str
    contract: tuple[str, ...]
    color: str
    top: float
    height: float

    @property
    def out_y(self) -> float:
        """Height at which the line to imported packages begins."""
        return self.top + self.height / 2 - APART

    @property
    def in_y(self) -> float:
        """Height at which importing packages point."""
        return self.top + self.height / 2 + APART


def imports_of(package: str) -> set[str]:
    """Other packages of the picture that a package imports directly."""
    found = set()
    for path in _sources(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found |= {name.split(".")[1] for name in _imported(node) if name.startswith(f"{PACKAGE}.")}
    return (found & set(ORDER)) - {package}


def _sources(package: str) -> list[Path]:
    return [path for path in (FOLDER / f"{package}.py", *sorted((FOLDER / package).rglob("*.py"))) if path.exists()]


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def contract_of(package: str) -> str:
    """First line of the docstring of a package or module."""
    first, *_ = sorted(_sources(package), key=lambda path: path.name != "__init__.py")
    docstring = ast.get_docstring(ast.parse(first.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].replace("``", "")


def draw() -> str:
    """The picture as SVG."""
    boxes, height = _stack()
    imports = {package: imports_of(package) for package in ORDER}
    targets = [package for package in reversed(ORDER) if any(package in used for used in imports.values())]
    lane_x = {package: MARGIN + BOX_WIDTH + 16 + LANE * number for number, package in enumerate(targets)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="11.5" fill="#222">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{MARGIN}" y="22" font-size="14" font-weight="bold">The packages of {PACKAGE}, bottom to top</text>',
        f'<text x="{WIDTH - 14}" y="22" text-anchor="end" fill="#666">'
        "● a package imports the one its line leads down to</text>",
    ]
    parts += [_floor(name, color, boxes[packages[-1]], boxes[packages[0]]) for name, color, packages in FLOORS]
    for package in ORDER:
        parts += _threads(boxes[package], [lane_x[used] for used in imports[package]])
    for package in targets:
        users = [boxes[name] for name in ORDER if package in imports[name]]
        parts += _lane(boxes[package], users, lane_x[package])
    for box in boxes.values():
        parts += _drawn(box)
    return "\n".join([*parts, "</svg>\n"])


def _stack() -> tuple[dict[str, Box], float]:
    """Boxes from the top down, and the height of the picture."""
    boxes, top = {}, 36.0
    for _, color, packages in reversed(FLOORS):
        for package in reversed(packages):
            contract = tuple(textwrap.wrap(contract_of(package), WRAP))
            label = f"{package}/" if (FOLDER / package).is_dir() else f"{package}.py"
            height = LINE * len(contract) + 2 * PADDING
            boxes[package] = Box(package, label, contract, color, top, height)
            top += height + GAP
        top += FLOOR_GAP - GAP
    return boxes, top


def _floor(name: str, color: str, highest: Box, lowest: Box) -> str:
    """The name of a floor, upwards along its left side."""
    middle = (highest.top + lowest.top + lowest.height) / 2
    place = f'transform="translate({MARGIN - 10} {middle:g}) rotate(-90)" text-anchor="middle"'
    return f'<text {place} fill="{color}">{name}</text>'


def _threads(box: Box, lanes: list[float]) -> list[str]:
    """The horizontal line from a package to the lanes of all that it imports."""
    if not lanes:
        return []
    left, y = MARGIN + BOX_WIDTH, box.out_y
    return [f'<path d="M{left} {y:g}H{max(lanes):g}" stroke="#c9c9c9" fill="none"/>']


def _lane(target: Box, users: list[Box], x: float) -> list[str]:
    """The line that leads from all users of a package down to it."""
    end, top = MARGIN + BOX_WIDTH, min(box.out_y for box in users)
    y = target.in_y
    path = f"M{x:g} {top:g}V{y - 4:g}Q{x:g} {y:g} {x - 4:g} {y:g}H{end + 6}"
    return [
        f'<path d="{path}" stroke="{target.color}" stroke-width="1.4" fill="none"/>',
        f'<path d="M{end + 1} {y:g}l7 -3.5v7z" fill="{target.color}"/>',
        *(f'<circle cx="{x:g}" cy="{box.out_y:g}" r="3" fill="{target.color}"/>' for box in users),
    ]


def _drawn(box: Box) -> list[str]:
    first = box.top + PADDING + LINE - 3.5
    return [
        f'<rect x="{MARGIN}" y="{box.top:g}" width="{BOX_WIDTH}" height="{box.height:g}" rx="4" fill="{box.color}"'
        f' fill-opacity="0.09" stroke="{box.color}" stroke-opacity="0.55"/>',
        f'<text x="{MARGIN + 10}" y="{first:g}" font-weight="bold" font-size="12.5" fill="{box.color}">'
        f"{box.label}</text>",
        *(
            f'<text x="{MARGIN + NAME_WIDTH}" y="{first + LINE * number:g}">{escape(line)}</text>'
            for number, line in enumerate(box.contract)
        ),
    ]


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
