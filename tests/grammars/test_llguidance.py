"""The default backend: vocabularies, matchers, and what it refuses."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.grammars.walks import allowed, answers, refusal_of, table_of, takes
from treadle.errors import InvalidRequest
from treadle.grammars.llguidance import LLGuidance
from treadle.grammars.tokens import TokenTable
from treadle.text.tokenizer import Tokenizer
from treadle.wire.constraint import Constraint

ANYTHING = Constraint.regex(r"(.|\n)*")


@pytest.fixture(scope="session")
def each(tokenizer: Tokenizer) -> tuple[LLGuidance, TokenTable]:
    table = table_of(tokenizer)
    return LLGuidance(table), table


def test_every_text_and_no_control_token(each: tuple[LLGuidance, TokenTable]) -> None:
    backend, table = each
    tokens = {*allowed(backend.compile(ANYTHING).matcher(), table)}
    for token, spelling in enumerate(table.spellings):
        if token in table.eos_ids:
            assert token in tokens
        elif not spelling:
            assert token not in tokens, table.names[token]
        elif _is_text(spelling):
            assert token in tokens, spelling


def _is_text(spelling: bytes) -> bool:
    try:
        return bool(spelling.decode())
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize(
    "text", ["", "a", 'x "y"\n', "日本 café 😀", " two  spaces", "<|user|></s>"]
)
def test_a_choice_is_written_by_any_vocabulary(
    each: tuple[LLGuidance, TokenTable], text: str
) -> None:
    backend, table = each
    grammar = backend.compile(Constraint.choice([text, "other"]))
    seen = set(answers(grammar, table, 30))
    assert seen == {text.encode(), b"other"}


def test_forced_tokens_are_the_tokenizers_own(
    each: tuple[LLGuidance, TokenTable], tokenizer: Tokenizer
) -> None:
    """What is forced, with what was chosen around it, is what encoding the whole text gives."""
    backend, table = each
    schema = {
        "type": "object",
        "properties": {"temperature": {"enum": ["warm", "cold"]}, "humidity": {"type": "boolean"}},
        "required": ["temperature", "humidity"],
        "additionalProperties": False,
    }
    grammar = backend.compile(Constraint.json_schema(schema, whitespace=""))
    num_forced = 0
    for text in (
        '{"temperature":"warm","humidity":true}',
        '{"temperature":"cold","humidity":false}',
    ):
        ids = table.encode(text)
        assert b"".join(table.spellings[token] for token in ids) == text.encode()
        matcher, at = grammar.matcher(), 0
        while at < len(ids):
            forced = matcher.forced()
            assert ids[at : at + len(forced)] == forced
            num_forced += len(forced)
            for token in forced or ids[at : at + 1]:
                assert matcher.accept(token)
                at += 1
        assert matcher.is_complete
    assert num_forced >= 8


def test_a_mask_leaves_what_is_forced_alone(each: tuple[LLGuidance, TokenTable]) -> None:
    """So an answer has the same tokens whether forced ones are sampled or taken."""
    backend, table = each
    grammar = backend.compile(Constraint.regex("(alpha|alpine) (one|two) threee and no more"))
    num_forced = 0
    for seed in range(20):
        choose, matcher = random.Random(seed), grammar.matcher()
        while not matcher.is_finished:
            forced = matcher.forced()
            num_forced += len(forced)
            for token in forced:
                assert allowed(matcher, table) == [token]
                assert matcher.accept(token)
            if not matcher.is_finished:
                assert matcher.accept(choose.choice(allowed(matcher, table)))
    assert num_forced > 40


def test_accept_refuses_and_changes_nothing(backend: LLGuidance, table: TokenTable) -> None:
    matcher = backend.compile(Constraint.regex("ab?")).matcher()
    single = {spelling: token for token, spelling in enumerate(table.spellings)}
    before = allowed(matcher, table)
    for token in range(table.size):
        if token not in before:
            assert not matcher.accept(token)
    assert allowed(matcher, table) == before
    assert matcher.accept(single[b"a"])
    assert matcher.is_complete
    assert not matcher.is_finished
    assert matcher.accept(single[b"b"])
    assert matcher.is_finished, "nothing but an end token can come"
    assert allowed(matcher, table) == [*table.eos_ids]
    assert not matcher.accept(single[b"b"])
    assert matcher.accept(table.eos_ids[0])
    assert not matcher.accept(table.eos_ids[0])
    assert matcher.failure is None


def test_rollback_and_clone(backend: LLGuidance, table: TokenTable) -> None:
    grammar = backend.compile(Constraint.json_schema({"enum": ["red", "green", [1, 2]]}))
    for seed in range(10):
        choose, matcher = random.Random(seed), grammar.matcher()
        trail: list[list[int]] = []
        while not matcher.is_finished:
            trail.append(allowed(matcher, table))
            assert matcher.accept(choose.choice(trail[-1]))
        back = choose.randint(1, len(trail))
        other = matcher.clone()
        matcher.rollback(back)
        assert allowed(matcher, table) == trail[-back]
        assert other.is_finished, "a clone goes its own way"
        assert not matcher.is_finished


def test_several_ends(folder_tokenizer: Tokenizer) -> None:
    ends = sorted(folder_tokenizer.eos_ids)
    assert len(ends) > 1
    table = table_of(folder_tokenizer)
    matcher = LLGuidance(table).compile(Constraint.choice(["a"])).matcher()
    assert not {*ends} & {*allowed(matcher, table)}
    assert matcher.accept(table.encode("a")[0])
    assert allowed(matcher, table) == ends
    assert matcher.accept(ends[1])


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "at character 1: unclosed group"),
        ("ab[z-a]", "at character 4: invalid character class range"),
        ("a{9,1}", "at character 2: invalid repetition"),
        ("(?<=x)y", "at character 1: look-around"),
        (r"a\b", "WordUnicode is not supported"),
        (r"(a)\1", "at character 4: backreferences are not supported"),
    ],
)
def test_wrong_regexes(backend: LLGuidance, pattern: str, reason: str) -> None:
    for make in (
        lambda: Constraint.regex(pattern),
        lambda: Constraint.json_schema({"type": "string", "pattern": pattern}),
    ):
        sentence = refusal_of(backend, make)
        assert sentence is not None
        assert reason in sentence


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("root ::= ", "allows only an empty answer"),
        ("start: ", "allows only an empty answer"),
        ('root ::= "a" (', "Expected ')' at line 1"),
        ("root ::= other", "Rule 'other' not found"),
        ('start: "a" | other', 'unknown name: "other"'),
        ('start: "a', "lexer error"),
        ("start: A\nA: A", "circular reference"),
        ("start: start", "no token of the vocabulary can come next"),
        ('other: "a"', "no start rule found"),
        ('start: "a" <|end|>', "names the token <|end|>"),
        ('start: "a" <[5]>', "names the token <[5]>"),
    ],
)
def test_wrong_grammars(backend: LLGuidance, grammar: str, reason: str) -> None:
    sentence = refusal_of(backend, lambda: Constraint.grammar(grammar))
    assert sentence is not None
    assert reason in sentence


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Constraint.choice([]), "empty"),
        (lambda: Constraint.choice("ab"), "list of strings"),
        (lambda: Constraint.choice(["a", 1]), "list of strings"),  # type: ignore[list-item]
        (lambda: Constraint.regex(""), "empty"),
        (lambda: Constraint.regex("\ud800"), "lone surrogate"),
        (lambda: Constraint.json_schema([1]), "is a list"),
        (lambda: Constraint.json_schema('"text"'), "is a string"),
        (lambda: Constraint.json_schema("{"), "is not JSON"),
        (lambda: Constraint.json_schema('{"minimum":NaN}'), "NaN"),
        (lambda: Constraint.json_schema({"minimum": float("inf")}), "not JSON"),
        (lambda: Constraint.json_schema('{"a":' * 70 + "1" + "}" * 70), "deeper than 64"),
        (lambda: Constraint.json_schema("[" * 10**5), "deeper than 64"),
        (lambda: Constraint.regex("a" * 300_000), "at most 262144"),
        (lambda: Constraint.choice([*map(str, range(5000))]), "at most 4096"),
        (lambda: Constraint.structural_tag("[]"), "is a list"),
    ],
)
def test_wrong_shapes(backend: LLGuidance, make: object, reason: str) -> None:
    sentence = refusal_of(backend, make)  # type: ignore[arg-type]
    assert sentence is not None
    assert reason in sentence


def test_equal_constraints_are_equal() -> None:
    given = Constraint.json_schema('{ "type" : "object",\n "x": "\\u00e9" }')
    assert given == Constraint.json_schema({"type": "object", "x": "é"})
    assert len({given, Constraint.json_schema({"type": "object", "x": "é"})}) == 1
    assert given != Constraint.json_schema({"x": "é", "type": "object"}), "order is kept"
    assert given != Constraint.json_schema({"type": "object", "x": "é"}, whitespace="")
    assert Constraint.choice(["a", "b", "a"]) == Constraint.choice(["a", "b"])


GBNF = r"""
# a list of pairs
root   ::= pair ("," space pair)*
pair   ::= name "=" value   # the rest of a line
name   ::= [a-z] [a-z0-9_]{0,5}
value  ::= number | "\"" [^"\\\x00-\x1f]{1,4} "\"" | "\u00e9\x41" | "(" root ")"
number ::= "-"? ([0-9] | [1-9] [0-9]+)
space  ::= " "?
"""
LARK = r"""
start: pair ("," " "? pair)*
pair: NAME "=" value
value: /-?([0-9]|[1-9][0-9]+)/ | /"[^"\\\x00-\x1f]{1,4}"/ | "éA" | "(" start ")"
NAME: /[a-z][a-z0-9_]{0,5}/
"""


@pytest.mark.parametrize("grammar", [GBNF, LARK])
def test_both_notations(backend: LLGuidance, table: TokenTable, grammar: str) -> None:
    compiled = backend.compile(Constraint.grammar(grammar))
    for text in ("a=1", "ab_1=-10,c=éA", 'a="x y"', "a=(b=(c=0), d=1)"):
        assert takes(compiled, table, text), text
    for text in ("A=1", "a=01", "a=(b=1", 'a="toolong"', "a=1;", "abcdefgh=1"):
        assert not takes(compiled, table, text), text
    texts = [text.decode() for text in answers(compiled, table, 40, limit=80)]
    assert len(texts) > 10
    value = r'(-?(\d|[1-9]\d+)|"[^"\\\x00-\x1f]{1,4}"|éA|\(.*\))'
    pair = rf"[a-z][a-z0-9_]{{0,5}}={value}"
    for text in texts:
        assert re.fullmatch(rf"{pair}(, ?{pair})*", text, re.DOTALL), text


def test_lark_may_name_a_control_token(backend: LLGuidance, table: TokenTable) -> None:
    """And hold any text in quotes, also what looks like one, or like GBNF."""
    matcher = backend.compile(Constraint.grammar('start: "a" <|begin|> "b"')).matcher()
    single = {spelling: token for token, spelling in enumerate(table.spellings)}
    assert matcher.accept(single[b"a"])
    assert allowed(matcher, table) == [table.names.index("<|begin|>")]
    for text in ("<|end|>", "<[5]>", "a ::= b"):
        for quoted in (json.dumps(text), f"/{re.escape(text)}/"):
            assert takes(backend.compile(Constraint.grammar(f"start: {quoted}")), table, text)


def test_a_row_is_written_whole(backend: LLGuidance, table: TokenTable) -> None:
    matcher = backend.compile(Constraint.choice(["a"])).matcher()
    first = np.zeros(-(-table.size // 32), np.uint32)
    second = np.full_like(first, 0xFFFFFFFF)
    matcher.fill(first)
    matcher.fill(second)
    assert (first == second).all()


def test_a_limit_that_is_met_later_ends_the_answer_with_a_reason(table: TokenTable) -> None:
    """An automaton that doubles with every letter."""
    backend = LLGuidance(table)
    grammar = backend.compile(Constraint.regex("(a|b)*a(a|b){40}c"))
    matcher = grammar.matcher()
    single = {spelling: token for token, spelling in enumerate(table.spellings)}
    choose = random.Random(0)
    for _ in range(100_000):
        tokens = allowed(matcher, table)
        if not tokens or not matcher.accept(single[choose.choice([b"a", b"b"])]):
            break
    assert matcher.failure == "the grammar's regexes have become too large to go on"
    assert not matcher.is_complete
    assert not matcher.is_finished
    assert backend.compile(Constraint.choice(["a"])).matcher().failure is None


def test_the_library_is_imported_with_the_first_constraint() -> None:
    code = (
        "import sys, treadle.server.serve, treadle.engine.llm; print('llguidance' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "llguidance" not in done.stdout.split()


BOMBS = {
    "nested arrays": '{"items":' * 60 + "{}" + "}" * 60,
    "enum": json.dumps({"enum": [f"value number {n}" for n in range(8000)]}),
    "all of any of": json.dumps(
        {"allOf": [{"anyOf": [{"minimum": n}, {"pattern": f"^{n}"}]} for n in range(24)]}
    ),
    "doubling references": json.dumps(
        {
            "$defs": {
                f"d{n}": {
                    "type": "array",
                    "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2,
                    "minItems": 2,
                }
                for n in range(40)
            }
            | {"d40": {"type": "null"}},
            "$ref": "#/$defs/d0",
        }
    ),
    "all of references": json.dumps(
        {
            "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
            | {"d30": {"type": "integer"}},
            "$ref": "#/$defs/d0",
        }
    ),
    "repeats": json.dumps({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}),
    "long": json.dumps({"type": "string", "minLength": 10**6, "maxLength": 10**9}),
    "items": json.dumps({"type": "array", "items": {"type": "null"}, "minItems": 10**6}),
    "properties": json.dumps({"properties": {f"p{n}": {"type": "string"} for n in range(3000)}}),
    "number": json.dumps({"type": "integer", "multipleOf": 1_000_003, "minimum": 10**9}),
    "alternatives": json.dumps(
        {"anyOf": [{"type": "string", "pattern": f"^(x|y)*{n}(x|y){{9}}$"} for n in range(300)]}
    ),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.timeout(20)
def test_bombs_are_refused_or_harmless(backend: LLGuidance, table: TokenTable, name: str) -> None:
    try:
        grammar = backend.compile(Constraint.json_schema(BOMBS[name]))
    except InvalidRequest:
        return
    matcher, choose = grammar.matcher(), random.Random(0)
    for _ in range(60):
        tokens = allowed(matcher, table)
        if not tokens or not matcher.accept(choose.choice(tokens)):
            assert matcher.failure or matcher.is_finished
            break
