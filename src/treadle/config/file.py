"""Settings out of a TOML file: a table for each section, and above them the preset.

preset = "vllm"

[model]
max_model_len = 4096

[server]
port = 9000
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.config.aliases import ALIASES
from treadle.errors import StartError


def read_settings(path: str | Path, sections: Mapping[str, frozenset[str]]) -> dict[str, Any]:
    """The file's settings by name; `sections` has the names in each. Raises StartError naming the
    file, and the nearest known name for one that is not known."""
    try:
        with Path(path).open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"{path}: not TOML: {error}") from None
    found: dict[str, Any] = {}
    for key, value in content.items():
        if key == "preset":
            found[key] = value
        elif key not in sections:
            raise StartError(f"{path}: {_unknown(key, sections)}")
        elif not isinstance(value, dict):
            raise StartError(f"{path}: {key} is a table of settings, [{key}], not a value")
        else:
            for name in value:
                _require(path, key, name, sections)
            found |= value
    return found


def _require(
    path: str | Path, section: str, name: str, sections: Mapping[str, frozenset[str]]
) -> None:
    if name in sections[section]:
        return
    raise StartError(f"{path}: [{section}] has no {name!r}; {_near(name, sections)}")


def _unknown(key: str, sections: Mapping[str, frozenset[str]]) -> str:
    named = [section for section, names in sections.items() if key in names]
    if named:
        return f"{key!r} belongs under [{named[0]}]"
    tables = ", ".join(f"[{section}]" for section in sections)
    close = difflib.get_close_matches(key, ["preset", *sections], n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"there is no {key!r}; a file has preset, and the tables {tables}{meant}"


def _near(name: str, sections: Mapping[str, frozenset[str]]) -> str:
    """Where the name belongs, or the nearest that is known."""
    places = {known: section for section, names in sections.items() for known in names}
    alias = ALIASES.get(name)
    beside = ""
    if alias is not None and alias.setting in places:
        name = alias.setting
        beside = f', with kv_memory_rule = "{alias.rule}" beside it' if alias.rule else ""
    if name in places:
        return f"it is {name} under [{places[name]}]{beside}"
    close = difflib.get_close_matches(name, places, n=1, cutoff=0.0)
    return f"the nearest is {close[0]} under [{places[close[0]]}]"
