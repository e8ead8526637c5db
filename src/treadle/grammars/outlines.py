"""Grammars by outlines-core: one finite automaton over tokens, built when compiling.

An extra. Everything becomes a regular expression, so there is no recursion and there are no
grammars; a mask is a row of a table. Nothing else imports it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import outlines_core
from outlines_core.json_schema import build_regex_from_schema

from treadle.errors import InvalidRequest
from treadle.grammars.lark import choice_regex
from treadle.grammars.limits import AUTOMATON_REGEX_CHARS, AUTOMATON_REPEATS, WHITESPACE
from treadle.grammars.ports import MaskWords
from treadle.grammars.replayed import ReplayedMatcher
from treadle.grammars.schema import Place, Rule, audit, check_ends, listed
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

_STATE_BYTES = 2048
"""A row of the table, roughly."""


def _closed(place: Place) -> str | None:
    """Listed properties are all there are, in any case."""
    if place.schema["additionalProperties"] is False or "properties" not in place.schema:
        return None
    return "beside 'properties' must be false: the library adds none to those listed"


def _acyclic(place: Place) -> str | None:
    reference = place.schema["$ref"]
    inside = isinstance(reference, str) and place.pointer.startswith(reference.rstrip("/") + "/")
    return "goes in circles, which a regular expression cannot" if inside else None


ENFORCED: dict[str, Rule | None] = {
    **dict.fromkeys(("type", "enum", "const", "$defs", "definitions", "anyOf")),
    **dict.fromkeys(("properties", "items", "minItems", "maxItems")),
    **dict.fromkeys(("minLength", "maxLength")),
    "additionalProperties": _closed,
    "$ref": _acyclic,
    "required": listed,
}
"""What random walks found kept, judged by jsonschema."""


class Outlines:
    """The backend. Its vocabulary is the library's, built once."""

    name = "outlines"

    def __init__(self, table: TokenTable) -> None:
        ids: dict[bytes, list[int]] = {}
        for token, spelling in enumerate(table.spellings):
            if spelling:
                ids.setdefault(spelling, []).append(token)
        self._vocabulary = outlines_core.Vocabulary(table.eos_ids[0], ids)
        self._table = table

    def compile(self, constraint: Constraint) -> OutlinesGrammar:
        """See GrammarBackend."""
        regex = self._regex(constraint)
        repeats = [int(count) for count in re.findall(r"\{(?:\d*,)?(\d+),?\}", regex)]
        if len(regex) > AUTOMATON_REGEX_CHARS or any(n > AUTOMATON_REPEATS for n in repeats):
            raise InvalidRequest(
                f"the {constraint.kind} is too large for an automaton: the grammar backend "
                f"outlines takes regexes of {AUTOMATON_REGEX_CHARS} characters and "
                f"{AUTOMATON_REPEATS} repeats"
            )
        try:
            index = outlines_core.Index(regex, self._vocabulary)
        except ValueError as error:
            raise _refusal(constraint, error) from None
        return OutlinesGrammar(index, self._table)

    def _regex(self, constraint: Constraint) -> str:
        text = constraint.text
        match constraint.kind:
            case "regex":
                return text
            case "choice":
                return choice_regex(msgspec.json.decode(text))
            case "json_schema" | "json_object":
                return _schema_regex(text or '{"type":"object"}', constraint)
            case kind:
                raise InvalidRequest(
                    f"the grammar backend outlines has no {kind}: it knows regular expressions only"
                )


class OutlinesGrammar:
    """An automaton, which matchers share."""

    def __init__(self, index: Any, table: TokenTable) -> None:
        self._index = index
        self._table = table
        self.num_bytes = _STATE_BYTES * len(index.get_transitions())

    def matcher(self) -> ReplayedMatcher:
        """See Grammar."""
        return ReplayedMatcher(lambda: _Walker(self._index), self._table.eos_ids)


class _Walker:
    def __init__(self, index: Any) -> None:
        self._guide = outlines_core.Guide(index, 0)

    def fill(self, words: MaskWords) -> None:
        self._guide.write_mask_into(words.ctypes.data, words.size, words.itemsize)

    def step(self, token: int) -> bool:
        try:
            self._guide.advance(token, False)
        except ValueError:
            return False
        return True

    @property
    def is_complete(self) -> bool:
        return bool(self._guide.is_finished())


def _schema_regex(text: str, constraint: Constraint) -> str:
    schema = msgspec.json.decode(text)
    if isinstance(schema, bool):
        raise InvalidRequest("the grammar backend outlines takes no truth value for a schema")
    audit(schema, "outlines", ENFORCED)
    check_ends(schema)
    space = WHITESPACE if constraint.whitespace is None else constraint.whitespace
    try:
        regex: str = build_regex_from_schema(text, space)
    except ValueError as error:
        raise _refusal(constraint, error) from None
    return regex


def _refusal(constraint: Constraint, error: ValueError) -> InvalidRequest:
    first = str(error).strip().splitlines()[0]
    return InvalidRequest(f"the {constraint.kind} cannot be compiled: {first:.300}")
