"""Grammars by xgrammar: pushdown automata whose masks are mostly made when compiling.

An extra, as the library needs PyTorch. It passes over keywords of JSON Schema that it does not
know, and it cannot tell which tokens spell text that must come. Nothing else imports it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np
import xgrammar

from treadle.errors import InvalidRequest
from treadle.grammars.lark import is_gbnf
from treadle.grammars.limits import LONGEST_WHITESPACE
from treadle.grammars.ports import MaskWords
from treadle.grammars.schema import Place, Rule, audit, check_ends, closed, listed
from treadle.grammars.tags import EmbeddedGrammar, Format, JsonSchema, parts, read_tag
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

_FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname")


def _format(place: Place) -> str | None:
    name = place.schema["format"]
    return None if name in _FORMATS else f"is {name!r:.60}; known are {', '.join(_FORMATS)}"


def _pattern(place: Place) -> str | None:
    """The library writes what matches between quotes as it is."""
    pattern = place.schema["pattern"]
    known = re.sub(r"\\[dw.-]", "", pattern) if isinstance(pattern, str) else "."
    if not re.search(r"""["\\.\x00-\x1f]|\[\^""", known):
        return None
    return "may let a quote or a backslash in, which the library does not escape"


ENFORCED: dict[str, Rule | None] = {
    **dict.fromkeys(("type", "enum", "const", "$defs", "definitions", "$ref", "anyOf")),
    **dict.fromkeys(("properties", "additionalProperties")),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems")),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "pattern": _pattern,
    "format": _format,
    "required": listed,
}
"""What random walks found kept, judged by jsonschema. Of strings with bounds on their length the
library takes control characters, which JSON does not."""


class XGrammar:
    """The backend. The library's compiler takes one constraint at a time, in whatever thread."""

    name = "xgrammar"

    def __init__(self, table: TokenTable) -> None:
        tokens = xgrammar.TokenizerInfo(
            [*table.spellings],
            xgrammar.VocabType.RAW,
            vocab_size=table.size,
            stop_token_ids=[*table.eos_ids],
        )
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
        self._size = table.size

    def compile(self, constraint: Constraint) -> XGrammarGrammar:
        """See GrammarBackend."""
        try:
            compiled = self._compiled(constraint)
        except RuntimeError as error:
            raise InvalidRequest(
                f"the {constraint.kind} cannot be compiled: {_reason(error)}"
            ) from None
        grammar = XGrammarGrammar(compiled, self._size)
        words = np.zeros(-(-self._size // 32), np.uint32)
        first = grammar.matcher()
        first.fill(words)
        if not words.any():
            raise InvalidRequest(f"nothing can be answered: {first.failure}")
        return grammar

    def _compiled(self, constraint: Constraint) -> Any:
        text = constraint.text
        match constraint.kind:
            case "json_schema" | "json_object":
                schema = {"type": "object"} if not text else msgspec.json.decode(text)
                return self._schema(_checked(schema, constraint), constraint)
            case "regex":
                return self._compiler.compile_regex(text)
            case "choice":
                texts = (json.dumps(one, ensure_ascii=False) for one in msgspec.json.decode(text))
                return self._compiler.compile_grammar(f"root ::= {' | '.join(texts)}")
            case "grammar":
                gbnf = is_gbnf(text)
                compiler = self._compiler
                return compiler.compile_grammar(text) if gbnf else compiler.compile_lark(text)
            case _:
                tree = read_tag(constraint)
                _check_tag(tree, constraint)
                tag = {"type": "structural_tag", "format": msgspec.to_builtins(tree)}
                return self._compiler.compile_structural_tag(json.dumps(tag))

    def _schema(self, schema: Any, constraint: Constraint) -> Any:
        if constraint.whitespace:
            raise InvalidRequest(
                "the grammar backend xgrammar takes no regex for white space, only whether there "
                "may be any"
            )
        spaced = constraint.whitespace is None
        return self._compiler.compile_json_schema(
            json.dumps(schema),
            any_whitespace=spaced,
            max_whitespace_cnt=LONGEST_WHITESPACE if spaced else None,
            separators=None if spaced else (",", ":"),
            strict_mode=False,
        )


class XGrammarGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: Any, size: int) -> None:
        self._compiled = compiled
        self._size = size
        self.num_bytes = int(compiled.memory_size_bytes)

    def matcher(self) -> XGrammarMatcher:
        """See Grammar."""
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._size)


class XGrammarMatcher:
    """End tokens are tokens like others here; after one the library wants no further question."""

    can_roll_back = True

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._size = size
        self._stuck = False

    def fill(self, words: MaskWords) -> None:
        """See Matcher."""
        if self._matcher.is_terminated():
            words[:] = 0
            for token in self._matcher.stop_token_ids:
                words[token // 32] |= np.uint32(1 << token % 32)
            return
        self._matcher.fill_next_token_bitmask(words.view(np.int32).reshape(1, -1))
        if self._size % 32:  # the library sets what is behind the vocabulary
            words[-1] &= np.uint32((1 << self._size % 32) - 1)
        self._stuck = not words.any()

    def accept(self, token: int) -> bool:
        """See Matcher."""
        if self._matcher.is_terminated():
            return False
        return bool(self._matcher.accept_token(token))

    def forced(self) -> list[int]:
        """The library knows the text that must come, and not its tokens."""
        return []

    def rollback(self, count: int) -> None:
        """See Matcher."""
        self._matcher.rollback(count)

    def clone(self) -> XGrammarMatcher:
        """See Matcher."""
        return XGrammarMatcher(self._matcher.fork(), self._size)

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())

    @property
    def is_finished(self) -> bool:
        return bool(self._matcher.is_terminated())

    @property
    def failure(self) -> str | None:
        return "no token of the vocabulary can come next" if self._stuck else None


def _checked(schema: Any, constraint: Constraint) -> Any:
    if isinstance(schema, dict):
        audit(schema, "xgrammar", ENFORCED)
        check_ends(schema)
    return closed(schema) if constraint.closed else schema


def _check_tag(tree: Format, constraint: Constraint) -> None:
    """The schemas within; grammars within are GBNF there."""
    for part in parts(tree):
        if isinstance(part, JsonSchema):
            _checked(part.json_schema, constraint)
        if isinstance(part, EmbeddedGrammar) and not is_gbnf(part.grammar):
            raise InvalidRequest(
                "the grammar backend xgrammar takes GBNF within structural tags, not Lark"
            )


def _reason(error: RuntimeError) -> str:
    """The library puts time and place of its source in front."""
    first = str(error).strip().splitlines()[0]
    return re.sub(r"^\[[\d:]+\] \S+?:\d+: (?:Check failed: \(.*?\) is false: )?", "", first)[:300]
