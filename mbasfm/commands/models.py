"""`mba models`: what can be plugged in."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from mbasfm.models.base import list_models, looking_in


@dataclass(frozen=True)
class Models:
    """List depth models and matchers with their licence, size and whether they can run now."""

    json: bool = False
    """Print JSON instead of a table."""
    weights: Path | None = None
    """Folder with weights of networks, before the one that the variable MBA_WEIGHTS names."""
    models_path: Path | None = None
    """Folder with clones of networks' code, before the one that the variable MBA_MODELS names."""

    def run(self) -> int:
        """Print one line per installed model."""
        with looking_in(*(None if path is None else str(path) for path in (self.weights, self.models_path))):
            rows = list_models()
        if self.json:
            print(json.dumps([asdict(row) for row in rows], indent=1))
            return 0
        table = Table(box=box.SIMPLE_HEAD)
        for title in ("kind", "name", "licence", "download", "memory", "can run now"):
            table.add_column(title, overflow="fold", no_wrap=title == "name")
        for row in rows:
            table.add_row(row.kind, row.name, row.licence, row.download, row.memory, "no" if row.missing else "yes")
        console = Console()
        console.print(table)
        for row in rows:
            if row.missing:  # outside the table, where it can be copied as a whole
                console.print(f"{row.name}: {row.missing}", soft_wrap=True, markup=False, highlight=False)
        return 0
