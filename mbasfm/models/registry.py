"""Models by name, through entry points: ours and those of other packages come in by the same door."""

import difflib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from mbasfm.errors import MBAError, ModelNotFoundError

Kind = Literal["depth", "matcher"]


def installed(kind: Kind) -> dict[str, EntryPoint]:
    """Names of all installed models of a kind."""
    return {point.name: point for point in entry_points(group=f"mbasfm.{kind}")}


def load_model(kind: Kind, spec: str) -> Any:
    """The model that ``NAME`` or ``NAME:ARGUMENT`` stands for; only its own module is imported."""
    name, _, argument = spec.partition(":")
    known = installed(kind)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ModelNotFoundError(f"no {kind} model named {name!r}; {hint}installed: {', '.join(sorted(known))}")
    return known[name].load()(argument)


@dataclass(frozen=True)
class ModelRow:
    """One line of `mba models`."""

    kind: str
    name: str
    licence: str
    missing: str
    """Empty if it can run now, otherwise what to do first."""


def list_models() -> list[ModelRow]:
    """All installed models and whether they can run now."""
    rows = []
    kinds: tuple[Kind, ...] = ("depth", "matcher")
    for kind in kinds:
        for name, point in sorted(installed(kind).items()):
            try:
                model = point.load()
                rows.append(ModelRow(kind, name, getattr(model, "licence", "?"), model.missing()))
            except (ImportError, MBAError) as error:
                rows.append(ModelRow(kind, name, "?", str(error)))
    return rows
