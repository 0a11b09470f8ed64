"""The command ``mba``: settings as options, parse, run one subcommand, one line per error."""

import ast
import contextlib
import inspect
import operator
import sys
import warnings
from collections.abc import Sequence
from dataclasses import field, fields, make_dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from mbasfm import __version__
from mbasfm.commands.bench import Bench
from mbasfm.commands.demo import Demo
from mbasfm.commands.eval import Eval
from mbasfm.commands.export import Export
from mbasfm.commands.localize import Localize
from mbasfm.commands.models import Models
from mbasfm.commands.pair import Pair
from mbasfm.commands.report import Report
from mbasfm.commands.sfm import CONFIG_NAME, Sfm
from mbasfm.commands.view import View
from mbasfm.config import PRESETS, Common, Config, Group, LocalizeConfig, grouped
from mbasfm.errors import ConfigError, MBAError
from mbasfm.io.files import read_config

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
DESCRIPTION = "Camera poses by marginalized bundle adjustment. `mba --version` prints the version."
COMMANDS: dict[str, type] = {
    "sfm": Sfm,
    "localize": Localize,
    "view": View,
    "pair": Pair,
    "export": Export,
    "report": Report,
    "eval": Eval,
    "bench": Bench,
    "demo": Demo,
    "models": Models,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Wrong options leave through tyro with code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"mba {__version__}")
        return 0
    warnings.filterwarnings("ignore", category=UserWarning, module="PIL")  # of metadata that it leaves out
    try:
        return int(parse(arguments).run())
    except MBAError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        print(f"error: {error}; what was computed so far is kept and found again", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("stopped; run the same command again, or with --resume, to go on from here", file=sys.stderr)
        return EXIT_INTERRUPTED


def parse(arguments: list[str]) -> Any:
    """The chosen subcommand. Presets and files of settings come first: they are the defaults of all other options."""
    choices: Any = reduce(
        operator.or_, (Annotated[command, tyro.conf.subcommand(name)] for name, command in COMMANDS.items())
    )
    with options(_base_settings(arguments), LocalizeConfig()):
        return tyro.cli(choices, prog="mba", description=DESCRIPTION, args=arguments)


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


def options(*starts: Common) -> ConstructorRegistry:
    """Rules by which tyro makes options of settings, group by group; options not given keep the value of the start."""

    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        return next((_from_groups(start) for start in starts if type(start) is info.type), None)

    registry = ConstructorRegistry()
    registry.struct_rule(rule)
    return registry


def _from_groups(start: Common) -> StructConstructorSpec:
    """How settings are put together from their groups."""

    def instantiate(**groups: Any) -> Common:
        return replace(start, **{name: value for group in groups.values() for name, value in vars(group).items()})

    types = _explained_types(type(start))
    return StructConstructorSpec(instantiate, tuple(_part(*item, types) for item in grouped(start).items()))


def _part(group: Group, values: dict[str, Any], types: dict[str, Any]) -> StructFieldSpec:
    """One group as a class of its own, because tyro has a heading for each class; options do not show its name."""
    items = [(name, types[name], field(default=value)) for name, value in values.items()]
    part = make_dataclass(group.name, items, frozen=True, namespace={"__doc__": group.about})
    bare: Any = Annotated[part, tyro.conf.OmitArgPrefixes]
    return StructFieldSpec(name=group.name, type=bare, default=part())


def _explained_types(kind: type[Common]) -> dict[str, Any]:
    """The type of each setting, with the text that explains it."""
    texts = _texts(kind)
    return {item.name: Annotated[item.type, tyro.conf.arg(help=texts.get(item.name))] for item in fields(kind)}


def _texts(kind: type) -> dict[str, str]:
    """The text below each field, as it stands in the source of a class and its bases."""
    found: dict[str, str] = {}
    # Without the source, as in some frozen applications, options work but are not explained.
    with contextlib.suppress(OSError):
        for base in reversed(kind.__mro__[:-1]):
            for item, below in pairwise(_body(base)):
                match item, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = text
    return found


def _body(kind: type) -> list[ast.stmt]:
    """Statements of a class."""
    tree = ast.parse(inspect.getsource(kind))
    return next(node.body for node in tree.body if isinstance(node, ast.ClassDef))
