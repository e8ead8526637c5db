"""Regexes under the default backend, judged by re."""

from __future__ import annotations

import random
import re

import pytest

from tests.grammars.walks import answers, takes
from treadle.grammars.llguidance import LLGuidance
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

ATOMS = [
    "a",
    "bc",
    "[x-z]",
    "[^a-y\\n]",
    "\\d",
    "é",
    "日本",
    "\\.",
    "\\\\",
    '"',
    "[0-9a-f]",
    "\\s",
    ",",
]


def regex(choose: random.Random, depth: int = 3) -> str:
    """Means the same to re and to Rust's regexes."""
    if depth == 0 or choose.random() < 0.2:
        return choose.choice(ATOMS)
    parts = [regex(choose, depth - 1) for _ in range(choose.randint(1, 3))]
    kind = choose.random()
    if kind < 0.35:
        return f"({'|'.join(parts)})"
    if kind < 0.7:
        return f"({''.join(parts)}){choose.choice(['*', '+', '?', '{2}', '{1,3}', '{0,2}', '*?'])}"
    return "".join(parts)


@pytest.mark.parametrize("part", range(4))
def test_random_answers_match_random_regexes(
    backend: LLGuidance, table: TokenTable, part: int
) -> None:
    count = 0
    for seed in range(part, 120, 4):
        pattern = regex(random.Random(seed))
        grammar = backend.compile(Constraint.regex(pattern))
        for text in answers(grammar, table, 4, limit=60):
            count += 1
            assert re.fullmatch(pattern, text.decode()), (pattern, text)
    assert count > 70


@pytest.mark.parametrize("seed", range(40))
def test_what_matches_is_taken(backend: LLGuidance, table: TokenTable, seed: int) -> None:
    """Short texts of a small alphabet, all that re takes and none that it does not."""
    choose = random.Random(seed)
    pattern = re.sub("[^abc|()*+?{}0-9,]", "", regex(choose).replace("bc", "b"))
    pattern = re.sub(r"\(\|*\)|[0-9](?![,}])", "c", pattern)
    try:
        judge = re.compile(f"a?(?:{pattern})")
        grammar = backend.compile(Constraint.regex(f"a?(?:{pattern})"))
    except (re.error, ValueError):
        pytest.skip("shortened to something else")
    for _ in range(60):
        text = "".join(choose.choices("abc", k=choose.randint(0, 5)))
        assert takes(grammar, table, text) == bool(judge.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(😀|漢|é|👩‍👩‍👧){4}", "😀漢é👩‍👩‍👧"),
        ("a{20}", "a" * 20),
        ("abcENDxyz", "abcENDxyz"),
        (r"(?i)yes|no", "YeS"),
        (r"^\w+@\w+\.com$", "e_1@b.com"),
        (r"a/b\nc", "a/b\nc"),
        (r"[^\x00-\x1f/]+", "any ~ text"),
        (r"\{\"a\": \"[^\"]*\"\}", '{"a": "b"}'),
    ],
)
def test_regexes_that_people_send(
    backend: LLGuidance, table: TokenTable, pattern: str, text: str
) -> None:
    grammar = backend.compile(Constraint.regex(pattern))
    assert takes(grammar, table, text)
    assert not takes(grammar, table, text + "/")
    assert not takes(grammar, table, text[:-1] + "\x00")


def test_digits_and_letters_are_ascii(backend: LLGuidance, table: TokenTable) -> None:
    grammar = backend.compile(Constraint.regex(r"\d[\w-]\D"))
    assert takes(grammar, table, "7-é")
    for text in ("٣-x", "7éx", "7-7"):
        assert not takes(grammar, table, text)
