"""The backends that are extras: what they take they keep, and the rest they refuse by name.

Each is skipped where its library is not installed: `make test-grammars` installs them apart.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from tests.grammars.schemas import schema as random_schema
from tests.grammars.test_schemas import ASKED
from tests.grammars.walks import allowed, answers, refusal_of, walk
from treadle.errors import StartError
from treadle.grammars.backends import check_backend, make_backend
from treadle.grammars.ports import GrammarBackend
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

PACKAGES = {
    "xgrammar": "xgrammar",
    "outlines": "outlines_core",
    "lm-format-enforcer": "lmformatenforcer",
}
FAILS = {"xgrammar": False, "outlines": False, "lm-format-enforcer": True}
"""Whether an answer may get stuck within what the library takes: it counts blanks in strings."""
JUDGE = jsonschema.Draft202012Validator

pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own


@pytest.fixture(scope="module", params=PACKAGES)
def extra(request: pytest.FixtureRequest, table: TokenTable) -> GrammarBackend:
    pytest.importorskip(PACKAGES[request.param])
    backend = make_backend(request.param, table)
    assert backend.name == request.param
    return backend


def test_choices(extra: GrammarBackend, table: TokenTable) -> None:
    texts = ["yes", "no", 'x "y"\n', "a.b*"]
    if extra.name != "lm-format-enforcer":  # it cannot place parts of characters
        texts.append("日本 café 😀")
    grammar = extra.compile(Constraint.choice(texts))
    assert {text.decode() for text in answers(grammar, table, 60)} == {*texts}


@pytest.mark.parametrize(
    "pattern", ["(ab|cd)+e?", "[a-f]{2,4}-[0-9]{3}", r"\d+(\.\d{1,2})?", '[^"\\n]{3}!']
)
def test_regexes(extra: GrammarBackend, table: TokenTable, pattern: str) -> None:
    grammar = extra.compile(Constraint.regex(pattern))
    texts = [*answers(grammar, table, 20, limit=60)]
    assert len(texts) > 10
    for text in texts:
        assert re.fullmatch(pattern, text.decode())


@pytest.mark.parametrize("keyword", ASKED)
def test_a_keyword_is_enforced_or_refused(
    extra: GrammarBackend, table: TokenTable, keyword: str
) -> None:
    for schema in ASKED[keyword]:
        constraint = Constraint.json_schema(schema)
        if refusal_of(extra, lambda: constraint) is not None:  # noqa: B023
            continue
        judge = jsonschema.Draft7Validator if keyword == "additionalItems" else JUDGE
        for text in answers(
            extra.compile(constraint), table, 25, limit=60, may_fail=FAILS[extra.name]
        ):
            assert judge(schema).is_valid(json.loads(text)), (schema, text)


def test_random_answers_fit_random_schemas(extra: GrammarBackend, table: TokenTable) -> None:
    count = 0
    for seed in range(60):
        schema = random_schema(random.Random(seed), depth=2)
        constraint = Constraint.json_schema(schema)
        if refusal_of(extra, lambda: constraint) is not None:  # noqa: B023
            continue
        for text in answers(
            extra.compile(constraint), table, 3, limit=80, may_fail=FAILS[extra.name]
        ):
            count += 1
            assert JUDGE(schema).is_valid(json.loads(text)), (schema, text)
    assert count >= {"xgrammar": 10, "outlines": 0, "lm-format-enforcer": 0}[extra.name]


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": ["null", "boolean"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}


def test_a_schema_that_all_take(extra: GrammarBackend, table: TokenTable) -> None:
    grammar = extra.compile(Constraint.json_schema(PERSON))
    texts = [*answers(grammar, table, 20)]
    assert len(texts) > 10
    for text in texts:
        assert JUDGE(PERSON).is_valid(json.loads(text))


def test_what_a_library_has_not_is_refused(extra: GrammarBackend) -> None:
    for make in (
        lambda: Constraint.grammar('root ::= "a"'),
        lambda: Constraint.structural_tag(
            {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
        ),
    ):
        refusal = refusal_of(extra, make)
        if extra.name == "xgrammar":
            assert refusal is None
        else:
            assert refusal is not None
            assert extra.name in refusal
    refusal = refusal_of(extra, lambda: Constraint.json_schema(PERSON | {"not": {}}))
    assert refusal is not None
    assert "'not'" in refusal
    assert extra.name in refusal


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{9,1}"])
def test_wrong_regexes(extra: GrammarBackend, pattern: str) -> None:
    assert refusal_of(extra, lambda: Constraint.regex(pattern)) is not None


def test_matchers(extra: GrammarBackend, table: TokenTable) -> None:
    """Accepting, ending, rolling back and cloning, as the default backend has it."""
    grammar = extra.compile(Constraint.choice(["ab", "ac", "b"]))
    for seed in range(6):
        choose, matcher = random.Random(seed), grammar.matcher()
        trail: list[list[int]] = []
        while not matcher.is_finished:
            trail.append(allowed(matcher, table))
            assert bool({*trail[-1]} & {*table.eos_ids}) == matcher.is_complete
            refused = next(token for token in range(table.size) if token not in trail[-1])
            assert not matcher.accept(refused)
            assert allowed(matcher, table) == trail[-1]
            assert matcher.accept(choose.choice(trail[-1]))
        other = matcher.clone()
        back = choose.randint(1, len(trail))
        matcher.rollback(back)
        assert allowed(matcher, table) == trail[-back]
        assert other.is_finished
        assert not matcher.is_finished
        assert matcher.forced() == []


def test_padding_is_never_allowed(extra: GrammarBackend, table: TokenTable) -> None:
    grammar = extra.compile(Constraint.regex("[^é]{0,5}"))
    for token in allowed(grammar.matcher(), table):
        assert token in table.eos_ids or table.spellings[token]
    assert walk(grammar, table, 0) is not None


def test_a_backend_that_is_not_installed_is_told_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"pip install 'treadle\[outlines\]'"):
        check_backend("outlines")
    check_backend("none")
