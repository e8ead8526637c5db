"""Grammars by llguidance: derivatives of regular expressions under an Earley parser.

The default: a few megabytes, nothing to pay at start-up, masks in microseconds, and limits of its
own that end every compilation and every mask. Nothing else imports the library.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import llguidance
import msgspec
import numpy as np
from llguidance.gbnf_to_lark import gbnf_to_lark

from treadle.errors import InvalidRequest
from treadle.grammars.lark import choice_regex, is_gbnf, refuse_end_tokens, spelled_out, tag_lark
from treadle.grammars.limits import LLGUIDANCE, WHITESPACE
from treadle.grammars.llguidance_errors import refusal, stuck
from treadle.grammars.llguidance_schema import checked
from treadle.grammars.ports import MaskWords
from treadle.grammars.tags import read_tag
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

_GRAMMAR_BYTES_PER_CHAR = 80
_GRAMMAR_BYTES = 64 * 1024
"""What a compiled grammar takes: 20 MB were measured for a schema of 250 000 characters."""


class LLGuidance:
    """The backend. The library's tokenizer is built once; it is immutable.

    Building it holds the interpreter, for 0.1 s with 49 000 tokens and 1.3 s with 262 000; nothing
    after it does.
    """

    name = "llguidance"

    def __init__(self, table: TokenTable) -> None:
        vocabulary: Any = _Vocabulary(table)
        self._tokenizer = llguidance.LLTokenizer(
            vocabulary, n_vocab=table.size, eos_token=[*table.eos_ids]
        )
        self._table = table

    def compile(self, constraint: Constraint) -> LLGuidanceGrammar:
        """See GrammarBackend."""
        limits = llguidance.LLParserLimits(
            **LLGUIDANCE, precompute_large_lexemes=True, verbose_errors=False
        )
        source = _source(constraint, {self._table.names[token] for token in self._table.eos_ids})
        start = llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=limits)
        if start.is_error():
            raise refusal(start.get_error(), constraint)
        # The first mask builds what the library leaves for later, and tells dead ends.
        first = LLGuidanceMatcher(start, self._table, ended=False)
        words = np.zeros(-(-self._table.size // 32), np.uint32)
        first.fill(words)
        if not words.any():
            raise InvalidRequest(f"nothing can be answered: {stuck(start.get_error())}")
        for token in self._table.eos_ids:
            words[token // 32] &= ~np.uint32(1 << token % 32)
        if not words.any():
            raise InvalidRequest(f"the {constraint.kind} allows only an empty answer")
        return LLGuidanceGrammar(start, self._table, len(source))


class LLGuidanceGrammar:
    """The library's matcher at the start, copied for each answer. Copies share the grammar, and the
    states that its lexer has met, under the library's own lock."""

    def __init__(self, start: llguidance.LLMatcher, table: TokenTable, num_chars: int) -> None:
        self._start = start
        self._table = table
        self.num_bytes = _GRAMMAR_BYTES + _GRAMMAR_BYTES_PER_CHAR * num_chars

    def matcher(self) -> LLGuidanceMatcher:
        """See Grammar."""
        return LLGuidanceMatcher(self._start.deep_copy(), self._table, ended=False)


class LLGuidanceMatcher:
    """End tokens are this class's affair, all others the library's."""

    can_roll_back = True

    def __init__(self, matcher: llguidance.LLMatcher, table: TokenTable, *, ended: bool) -> None:
        self._matcher = matcher
        self._table = table
        self._ended = ended

    def fill(self, words: MaskWords) -> None:
        """See Matcher. Other threads run meanwhile."""
        if self._ended:
            words[:] = 0
            for token in self._table.eos_ids:
                words[token // 32] |= 1 << token % 32
            return
        assert words.flags.c_contiguous
        assert words.flags.writeable
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():  # the library would have the answer end here
            words[:] = 0

    def accept(self, token: int) -> bool:
        """See Matcher."""
        if self._ended:
            return False
        if token in self._table.eos_ids:
            self._ended = self.is_complete
            return self._ended
        taken: int = self._matcher.try_consume_tokens([token])
        return taken == 1

    def forced(self) -> list[int]:
        """See Matcher. What the library takes for forced is held against the tokenizer: the tokens
        must spell what must come."""
        if self._ended or self._matcher.is_stopped():
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def rollback(self, count: int) -> None:
        """See Matcher."""
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            done = self._matcher.rollback(count)
            assert done, "rolled back behind the start"

    def clone(self) -> LLGuidanceMatcher:
        """See Matcher."""
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._table, ended=self._ended)

    @property
    def is_complete(self) -> bool:
        complete: bool = self._matcher.is_accepting()
        return complete and not self._matcher.is_error()

    @property
    def is_finished(self) -> bool:
        return self._ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    @property
    def failure(self) -> str | None:
        return stuck(self._matcher.get_error()) if self._matcher.is_error() else None


class _Vocabulary:
    """The token table under the names that the library asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self.eos_token_id = table.eos_ids[0]
        # The library takes what begins with 0xFF for a control token, which no text holds.
        self.tokens = [
            spelling or (b"\xff" + name.encode() if name else b"")
            for spelling, name in zip(table.spellings, table.names, strict=True)
        ]
        self.special_token_ids = [token for token, name in enumerate(table.names) if name]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._table.encode(text if isinstance(text, str) else text.decode())


def _source(constraint: Constraint, ends: Collection[str]) -> str:
    """The constraint as the library's grammar, checked as far as the library does not; `ends` are
    the names of the model's end tokens."""
    text = constraint.text
    match constraint.kind:
        case "json_schema":
            schema = checked(msgspec.json.decode(text), closed=constraint.closed)
            return _grammar_of({"grammars": [{"json_schema": _told(schema, constraint)}]})
        case "json_object":
            schema = {"type": "object"}
            return _grammar_of({"grammars": [{"json_schema": _told(schema, constraint)}]})
        case "regex":
            return _regex(text)
        case "choice":
            return _regex(choice_regex(msgspec.json.decode(text)))
        case "grammar":
            return _grammar_of({"grammars": [{"lark_grammar": _lark(text, ends)}]})
        case "structural_tag":
            tree = read_tag(constraint)

            def schema_text(schema: Any) -> str:
                return json.dumps(_told(checked(schema, closed=False), constraint))

            return _grammar_of(
                tag_lark(tree, schema_text, lambda part: _lark(part, ends), _slashed)
            )


def _regex(pattern: str) -> str:
    return _grammar_of({"grammars": [{"lark_grammar": f"start: {_slashed(pattern)}"}]})


def _slashed(pattern: str) -> str:
    r"""A regex as Lark writes it, with \d and \w as JSON Schema has them: ASCII, which Python's
    match too."""
    return f"/{llguidance.regex_to_lark(pattern, 'dw')}/"


def _told(schema: dict[str, Any], constraint: Constraint) -> dict[str, Any]:
    """The schema with the library's options, which it looks for there."""
    space = WHITESPACE if constraint.whitespace is None else constraint.whitespace
    options = {"whitespace_pattern": space} if space else {"whitespace_flexible": False}
    return {**schema, "x-guidance": options}


def _grammar_of(parts: dict[str, Any]) -> str:
    return json.dumps(parts, ensure_ascii=False)


def _lark(text: str, ends: Collection[str]) -> str:
    """Lark, from Lark or GBNF."""
    if not is_gbnf(text):
        refuse_end_tokens(text, ends)
        return text
    try:
        lark: str = gbnf_to_lark(spelled_out(text))
    except Exception as error:  # the library raises nothing more specific for unknown rules
        raise InvalidRequest(f"the grammar is wrong: {error}") from None
    return lark
