"""From names and values, as they come from a command line, a caller or a file, to settings.

Knows which section a name belongs to, what other engines call it, and what goes before what: an
argument before the environment, that before a file, all before preset and default.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from treadle.config.aliases import ALIASES, Alias, meaning
from treadle.config.fields import OWN, check
from treadle.config.file import read_settings
from treadle.config.settings import EngineSettings, Given, ServerSettings
from treadle.errors import StartError


def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(kind))


SECTIONS: Mapping[str, frozenset[str]] = {
    **{
        section.name: _names(section.type)
        for section in msgspec.structs.fields(EngineSettings)
        if section.name not in OWN
    },
    "server": _names(ServerSettings),
}
"""Section → its settings."""

PLACES: Mapping[str, str] = {name: section for section, names in SECTIONS.items() for name in names}


def engine_settings(given: Mapping[str, object]) -> EngineSettings:
    """Sort flat names into sections; None means "not given". Beside the settings' own names there
    may be `preset`, `config`, `usage`, those that other engines use, and `given`, which says how
    each was given.

    Raises StartError for a name that nobody knows, or a value that its field does not take.
    """
    own = {name: value for name, value in given.items() if name in OWN and value is not None}
    marks: dict[str, Any] = dict(own.pop("given", None) or {})  # type: ignore[call-overload]
    rest = {n: v for n, v in given.items() if n not in (*OWN, "config") and v is not None}
    values = _without_aliases(rest, marks)
    path = given.get("config")
    if path is not None:
        for name, value in _from_file(path).items():
            if name == "preset":
                own.setdefault("preset", value)
            elif name not in values and given.get(name) is None:
                marks.setdefault(name, Given("config file", f"in {path}"))
                if name not in SECTIONS["server"]:
                    values[name] = value
    _check_contradictions(marks, values)
    sections: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        check(name, value)
        sections.setdefault(PLACES[name], {})[name] = value
    if "preset" in own:
        check("preset", own["preset"])
    return msgspec.convert({**own, "given": marks, **sections}, EngineSettings, strict=False)


def server_settings(given: Mapping[str, object], config: object = None) -> ServerSettings:
    """The settings of these names, and those of the file's [server]; None means "not given". An
    error repeats no key."""
    present: dict[str, object] = {}
    if config is not None:
        present = {n: v for n, v in _from_file(config).items() if n in SECTIONS["server"]}
    present |= {name: value for name, value in given.items() if value is not None}
    for name, value in present.items():
        check(name, value)
    return msgspec.convert(present, ServerSettings)


def _from_file(path: object) -> dict[str, Any]:
    """A file's settings, each checked where it stands: an error names the file and the table."""
    content = read_settings(str(path), SECTIONS)
    for name, value in content.items():
        table = f"[{PLACES[name]}] " if name in PLACES else ""
        check(name, value, where=f"{path}: {table}", strict=True)
    return content


def _check_contradictions(marks: Mapping[str, Any], values: Mapping[str, object]) -> None:
    """A flag that asks for what runs anyway has no setting, so a setting may contradict it."""
    for words in marks:
        alias = ALIASES.get(words.lstrip("-").partition("=")[0].replace("-", "_"))
        if alias is not None and alias.against is not None:
            setting, value = alias.against
            if values.get(setting) == value:
                raise StartError(f"{words} asks for what {setting} {value} turns off")


def _without_aliases(given: Mapping[str, object], marks: dict[str, Any]) -> dict[str, object]:
    """Our names alone; what others became is noted."""
    values: dict[str, object] = {}
    for name, value in given.items():
        if name in PLACES and PLACES[name] != "server":
            found: Mapping[str, object] = {name: value}
        else:
            alias = _alias(name, value)
            if alias is None:
                continue
            words = f"{name}={value}"
            found, note = meaning(alias, words, value)
            for setting in found or (words,):
                marks[setting] = Given("argument", words, note)
        for setting, meant in found.items():
            before = values.setdefault(setting, meant)
            same = before is meant or before == meant
            if not same or (setting in given and setting != name):
                raise StartError(f"{setting} is set twice, once by {name}")
    return values


def _alias(name: str, value: object) -> Alias | None:
    """None for a switch that is off, where that asks for nothing."""
    alias = ALIASES.get(name)
    if alias is None or (alias.setting and PLACES[alias.setting] == "server"):
        close = difflib.get_close_matches(name, [n for n in PLACES if PLACES[n] != "server"], n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise StartError(f"there is no setting {name!r}{hint}")
    if alias.takes == "nothing" and not value:
        return ALIASES.get(f"no_{name}")
    return alias
