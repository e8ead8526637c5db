"""Grammars by lm-format-enforcer: parsers of characters, in Python, over a tree of the vocabulary.

An extra, for those who want what it alone allows, such as properties in any order. A mask is made
in Python, milliseconds where others take microseconds. Nothing else imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lmformatenforcer
import msgspec
import numpy as np
from lmformatenforcer.characterlevelparser import CharacterLevelParser

from treadle.errors import InvalidRequest
from treadle.grammars.ports import MaskWords
from treadle.grammars.replayed import ReplayedMatcher
from treadle.grammars.schema import Place, Rule, audit, check_ends, listed
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

_GRAMMAR_BYTES = 64 * 1024


def _closed(place: Place) -> str | None:
    """Listed properties are all there are, in any case."""
    return None if place.schema["additionalProperties"] is False else "must be false"


def _type(place: Place) -> str | None:
    kinds = place.schema["type"]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "integer" in kinds:
        return "is 'integer': the library takes numbers such as 1e-3 for one"
    if "string" in kinds and not {"enum", "const"} & {*place.schema}:
        return "is 'string' without 'enum': the library may end one without its quote"
    return None


def _texts(place: Place) -> str | None:
    values = place.schema["enum"]
    plain = isinstance(values, list) and all(
        isinstance(value, str) and value.isalnum() for value in values
    )
    return None if plain else "must hold texts of letters and digits: the library escapes none"


def _text(place: Place) -> str | None:
    value = place.schema["const"]
    plain = isinstance(value, str) and value.isalnum()
    return None if plain else "must be a text of letters and digits: the library escapes none"


ENFORCED: dict[str, Rule | None] = {
    **dict.fromkeys(("$defs", "definitions", "$ref", "properties", "anyOf")),
    **dict.fromkeys(("items", "minItems", "maxItems")),
    "additionalProperties": _closed,
    "type": _type,
    "required": listed,
    "enum": _texts,
    "const": _text,
}
"""What random walks found kept, judged by jsonschema."""


class LMFormatEnforcer:
    """The backend. The tree of the vocabulary is built once, in Python."""

    name = "lm-format-enforcer"

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._any = _tree(table, bool)
        # The library takes strings of JSON for any text. Those of these tokens are JSON.
        self._json = _tree(table, lambda text: min(text) >= " " and "\\" not in text)

    def compile(self, constraint: Constraint) -> LMFormatEnforcerGrammar:
        """See GrammarBackend."""
        make = _parser(constraint)
        json = constraint.kind.startswith("json")
        grammar = LMFormatEnforcerGrammar(make, self._json if json else self._any, self._table)
        try:
            first = grammar.matcher()
            words = np.zeros(-(-self._table.size // 32), np.uint32)
            first.fill(words)
        except InvalidRequest:
            raise
        except Exception as error:  # the library has no error of its own for what it cannot read
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InvalidRequest(
                f"the {constraint.kind} cannot be compiled: {reason:.300}"
            ) from None
        if not words.any():
            raise InvalidRequest(f"nothing can be answered: {first.failure}")
        return grammar


def _tree(table: TokenTable, takes: Callable[[str], bool]) -> Any:
    words = []
    for token, spelling in enumerate(table.spellings):
        try:
            text = spelling.decode()
        except UnicodeDecodeError:
            continue  # a part of a character, which the library cannot place
        if text and takes(text):
            words.append((token, text, True))

    def decode(tokens: list[int]) -> str:
        return b"".join(table.spellings[token] for token in tokens).decode(errors="replace")

    return lmformatenforcer.TokenEnforcerTokenizerData(
        words, decode, [*table.eos_ids], use_bitmask=False, vocab_size=table.size
    )


class LMFormatEnforcerGrammar:
    """The way to make a parser; parsers themselves are not shared, as some keep who runs them."""

    num_bytes = _GRAMMAR_BYTES

    def __init__(self, make: Callable[[], CharacterLevelParser], data: Any, table: TokenTable):
        self._make = make
        self._data = data
        self._table = table

    def matcher(self) -> ReplayedMatcher:
        """See Grammar."""
        return ReplayedMatcher(lambda: _Walker(self._make(), self._data), self._table.eos_ids)


class _Walker:
    """The library names a state by the tokens that led there, and keeps all of them."""

    def __init__(self, parser: CharacterLevelParser, data: Any) -> None:
        self._enforcer = lmformatenforcer.TokenEnforcer(data, parser)
        self._tokens: list[int] = []
        self._allowed = self._ask()

    def _ask(self) -> list[int]:
        tokens: list[int] = self._enforcer.get_allowed_tokens(self._tokens).allowed_tokens
        return tokens

    def fill(self, words: MaskWords) -> None:
        ids = np.array(self._allowed, np.uint32)
        np.bitwise_or.at(words, ids // 32, np.uint32(1) << ids % 32)

    def step(self, token: int) -> bool:
        if token not in self._allowed:
            return False
        self._tokens.append(token)
        self._allowed = self._ask()
        return True

    @property
    def is_complete(self) -> bool:
        """Asked of the parser: the library also lets an answer end where it has failed."""
        return bool(self._enforcer.prefix_states[tuple(self._tokens)].parser.can_end())


def _parser(constraint: Constraint) -> Callable[[], CharacterLevelParser]:
    text = constraint.text
    match constraint.kind:
        case "json_schema" | "json_object":
            if constraint.whitespace is not None:
                raise InvalidRequest(
                    "the grammar backend lm-format-enforcer has its own rule for white space"
                )
            schema = msgspec.json.decode(text) if text else {"type": "object"}
            _check(schema)
            return lambda: lmformatenforcer.JsonSchemaParser(schema)
        case "regex":
            return lambda: lmformatenforcer.RegexParser(text)
        case "choice":
            texts = msgspec.json.decode(text)
            return lambda: lmformatenforcer.UnionParser(
                [lmformatenforcer.StringParser(one) for one in texts]
            )
        case kind:
            raise InvalidRequest(f"the grammar backend lm-format-enforcer has no {kind}")


def _check(schema: Any) -> None:
    if isinstance(schema, bool):
        raise InvalidRequest(
            "the grammar backend lm-format-enforcer takes no truth value for a schema"
        )
    audit(schema, "lm-format-enforcer", ENFORCED)
    check_ends(schema)
