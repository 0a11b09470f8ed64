"""The command ``mba``: one frozen dataclass per subcommand, one line per error."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from mbasfm import __version__
from mbasfm.demo import Demo, run_demo
from mbasfm.errors import MBAError
from mbasfm.models.registry import list_models

EXIT_ERROR = 2
DESCRIPTION = "Camera poses by marginalized bundle adjustment. `mba --version` prints the version."


@dataclass(frozen=True)
class Models:
    """List depth models and matchers with their licence and whether they can run now."""

    json: bool = False
    """Print JSON instead of a table."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Wrong options leave through tyro with code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"mba {__version__}")
        return 0
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            {"demo": Demo, "models": Models}, prog="mba", description=DESCRIPTION, args=arguments
        )
        if isinstance(command, Demo):
            run_demo(command)
        else:
            show_models(command)
    except MBAError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def show_models(options: Models) -> None:
    """Print one line per installed model."""
    rows = list_models()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table("kind", "name", "licence", "can run now", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(row.kind, row.name, row.licence, row.missing or "yes")
    Console().print(table)
