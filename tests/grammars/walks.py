"""Random answers under a grammar: a walk takes any token that is allowed, until the answer ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from treadle.errors import InvalidRequest
from treadle.grammars.ports import Grammar, GrammarBackend, Matcher
from treadle.grammars.tokens import TokenTable
from treadle.text.tokenizer import Tokenizer
from treadle.wire.constraint import Constraint


def table_of(tokenizer: Tokenizer, *, padding: int = 37) -> TokenTable:
    """As an engine makes it, for a model whose head is larger than the vocabulary."""
    size = tokenizer.vocab_size + padding
    return TokenTable.of(tokenizer, size=size, eos_ids=tokenizer.eos_ids)


def allowed(matcher: Matcher, table: TokenTable) -> list[int]:
    """The tokens of a filled row; bits behind the vocabulary are none."""
    words = np.full(-(-table.size // 32), 0xDEADBEEF, np.uint32)
    matcher.fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert not bits[table.size :].any()
    tokens: list[int] = np.flatnonzero(bits).tolist()
    return tokens


def walk(
    grammar: Grammar,
    table: TokenTable,
    seed: int,
    *,
    limit: int = 200,
    ending: float = 0.3,
    may_fail: bool = False,
) -> bytes | None:
    """An answer's text; None for one that has not ended within `limit` tokens.

    Prefers to end with a likelihood, and short tokens half of the time, or texts go on for ever.
    """
    choose = random.Random(seed)
    matcher, text = grammar.matcher(), b""
    for _ in range(limit):
        tokens = allowed(matcher, table)
        if not tokens and may_fail:
            assert matcher.failure
            return None
        assert tokens, (matcher.failure, text)
        ends = sorted({*table.eos_ids}.intersection(tokens))
        assert bool(ends) == matcher.is_complete, text
        if ends and (choose.random() < ending or len(ends) == len(tokens)):
            assert matcher.accept(choose.choice(ends))
            assert matcher.is_finished
            return text
        others = [token for token in tokens if token not in ends] if ends else tokens
        token = choose.choice(others)
        if choose.random() < 0.5:
            some = choose.sample(others, min(len(others), 8))
            token = min(some, key=lambda one: len(table.spellings[one]))
        assert table.spellings[token], "a token without text was allowed"
        assert matcher.accept(token)
        text += table.spellings[token]
    return None


def takes(grammar: Grammar, table: TokenTable, text: str) -> bool:
    """Whether the text is an answer, told byte by byte. Where the library sees that a longer token
    must come, a mask has that one alone; its bytes are accepted all the same."""
    single = {spelling: token for token, spelling in enumerate(table.spellings)}
    matcher = grammar.matcher()
    for byte in text.encode():
        token = single[bytes([byte])]
        was_allowed = token in allowed(matcher, table)
        if not matcher.accept(token):
            assert not was_allowed, text
            return False
    return matcher.is_complete


def refusal_of(backend: GrammarBackend, make: Callable[[], Constraint]) -> str | None:
    """The sentence that refuses a constraint, here or there; None if it compiles."""
    message = None
    try:
        backend.compile(make())
    except InvalidRequest as error:
        message = error.message
    assert message is None or ("\n" not in message and len(message) < 600)
    return message


def answers(grammar: Grammar, table: TokenTable, count: int, **options: Any) -> Iterator[bytes]:
    """Those of `count` walks that end; `options` are a walk's."""
    for seed in range(count):
        text = walk(grammar, table, seed, **options)
        if text is not None:
            yield text
