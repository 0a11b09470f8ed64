"""How many modules does a photograph cross? A profile of `mba sfm --depth flat` on three made-up photographs.

A module is crossed if one of its functions runs, or one of its classes is instantiated, between the command line and
the written scene. What runs only because a module is imported does not count.

    python benchmarks/modules_crossed.py
"""

import contextlib
import io
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from PIL import Image

from mbasfm.cli import main as mba
from mbasfm.synthetic.cameras import make_cameras, render
from mbasfm.synthetic.solids import make_room

PACKAGE = "mbasfm"
NUM_PHOTOS = 3
SIZE = (320, 240)


class Crossings:
    """A profile function that collects the modules of the package whose functions are called."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        """Names without the package's own, in the order of their first call."""
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the module of a called function, unless it runs only because a module is imported."""
        if event != "call" or frame.f_code in self._seen:
            return
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package != PACKAGE:
            self._seen.add(frame.f_code)
        elif not _is_importing(frame):
            self._seen.add(frame.f_code)
            self.modules.setdefault(module or "__init__")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith(f"{PACKAGE}."):
            return True
        frame = frame.f_back
    return False


def modules_crossed(photos: Path, scene: Path) -> list[str]:
    """Names of the modules that `mba sfm` calls, in the order of their first call."""
    crossings = Crossings()
    threading.setprofile(crossings)
    sys.setprofile(crossings)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = mba(["sfm", str(photos), "--output", str(scene), "--depth", "flat"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code != 0:
        raise RuntimeError(f"mba sfm ended with code {code}: {errors.getvalue()}")
    return list(crossings.modules)


def photograph_room(folder: Path) -> Path:
    """Save photographs of a made-up room; returns their folder."""
    folder.mkdir()
    scene = make_room(0)
    cameras = make_cameras(scene, NUM_PHOTOS, 0, size=SIZE)
    for number in range(NUM_PHOTOS):
        Image.fromarray(render(scene, cameras, number)[0].numpy()).save(folder / f"{number}.png")
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        modules = modules_crossed(photograph_room(Path(folder) / "photos"), Path(folder) / "scene")
    packages = Counter(module.split(".")[0] for module in modules)
    print(f"{len(modules)} modules, in the order of their first call:")
    for module in modules:
        print(f"  {module.replace('.', '/')}.py")
    print("by package: " + ", ".join(f"{package} {count}" for package, count in packages.items()))


if __name__ == "__main__":
    main()
