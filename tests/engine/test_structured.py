"""Answers held to schemas, regexes and choices, by the real engine over the demo model: random
sampling never leaves the grammar, and no schedule moves a token."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.bits import answers_alone, random_schedule, serve, start
from treadle import LLM, Engine, SamplingParams, StructuredOutputsParams
from treadle.errors import InvalidRequest
from treadle.wire.constraint import Constraint
from treadle.wire.messages import Generate

COLOURS = {"enum": ["red", "green"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": COLOURS, "minItems": 2, "maxItems": 2},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=[0, 1])
def llm(demo_gguf: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(str(demo_gguf), overlap_depth=request.param, max_model_len=512) as llm:
        yield llm


def ask(llm: LLM, prompt: str = "p", *, given: dict[str, Any], **fields: Any) -> Any:
    constraint = StructuredOutputsParams(**given)
    params = SamplingParams(
        **{"max_tokens": 200, "temperature": 1.0, **fields}, structured_outputs=constraint
    )
    return llm.generate(prompt, params)[0].outputs[0]


def test_schemas_hold_at_any_temperature(llm: LLM) -> None:
    for seed in range(6):
        output = ask(llm, given={"json": SCHEMA}, temperature=2.0, seed=seed)
        assert output.finish_reason == "stop"
        answer = json.loads(output.text)
        assert list(answer) == ["name", "age", "colours"]
        assert len(answer["name"]) <= 12
        assert 0 <= answer["age"] <= 120
        assert set(answer["colours"]) <= {"red", "green"}


def test_references_whatever_the_order_of_keys(llm: LLM) -> None:
    properties = {"properties": {"c": {"$ref": "#/$defs/C"}}, "required": ["c"], "type": "object"}
    closed = {"additionalProperties": False}
    definitions = {"$defs": {"C": COLOURS}}
    schemas = [properties | closed | definitions, definitions | closed | properties]
    texts = [
        [ask(llm, given={"json": schema}, temperature=2.0, seed=seed).text for seed in range(4)]
        for schema in schemas
    ]
    assert texts[0] == texts[1]
    assert {json.loads(text)["c"] for text in texts[0]} <= {"red", "green"}


@pytest.mark.parametrize("value", ["café", "日本", 'a"b', "line\nbreak", "\U0001f600"], ids=ascii)
def test_literals_beyond_ascii(llm: LLM, value: str) -> None:
    output = ask(llm, given={"json": {"enum": [value, "other"]}}, logit_bias=None, seed=1)
    assert json.loads(output.text) in (value, "other")
    assert json.loads(ask(llm, given={"json": {"const": value}}).text) == value


def test_strings_hold_no_control_characters(llm: LLM) -> None:
    schema = {"type": "string", "minLength": 30, "maxLength": 40}
    for seed in range(4):
        text = ask(llm, given={"json": schema}, temperature=2.0, seed=seed, max_tokens=300).text
        assert 30 <= len(json.loads(text)) <= 40
        assert all(ord(char) >= 0x20 for char in text.strip())


def test_white_space_has_an_end(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    blanks = {
        token: 100.0
        for token in range(tokenizer.vocab_size)
        if (text := tokenizer.token_bytes(token)) and not text.strip()
    }
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    output = ask(llm, given={"json": {**schema, "additionalProperties": False}}, logit_bias=blanks)
    assert output.finish_reason == "stop"
    assert isinstance(json.loads(output.text)["a"], int)
    assert max(map(len, re.findall(r"\s+", output.text)), default=0) <= 17
    assert len(output.token_ids) < 100
    dense = ask(llm, given={"json": schema, "disable_any_whitespace": True}, logit_bias=blanks)
    if dense.finish_reason == "stop":
        assert not re.search(r"\s", re.sub(r'"[^"]*"', "", dense.text))


def test_regexes_choices_and_grammars(llm: LLM) -> None:
    for seed in range(3):
        text = ask(llm, given={"regex": r"[a-f]{3}-\d{2}"}, seed=seed).text
        assert re.fullmatch(r"[a-f]{3}-\d{2}", text)
        assert ask(llm, given={"choice": ["yes", "no"]}, seed=seed).text in ("yes", "no")
    text = ask(llm, given={"grammar": 'root ::= "<" [0-9] ">"'}).text
    assert re.fullmatch(r"<\d>", text)
    assert isinstance(json.loads(ask(llm, given={"json": {"type": "boolean"}}).text), bool)


def test_min_tokens_gives_way_to_the_end_of_the_grammar(llm: LLM) -> None:
    output = ask(llm, given={"json": {"type": "boolean"}}, min_tokens=50, max_tokens=80)
    assert isinstance(json.loads(output.text), bool)
    assert output.finish_reason == "stop"
    long = ask(llm, given={"regex": "a{20}"}, min_tokens=10, temperature=0, stop=["a"])
    assert 9 <= len(long.text) <= 20
    endless = ask(llm, given={"regex": "[ab]*"}, min_tokens=20, max_tokens=20)
    assert (len(endless.token_ids), endless.finish_reason) == (20, "length")


@pytest.mark.parametrize("stops", [["END"], ["NDx", "END"]])
def test_stop_strings_end_in_forced_text(llm: LLM, stops: list[str]) -> None:
    given = {"regex": "abcENDxyz"}
    output = ask(llm, given=given, stop=stops, temperature=0)
    assert (output.text, output.finish_reason, output.stop_reason) == ("abc", "stop", "END")
    whole = ask(llm, given=given, stop=stops, temperature=0, include_stop_str_in_output=True)
    assert whole.text == "abcEND"
    assert ask(llm, given=given, temperature=0).text == "abcENDxyz"


def test_characters_of_several_tokens(llm: LLM) -> None:
    pattern = "(😀|漢|é){4}"
    for seed in range(3):
        text = ask(llm, given={"regex": pattern}, seed=seed).text
        assert re.fullmatch(pattern, text)
    assert ask(llm, given={"regex": pattern}, max_tokens=1).finish_reason == "length"


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    output = ask(llm, given={"regex": "a"}, logprobs=5, temperature=0)
    (entry,) = output.logprobs[:1]
    plain = llm.generate("p", SamplingParams(max_tokens=1, logprobs=5, temperature=0))
    first = plain[0].outputs[0].logprobs
    assert first is not None
    likeliest = [token for token, one in first[0].items() if one.rank == 1]
    assert likeliest[0] in entry
    assert entry[likeliest[0]].logprob == first[0][likeliest[0]].logprob
    chosen = entry[output.token_ids[0]]
    assert -30 < chosen.logprob < 0, "not that of a choice of one"


def test_reporting_does_not_change_what_is_chosen(llm: LLM) -> None:
    """What reports log-probabilities samples every token; else some are taken ahead."""
    for seed in range(3):
        plain = ask(llm, given={"json": SCHEMA}, seed=seed)
        told = ask(llm, given={"json": SCHEMA}, seed=seed, logprobs=0)
        assert plain.token_ids == told.token_ids
        assert len(told.logprobs) == len(told.token_ids)


def test_several_answers_to_one_prompt(llm: LLM) -> None:
    params = SamplingParams(
        n=4,
        temperature=2.0,
        seed=5,
        max_tokens=200,
        structured_outputs=StructuredOutputsParams(json=SCHEMA),
    )
    outputs = llm.generate("p", params)[0].outputs
    assert len({output.text for output in outputs}) > 1
    for output in outputs:
        json.loads(output.text)


WRONG: list[dict[str, Any]] = [
    {"json": {"type": "objekt"}},
    {"json": {"$ref": "#/nope"}},
    {"json": {"type": "string", "pattern": "("}},
    {"json": []},
    {"json": '"text"'},
    {"regex": "("},
    {"regex": "[z-a]"},
    {"regex": "a{9,1}"},
    {"regex": "(?<=x)y"},
    {"grammar": "root ::= "},
    {"choice": []},
]


@pytest.mark.parametrize("given", WRONG, ids=lambda given: json.dumps(given)[:40])
def test_what_cannot_be_compiled_is_refused_alone(llm: LLM, given: dict[str, Any]) -> None:
    usual = llm.generate("p", SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].token_ids
    with pytest.raises(InvalidRequest) as caught:
        ask(llm, given=given)
    assert caught.value.param == "structured_outputs"
    again = llm.generate("p", SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].token_ids
    assert again == usual


def test_what_rules_everything_out_fails_alone(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="leave none together"):
        ask(llm, given={"regex": "abc"}, allowed_token_ids=[5])


def test_sglang_words(demo_gguf: Path) -> None:
    with Engine(str(demo_gguf)) as engine:
        answer: Any = engine.generate("p", {"regex": "(yes|no)", "max_new_tokens": 9})
        assert answer["text"] in ("yes", "no")
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        answer = engine.generate("p", {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 200})
        json.loads(answer["text"])
        state = engine.get_server_info()["internal_states"][0]
        assert state["forced_tokens"] > 0


def test_none_refuses(demo_gguf: Path) -> None:
    with (
        LLM(str(demo_gguf), grammar_backend="none") as llm,
        pytest.raises(InvalidRequest, match="grammar-backend") as caught,
    ):
        ask(llm, given={"regex": "a"})
    assert caught.value.param == "structured_outputs"


CONSTRAINTS = [
    Constraint.json_schema(SCHEMA),
    Constraint.regex(r"(abc|xyz){2,5} [0-9]+ the end"),
    None,
    Constraint.choice(["a long forced answer", "a longer one, forced as well"]),
    Constraint.json_object(),
]


@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_moves_a_bit(demo_gguf: Path, seed: int) -> None:
    rng = random.Random(seed)
    kinds = [
        SamplingParams(temperature=0, max_tokens=60),
        SamplingParams(temperature=1.5, max_tokens=40, logprobs=1),
        SamplingParams(temperature=1.0, max_tokens=50, repetition_penalty=1.2),
        SamplingParams(temperature=1.0, top_k=40, max_tokens=50),
    ]
    messages = [
        Generate(
            request_id=f"r{at}",
            prompt=[rng.randrange(1000) for _ in range(rng.choice([1, 16, 40, 64]))],
            params=kinds[at % len(kinds)],
            seed=rng.randrange(2**64),
            constraint=CONSTRAINTS[at % len(CONSTRAINTS)],
        )
        for at in range(8)
    ]
    alone = answers_alone(demo_gguf, messages)
    for depth in (0, 1):
        chosen = dataclasses.replace(random_schedule(rng, 200), depth=depth)
        engine = start(demo_gguf, chosen)
        together = serve(engine, messages, chosen)
        forced = engine.stats().forced_tokens
        engine.close()
        assert together == alone
        assert forced > 0
