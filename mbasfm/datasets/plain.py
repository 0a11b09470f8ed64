"""Scenes as images/ and gt.json: {"images": {name: {K, width, height, R, t}}}, reloc.json with lists map and query.

Where no rotations are known, ``position`` (3) may stand in place of R and t. Photographs without either are left out.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mbasfm.datasets.base import IMAGE_ENDINGS, DatasetScene, Published, scene_of_poses
from mbasfm.errors import InputError
from mbasfm.io.colmap import is_number
from mbasfm.io.files import line_of, read_json
from mbasfm.io.poses import PoseFile, read_poses

PUBLISHED = Published("the plain form", "docs/evaluation.md, which says what to put there")


@dataclass(frozen=True)
class Plain:
    """Any photographs with known poses."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the folders with a gt.json."""
        return PUBLISHED.folders(self.folder, lambda path: (path / "gt.json").is_file())

    def load(self, scene: str) -> DatasetScene:
        """Poses and intrinsics of gt.json, splits of reloc.json, sensor depth of depth/."""
        folder = PUBLISHED.need(self.folder / scene)
        return _with_splits(_without_splits(folder), folder / "reloc.json")


def _without_splits(folder: Path) -> DatasetScene:
    path, images = PUBLISHED.need(folder / "gt.json"), PUBLISHED.need(folder / "images")
    positions = _positions(path)
    poses = positions if positions is not None else read_poses(path)
    found = scene_of_poses(folder.name, images, poses, PUBLISHED)
    there = {item.name for item in images.iterdir() if item.suffix.lower() in IMAGE_ENDINGS}
    depth = folder / "depth"
    return replace(
        found,
        depth=depth if depth.is_dir() else None,
        has_rotations=positions is None,
        left_out=tuple(sorted(there - set(found.names))),
    )


def _positions(path: Path) -> PoseFile | None:
    """Cameras at known positions, without rotation, if no entry has one; None if rotations are known."""
    content = read_json(path)
    entries = content.get("images") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        return None  # read_poses says what is wrong
    found = {name: entry["position"] for name, entry in entries.items() if "position" in entry}
    if not found or any("R" in entry or "t" in entry for entry in entries.values()):
        return None
    poses = []
    for name, position in found.items():
        numbers = [float(value) for value in position if is_number(value)] if isinstance(position, list) else []
        if len(numbers) != 3 or not np.isfinite(numbers).all():
            place = f"{path}, line {line_of(path, json.dumps(name))}, {name}"
            raise InputError(f"{place}: position must be 3 finite numbers, not {position!r:.80}")
        poses.append(np.column_stack([np.eye(3), -np.array(numbers)]))
    return PoseFile(path, tuple(found), np.stack(poses), (None,) * len(found))


def _with_splits(scene: DatasetScene, path: Path) -> DatasetScene:
    """Scene with map and queries as splits; the map may be another scene, map_dir."""
    if not path.is_file():
        return scene
    content = read_json(path)
    try:
        mapped, queries = (tuple(map(str, content[key])) for key in ("map", "query"))
        elsewhere = _without_splits(path.parent / content["map_dir"]) if "map_dir" in content else None
    except (KeyError, TypeError) as error:
        raise InputError(f'{path}: must be JSON with lists "map" and "query" ({error!r})') from error
    for names, place in ((mapped, elsewhere or scene), (queries, scene)):
        unknown = next((name for name in names if name not in place.names), None)
        if unknown is not None:
            raise InputError(f"{path}, line {line_of(path, json.dumps(unknown))}: no image is named {unknown}")
    if elsewhere is None:
        return replace(scene, splits={"map": mapped, "query": queries})
    return replace(scene, splits={"query": queries}, map_scene=elsewhere.only(mapped))
