"""Real vocabularies: SmolLM2's byte-level BPE and Gemma's SentencePiece."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from tests.grammars.schemas import schema as random_schema
from tests.grammars.walks import allowed, answers, refusal_of
from treadle.grammars.llguidance import LLGuidance
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint


@pytest.fixture(scope="module", params=["demo", "gemma"])
def real(request: pytest.FixtureRequest) -> tuple[LLGuidance, TokenTable]:
    table: TokenTable = request.getfixturevalue(f"{request.param}_table")
    return LLGuidance(table), table


def test_schemas(real: tuple[LLGuidance, TokenTable]) -> None:
    backend, table = real
    count = 0
    for seed in range(8):
        schema = random_schema(random.Random(seed), depth=1)
        constraint = Constraint.json_schema(schema)
        if refusal_of(backend, lambda: constraint):  # noqa: B023
            continue
        for text in answers(backend.compile(constraint), table, 2, limit=40):
            count += 1
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert count > 6


def test_literals(real: tuple[LLGuidance, TokenTable]) -> None:
    backend, table = real
    texts = ["yes", " no", 'say "日本"\n', "👩‍👩‍👧", "<|im_end|>", "<end_of_turn>"]
    grammar = backend.compile(Constraint.choice(texts))
    assert {text.decode() for text in answers(grammar, table, 60)} == {*texts}


def test_control_tokens_are_not_text(real: tuple[LLGuidance, TokenTable]) -> None:
    backend, table = real
    grammar = backend.compile(Constraint.regex(r"(.|\n)*"))
    tokens = {*allowed(grammar.matcher(), table)}
    assert tokens >= {*table.eos_ids}
    assert all(token in table.eos_ids or table.spellings[token] for token in tokens)
    assert len(tokens) > table.size * 0.95


def test_forced_text_is_as_the_tokenizer_writes_it(real: tuple[LLGuidance, TokenTable]) -> None:
    backend, table = real
    text = "The temperature outside is "
    matcher = backend.compile(Constraint.regex(text + "(warm|cold)")).matcher()
    forced = matcher.forced()
    assert len(forced) >= 3
    assert forced == table.encode(text + "warm")[: len(forced)]
    assert forced == table.encode(text + "cold")[: len(forced)]
