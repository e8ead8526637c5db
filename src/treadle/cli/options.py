"""Command-line options out of the settings' types: one per field, its description as the help.

The types are the one description of what may be set; nothing about a field is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec
import msgspec.inspect as types

from treadle.config.settings import (
    CacheSettings,
    ModelSettings,
    RuntimeSettings,
    ScheduleSettings,
)

ENGINE_SECTIONS: tuple[type[msgspec.Struct], ...] = (
    ModelSettings,
    CacheSettings,
    ScheduleSettings,
    RuntimeSettings,
)

_SCALARS: dict[type[types.Type], click.ParamType[Any]] = {
    types.StrType: click.STRING,
    types.FloatType: click.FLOAT,
    types.BoolType: click.BOOL,
}


def settings_options(
    *sections: type[msgspec.Struct], without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds an option for every field of the sections."""
    options = [
        click.option(
            _flag(field),
            field.name,
            type=_click_type(_described(field)[1]),
            help=_described(field)[0],
            default=None if field.default in (None, msgspec.NODEFAULT) else field.default,
            show_default=field.default is not None,
        )
        for section in sections
        for field in _fields(section)
        if field.name not in without
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _flag(field: types.Field) -> str:
    name = field.encode_name.replace("_", "-")
    is_switch = isinstance(_described(field)[1], types.BoolType)
    return f"--{name}/--no-{name}" if is_switch else f"--{name}"


def _fields(kind: type[msgspec.Struct]) -> tuple[types.Field, ...]:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    return info.fields


def _described(field: types.Field) -> tuple[str, types.Type]:
    """A field's description and its type, without the None that means "choose for me"."""
    kind = field.type
    assert isinstance(kind, types.Metadata), f"{field.name} has no description"
    text = (kind.extra_json_schema or {})["description"]
    return text, next(_alternatives(kind.type))


def _alternatives(kind: types.Type) -> Iterator[types.Type]:
    members = kind.types if isinstance(kind, types.UnionType) else (kind,)
    return (member for member in members if not isinstance(member, types.NoneType))


def _click_type(kind: types.Type) -> click.ParamType[Any]:
    if isinstance(kind, types.LiteralType):
        return click.Choice([str(value) for value in kind.values])
    if isinstance(kind, types.IntType):
        return click.IntRange(min=kind.ge, max=kind.le)
    return _SCALARS[type(kind)]
