"""Figures that others published: data with a source, shown beside measured ones and never mixed with them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from mbasfm.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Value = float | str


@dataclass(frozen=True)
class PublishedTable:
    """One table of a paper."""

    title: str
    source: str
    columns: tuple[str, ...]
    """Names of measures, as in mbasfm.evaluation.protocols."""
    rows: Mapping[str, Mapping[str, tuple[Value, ...]]]
    """Values by scene (or ``mean``) and method; text where there is no figure."""
    variant: str = ""
    """Variant of the recipe; empty for all."""
    scale: float = 1.0
    """Factor from the table's figures to our units."""
    notes: tuple[str, ...] = ()
    """Notes on where the paper contradicts itself, or means something else than its heading says."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the table."""
        return tuple(dict.fromkeys(method for row in self.rows.values() for method in row))

    def value(self, scene: str, method: str, measure: str) -> Value | None:
        """Figure in our units; None if the table has none."""
        values = self.rows.get(scene, {}).get(method)
        if values is None or measure not in self.columns:
            return None
        value = values[self.columns.index(measure)]
        return value if isinstance(value, str) else value * self.scale


def load_published(name: str) -> tuple[PublishedTable, ...]:
    """All tables of a file of the package; NAME:VARIANT gives those of one variant, to stand beside all variants."""
    name, _, only = name.partition(":")
    path = files("mbasfm").joinpath("bench", "published", f"{name}.toml")
    if not path.is_file():
        raise ConfigError(f"no published figures are named {name!r}")
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    source, notes = content["source"], tuple(content.get("notes", ()))
    tables = []
    for table in content["tables"]:
        if only and table.get("variant") != only:
            continue
        rows = {
            scene: {method: tuple(values) for method, values in row.items()} for scene, row in table["rows"].items()
        }
        tables.append(
            PublishedTable(
                table["title"],
                f"{source}, {table['label']}",
                tuple(table["columns"]),
                rows,
                "" if only else table.get("variant", ""),
                float(table.get("scale", 1.0)),
                notes + tuple(table.get("notes", ())),
            )
        )
    return tuple(tables)
