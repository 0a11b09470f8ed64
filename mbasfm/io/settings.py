"""Configurations as TOML: read with suggestions for typos, written so that a run can be repeated."""

import difflib
import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from mbasfm.config import Config
from mbasfm.errors import ConfigError
from mbasfm.io.text_files import write_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


LARGEST = 1e300
"""Bound of accepted numbers: an integer may be larger than any float."""


def read_config(path: Path, base: Config) -> Config:
    """The base changed by the file's settings; unknown keys and values of the wrong type are refused."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not readable as TOML ({error})") from error
    types = {field.name: field.type for field in fields(Config)}
    for key, value in content.items():
        if key not in types:
            close = difflib.get_close_matches(key, types, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(types)}"
            raise ConfigError(f"{path}: unknown setting {key!r}; {hint}")
        if not _fits(value, types[key]):
            raise ConfigError(f"{path}: {key} = {value!r} does not fit; expected {_name(types[key])}")
    return replace(base, **{key: _as(value, types[key]) for key, value in content.items()})


def write_config(path: Path, config: Config) -> None:
    """Write every setting that has a value, one per line."""
    # JSON's strings, numbers and truth values are written as in TOML.
    lines = [f"{key} = {json.dumps(value)}" for key, value in asdict(config).items() if value is not None]
    write_text(path, "\n".join(lines) + "\n")


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
    if isinstance(kind, type):
        return type(value) is kind
    options = get_args(kind)
    if str(get_origin(kind)) == "typing.Literal":
        return value in options
    return any(_fits(value, option) for option in options if option is not type(None))


def _as(value: Any, kind: Any) -> Any:
    """Value as the kind of a setting; integers are accepted for floats."""
    wants_float = kind is float or float in get_args(kind)
    return float(value) if wants_float and isinstance(value, int) else value


def _name(kind: Any) -> str:
    if isinstance(kind, type):
        return {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a text"}[kind.__name__]
    options = [option for option in get_args(kind) if option is not type(None)]
    return " or ".join(repr(option) if isinstance(option, str) else _name(option) for option in options)
