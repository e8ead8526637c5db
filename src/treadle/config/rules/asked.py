"""What the user asked for, and otherwise what the preset would have."""

from __future__ import annotations

from typing import Any

from treadle.config.presets import wish
from treadle.config.settings import Given
from treadle.config.view import Choice, View

ARGUMENT = Given("argument")


def asked_for(see: View, name: str, value: Any, remark: str = "") -> Choice:
    """The setting as the user has given it; `remark` goes on with what it depends on."""
    given = see.user.given.get(name, ARGUMENT)
    sentence = "; ".join(part for part in (given.words, given.note) if part) or "asked for"
    return Choice(value, given.source, sentence + remark)


def chosen(see: View, name: str, asked: Any) -> Choice:
    """The user's choice, or the preset's."""
    return wish(see, name) if asked is None else asked_for(see, name, asked)
