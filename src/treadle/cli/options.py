"""Command-line options out of the settings' types: one per field, its description as the help.

The types are the one description of what may be set; nothing about a field is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import click
import msgspec
import msgspec.inspect as types
from click.core import ParameterSource

from treadle.cli.flags import MARKS
from treadle.config.settings import (
    CacheSettings,
    Given,
    ModelSettings,
    OrderSettings,
    PolicySettings,
    PresetName,
    RuntimeSettings,
    ScheduleSettings,
)

ENGINE_SECTIONS: tuple[type[msgspec.Struct], ...] = (
    ModelSettings,
    CacheSettings,
    ScheduleSettings,
    PolicySettings,
    OrderSettings,
    RuntimeSettings,
)

_COMMON = (
    click.option(
        "--preset",
        type=click.Choice(get_args(PresetName)),
        help="Whose defaults to use; every one gives way to an option.",
    ),
    click.option("--config", metavar="FILE", help="Read settings from this TOML file."),
)

_SCALARS: dict[type[types.Type], click.ParamType[Any]] = {
    types.StrType: click.STRING,
    types.BoolType: click.BOOL,
}


def settings_options(
    *sections: type[msgspec.Struct], without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds an option for every field of the sections, and --preset and --config
    to the engine's."""
    options: list[Callable[[Any], Any]] = list(_COMMON) if ModelSettings in sections else []
    options += [
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


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's options those that were given, and under `given` how, where it was not plainly
    as an argument. What is left may come from a file, a preset or a default."""
    context = click.get_current_context()
    marks: dict[str, Given] = dict(context.meta.get(MARKS, {}))
    given = {}
    for name, value in options.items():
        source = context.get_parameter_source(name)
        if source in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
            continue
        if source == ParameterSource.ENVIRONMENT:
            marks[name] = Given("environment", f"TREADLE_{name.upper()}")
        given[name] = value
    return {**given, "given": marks}


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
        bounded = (kind.ge, kind.le) != (None, None)
        return click.IntRange(min=kind.ge, max=kind.le) if bounded else click.INT
    if isinstance(kind, types.FloatType):
        return click.FloatRange(
            min=kind.gt if kind.ge is None else kind.ge,
            max=kind.lt if kind.le is None else kind.le,
            min_open=kind.ge is None and kind.gt is not None,
            max_open=kind.le is None and kind.lt is not None,
        )
    return _SCALARS[type(kind)]
