"""One setting's value against its field: taken, or refused in a sentence that says what it must be.

Knows types and bounds from the fields alone; which names there are, and what goes before what, is
`given`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.inspect as types

from treadle.config.settings import EngineSettings, PresetName, ServerSettings
from treadle.errors import StartError

OWN = ("preset", "usage", "bounds", "given")
"""Of EngineSettings itself, beside its sections."""


def _types() -> dict[str, Any]:
    sections = [
        field.type for field in msgspec.structs.fields(EngineSettings) if field.name not in OWN
    ]
    return {
        field.name: field.type
        for section in (*sections, ServerSettings)
        for field in msgspec.structs.fields(section)
    }


TYPES: Mapping[str, Any] = {"preset": PresetName, **_types()}
"""Setting → its type."""


def check(name: str, value: object, *, where: str = "", strict: bool = False) -> None:
    """Raises StartError unless the setting takes the value. Text may stand for a number only where
    `strict` is off, as on a command line. A key is never repeated."""
    try:
        found = msgspec.convert(value, TYPES[name], strict=strict)
    except msgspec.ValidationError:
        pass
    else:
        if not isinstance(found, float) or math.isfinite(found):
            return
    said = "" if name.endswith("api_key") else f" is {_shown(value)}"
    raise StartError(f"{where}{name}{said}: it must be {_wanted(types.type_info(TYPES[name]))}")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _wanted(kind: types.Type) -> str:
    """What values of a type are, in words."""
    match kind:
        case types.Metadata():
            text = _wanted(kind.type)
        case types.UnionType():
            text = _wanted(next(t for t in kind.types if not isinstance(t, types.NoneType)))
        case types.LiteralType():
            text = f"one of {', '.join(str(value) for value in kind.values)}"
        case types.ListType():
            text = f"a list, each of it {_wanted(kind.item_type)}"
        case types.BoolType():
            text = "true or false"
        case types.IntType():
            text = f"a whole number{_bounds(kind)}"
        case types.FloatType():
            text = f"a number{_bounds(kind)}"
        case types.StrType():
            text = "text that is not empty" if kind.min_length else "text"
        case _:
            raise AssertionError(kind)
    return text


def _bounds(kind: types.IntType | types.FloatType) -> str:
    low = f"above {kind.gt:g}" if kind.gt is not None else ""
    low = f"at least {kind.ge:g}" if kind.ge is not None else low
    high = f"below {kind.lt:g}" if kind.lt is not None else ""
    high = f"at most {kind.le:,}" if kind.le is not None else high
    found = " and ".join(part for part in (low, high) if part)
    return f", {found}" if found else ""
