"""Scenes as images/ and gt.json: {"images": {name: {K, width, height, R, t}}}, reloc.json with lists map and query."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from mbasfm.datasets.base import DatasetScene, Published, scene_of_poses
from mbasfm.errors import InputError
from mbasfm.io.plain import line_of, read_json
from mbasfm.io.poses import read_poses

PUBLISHED = Published("the plain form", "docs/evaluation.md, which says what to put there")


@dataclass(frozen=True)
class Plain:
    """Any photographs with known poses."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Folders with a gt.json."""
        return PUBLISHED.folders(self.folder, lambda path: (path / "gt.json").is_file())

    def load(self, scene: str) -> DatasetScene:
        """Poses and intrinsics of gt.json, splits of reloc.json, sensor depth of depth/."""
        folder = PUBLISHED.need(self.folder / scene)
        return _with_splits(_without_splits(folder), folder / "reloc.json")


def _without_splits(folder: Path) -> DatasetScene:
    poses = read_poses(PUBLISHED.need(folder / "gt.json"))
    found = scene_of_poses(folder.name, PUBLISHED.need(folder / "images"), poses, PUBLISHED)
    depth = folder / "depth"
    return replace(found, depth=depth if depth.is_dir() else None)


def _with_splits(scene: DatasetScene, path: Path) -> DatasetScene:
    """With map and queries, of which the map may be another scene: map_dir."""
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
