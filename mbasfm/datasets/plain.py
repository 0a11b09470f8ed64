"""Scenes as images/ and gt.json: {"images": {name: {K, width, height, R, t}}}, reloc.json with lists map and query."""

from dataclasses import dataclass, replace
from pathlib import Path

from mbasfm.datasets.base import DatasetScene, Published, scene_of_poses
from mbasfm.errors import InputError
from mbasfm.io.plain import read_json
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
        poses = read_poses(PUBLISHED.need(folder / "gt.json"))
        found = scene_of_poses(scene, PUBLISHED.need(folder / "images"), poses, PUBLISHED)
        depth = folder / "depth"
        return replace(found, splits=_splits(folder / "reloc.json", found), depth=depth if depth.is_dir() else None)


def _splits(path: Path, scene: DatasetScene) -> dict[str, tuple[str, ...]]:
    if not path.is_file():
        return {}
    content = read_json(path)
    try:
        splits = {"map": tuple(content["map"]), "query": tuple(content["query"])}
        if "map_dir" in content:  # the map is another scene
            del splits["map"]
    except (KeyError, TypeError) as error:
        raise InputError(f'{path}: must be JSON with lists "map" and "query" ({error!r})') from error
    unknown = next((name for names in splits.values() for name in names if name not in scene.names), None)
    if unknown is not None:
        raise InputError(f"{path}: no image is named {unknown}")
    return splits
