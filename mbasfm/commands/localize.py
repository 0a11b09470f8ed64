"""`mba localize`: poses of new photographs in the world of a map."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from mbasfm.config import LocalizeConfig
from mbasfm.errors import ConfigError
from mbasfm.io.lists import read_names
from mbasfm.localization.result import Localization
from mbasfm.localize import Names, relocalize
from mbasfm.runtime.progress import Progress

EXIT_NOTHING = 3
"""No query could be localized."""


@dataclass(frozen=True)
class Localize:
    """Poses of photographs, the queries, in the world of a map, which stays as it is."""

    map: tyro.conf.Positional[Path]
    """Scene of `mba sfm`, folder with a COLMAP model and its images, or images with gt.json (and depth)."""
    queries: tyro.conf.Positional[Path]
    """Folder of photographs (searched through), or text file with one path per line. Cameras and masks are theirs."""
    output: Path
    """Folder for sparse/0, trajectory.tum and localization.json; made if it does not exist."""
    map_list: Path | None = None
    """Names of the photographs that are the map, if not all are: one per line, or JSON with a list "map"."""
    query_list: Path | None = None
    """Names of the photographs to localize, if not all: one per line, or JSON with a list "query"."""
    cache: Path | None = None
    """Where the prepared map is kept; by default inside MAP."""
    quiet: bool = False
    """Print errors only."""
    verbose: bool = False
    """Print all facts of every stage."""
    json: bool = False
    """Print the summary as JSON on standard output."""
    settings: Annotated[LocalizeConfig, tyro.conf.arg(name="")] = field(default_factory=LocalizeConfig)

    def run(self) -> int:
        """Localize, write, and say what came out; returns the exit code."""
        try:
            self.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.output}: cannot be written ({error}); choose another --output") from error
        console = Console(stderr=True, quiet=self.quiet)
        names = Names(_names(self.map_list, "map"), _names(self.query_list, "query"))
        with Progress(console, self.verbose).active():
            result = relocalize(self.map, self.queries, self.output, self.settings, self.cache, names)
        _summarise(result, self.output, console)
        if self.json:
            print(json.dumps(_summary(result, self.output), indent=1))
        return 0 if result.num_localized else EXIT_NOTHING


def _names(path: Path | None, key: str) -> Sequence[str] | None:
    return None if path is None else read_names(path, key)


def _summary(result: Localization, output: Path) -> dict[str, object]:
    return {
        "output": str(output),
        "queries": len(result.queries),
        "localized": result.num_localized,
        "missing": {query.name: str(query.reason) for query in result.queries if not query.localized},
    }


def _summarise(result: Localization, output: Path, console: Console) -> None:
    for query in result.queries:
        if not query.localized:
            console.print(f"not localized: {query.name}: {query.reason}", highlight=False)
    console.print(f"{result.num_localized} of {len(result.queries)} queries localized")
    console.print(f"look at {output / 'localization.json'}", highlight=False, soft_wrap=True)
