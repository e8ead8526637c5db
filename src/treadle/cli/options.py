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
    types.BoolType: click.BOOL,
}


def settings_options(
    *sections: type[msgspec.Struct], without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds an option for every field of the sections."""
    options = [
        _option(field)
        for section in sections
        for field in _fields(section)
        if field.name not in without
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _option(field: types.Field) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A list is an option that may be repeated, a switch comes in two spellings, and a key may also
    stand in the environment, where the list of processes does not show it."""
    text, kind = _described(field)
    name = field.encode_name.replace("_", "-")
    switch = isinstance(kind, types.BoolType)
    many = isinstance(kind, types.ListType)
    # An empty list is made anew for each struct, so it is no default that could be shown.
    open_ended = many or field.default in (None, msgspec.NODEFAULT)
    return click.option(
        f"--{name}/--no-{name}" if switch else f"--{name}",
        field.name,
        type=_click_type(kind.item_type if isinstance(kind, types.ListType) else kind),
        help=text,
        default=None if open_ended else field.default,
        show_default=not open_ended,
        multiple=many,
        envvar=f"TREADLE_{field.name.upper()}" if name.endswith("api-key") else None,
    )


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
    if isinstance(kind, types.FloatType):
        low, high = kind.gt if kind.ge is None else kind.ge, kind.le
        return click.FloatRange(min=low, max=high, min_open=kind.ge is None)
    return _SCALARS[type(kind)]
