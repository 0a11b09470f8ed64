"""Settings as options of the command line, under the headings of their groups."""

import ast
import contextlib
import inspect
from dataclasses import field, fields, make_dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from mbasfm.config import Common, Group, grouped


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
