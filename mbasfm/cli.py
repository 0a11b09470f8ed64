"""The command ``mba``: one frozen dataclass per subcommand, one line per error."""

import json
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from mbasfm import __version__
from mbasfm.config import PRESETS, Config, Preset
from mbasfm.demo import Demo, run_demo
from mbasfm.errors import ConfigError, MBAError
from mbasfm.export import KINDS, Kind, export_scene
from mbasfm.io.settings import read_config, write_config
from mbasfm.models.registry import list_models
from mbasfm.pipeline import reconstruct
from mbasfm.reconstruction import Reconstruction
from mbasfm.watch import Watch

EXIT_ERROR = 2
EXIT_NOTHING = 3
"""No photograph could be placed."""
EXIT_INTERRUPTED = 130
CONFIG_NAME = "config.toml"
BASE: ContextVar[Config] = ContextVar("settings that options change")
DESCRIPTION = "Camera poses by marginalized bundle adjustment. `mba --version` prints the version."


@dataclass(frozen=True)
class Sfm:
    """Camera poses of a folder of photographs, as a COLMAP model and what trainers and viewers want beside it."""

    photos: tyro.conf.Positional[Path]
    """Folder (searched through), text file with one path per line, or video."""
    output: Path
    """Folder for models, images, depth and all other files of the scene; made if it does not exist."""
    preset: Preset = "default"
    """Where settings start from: fewer samples and tracks, or more."""
    config: Path | None = None
    """TOML file with settings; options on the command line win."""
    resume: bool = False
    """Take the settings of the run that OUTPUT holds and go on where it stopped."""
    cache: Path | None = None
    """Where features, depth and matches are kept; by default inside OUTPUT."""
    quiet: bool = False
    """Print errors only."""
    verbose: bool = False
    """Print all facts of every stage."""
    json: bool = False
    """Print the summary as JSON on standard output."""
    settings: tyro.conf.OmitArgPrefixes[Config] = field(default_factory=BASE.get)


@dataclass(frozen=True)
class Export:
    """Make files of a finished scene again, from its sparse/, depth/*.npz and images/."""

    scene: tyro.conf.Positional[Path]
    """The --output of mba sfm."""
    format: Kind | Literal["all"] = "all"
    """Which files: see docs/sfm.md."""


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
        command = _parse(arguments)
        if isinstance(command, Sfm):
            return run_sfm(command)
        if isinstance(command, Export):
            run_export(command)
        elif isinstance(command, Demo):
            run_demo(command)
        else:
            show_models(command)
    except MBAError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("stopped; run the same command again, or with --resume, to go on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _parse(arguments: list[str]) -> Any:
    """The chosen subcommand. Presets and files of settings come first: they are the defaults of all other options."""
    BASE.set(_base_settings(arguments))
    commands = (
        Annotated[Sfm, tyro.conf.subcommand("sfm")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Demo, tyro.conf.subcommand("demo")]
        | Annotated[Models, tyro.conf.subcommand("models")]
    )
    return tyro.cli(commands, prog="mba", description=DESCRIPTION, args=arguments)


def _base_settings(arguments: Sequence[str]) -> Config:
    preset = _value_of(arguments, "--preset") or "default"
    if preset not in PRESETS:
        return Config()  # tyro will say which presets there are
    settings = PRESETS[preset]
    output = _value_of(arguments, "--output")
    if "--resume" in arguments and output is not None:
        saved = Path(output) / CONFIG_NAME
        if not saved.is_file():
            raise ConfigError(f"{output}: no {CONFIG_NAME} there, so no run to resume; leave out --resume to start one")
        settings = read_config(saved, settings)
    config = _value_of(arguments, "--config")
    return settings if config is None else read_config(Path(config), settings)


def _value_of(arguments: Sequence[str], option: str) -> str | None:
    """The value that follows an option, in either spelling."""
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def run_sfm(command: Sfm) -> int:
    """Reconstruct, write, and say what came out; returns the exit code."""
    try:
        command.output.mkdir(parents=True, exist_ok=True)
        write_config(command.output / CONFIG_NAME, command.settings)
    except OSError as error:
        raise ConfigError(f"{command.output}: cannot be written ({error}); choose another --output") from error
    console = Console(stderr=True, quiet=command.quiet)
    watch = Watch(console, command.verbose)
    result = reconstruct(command.photos, command.output, command.settings, command.cache, watch)
    _summarise(result, command.output, console)
    if command.json:
        print(json.dumps(_summary(result, command.output), indent=1))
    return 0 if bool(result.registered.any()) else EXIT_NOTHING


def _summary(result: Reconstruction, output: Path) -> dict[str, Any]:
    rows = result.report["images"]
    return {
        "output": str(output),
        "photographs": len(rows),
        "registered": int(result.registered.sum()),
        "components": [model.num_images() for model in result.models],
        "missing": {row["name"]: row["reason"] for row in rows if row["component"] < 0},
        "seconds": sum(stage["seconds"] for stage in result.report["stages"]),
    }


def _summarise(result: Reconstruction, output: Path, console: Console) -> None:
    for row in result.report["images"]:
        if row["component"] < 0:
            console.print(f"not registered: {row['name']}: {row['reason']}", highlight=False)
    registered, total = int(result.registered.sum()), len(result.registered)
    console.print(f"{registered} of {total} photographs registered in {len(result.models)} component(s)")
    for number, model in enumerate(result.models):
        console.print(
            f"  {output / 'sparse' / str(number)}: {model.num_images()} images, {model.num_points3D()} points,"
            f" mean error {model.compute_mean_reprojection_error():.2f} px",
            highlight=False,
        )
    console.print(f"look at {output / 'report.html'}", highlight=False, soft_wrap=True)


def run_export(command: Export) -> None:
    """Write, and say how many files of each kind."""
    kinds = KINDS if command.format == "all" else (command.format,)
    for kind, written in export_scene(command.scene, kinds).items():
        more = f" and {len(written) - 1} more" if len(written) > 1 else ""
        print(f"{kind}: {written[0]}{more}" if written else f"{kind}: nothing to do")


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
