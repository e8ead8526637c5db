"""Structural tags in both forms: free text, and constrained parts where it calls for them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.grammars.walks import answers, refusal_of, takes
from treadle.grammars.llguidance import LLGuidance
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TIME = {"type": "integer", "minimum": 0, "maximum": 23}

OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=city>", "schema": CITY, "end": "</f>"},
        {"begin": "<f=time>", "schema": TIME, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
TAGS = [
    {
        "type": "tag",
        "begin": one["begin"],
        "content": {"type": "json_schema", "json_schema": one["schema"]},
        "end": one["end"],
    }
    for one in OLD["structures"]  # type: ignore[attr-defined]
]


def triggered(**options: bool) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": TAGS, **options}


def separated(**options: bool) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": TAGS, "separator": "; ", **options}


def of(form: dict[str, Any]) -> Constraint:
    return Constraint.structural_tag({"type": "structural_tag", "format": form})


ROME, NINE = '<f=city>{"city":"Rome"}</f>', "<f=time>9</f>"


@pytest.mark.parametrize("constraint", [Constraint.structural_tag(OLD), of(triggered())])
def test_free_text_with_tags(
    backend: LLGuidance, table: TokenTable, constraint: Constraint
) -> None:
    grammar = backend.compile(constraint)
    for text in (
        "",
        "plain < text\n",
        ROME,
        f"It is {NINE}.",
        f"a{ROME}{NINE}b{ROME}",
        "</f>",
        "<f",
    ):
        assert takes(grammar, table, text), text
    for text in ("<f=", "x<f=other>", "<f=city>[]</f>", '<f=city>{"city":"Paris"}</f>', NINE[:-1]):
        assert not takes(grammar, table, text), text
    assert not takes(grammar, table, "<f=time>24</f>")
    assert takes(grammar, table, f"{NINE}<f"), "a trigger that is not complete is text"


def test_every_call_in_a_random_answer_is_right(backend: LLGuidance, table: TokenTable) -> None:
    """Text is short when a trigger is half of the alphabet."""
    tags = [{**tag, "begin": tag["begin"].replace("<f", "e")} for tag in TAGS]
    form = {"type": "triggered_tags", "triggers": ["e"], "tags": tags}
    grammar = backend.compile(of(form))
    count = 0
    for text in answers(grammar, table, 60, ending=0.02):
        found = re.findall("e=(city|time)>(.*?)</f>", text.decode(errors="replace"), re.DOTALL)
        count += len(found)
        for name, body in found:
            value = json.loads(body)
            assert value in range(24) if name == "time" else value["city"] in ("Rome", "Oslo")
        rest = re.sub("(?s)e=(city|time)>(.*?)</f>", "", text.decode(errors="replace"))
        assert "e" not in rest
    assert count > 20


def test_at_least_one_and_stop_after_first(backend: LLGuidance, table: TokenTable) -> None:
    one = backend.compile(of(triggered(at_least_one=True)))
    assert takes(one, table, f"{ROME} and {NINE} too")
    assert not takes(one, table, f"so {ROME}")
    assert not takes(one, table, "")
    first = backend.compile(of(triggered(stop_after_first=True)))
    assert takes(first, table, f"so {ROME}")
    assert takes(first, table, "plain")
    assert not takes(first, table, f"{ROME}.")
    both = backend.compile(of(triggered(at_least_one=True, stop_after_first=True)))
    assert takes(both, table, ROME)
    assert not takes(both, table, f"{ROME}.")
    assert not takes(both, table, "plain")


def test_tags_with_separator(backend: LLGuidance, table: TokenTable) -> None:
    grammar = backend.compile(of(separated()))
    for text in ("", ROME, f"{ROME}; {NINE}; {NINE}"):
        assert takes(grammar, table, text), text
    for text in (f"{ROME}; ", f"{ROME}{NINE}", "text", f"{ROME};{NINE}"):
        assert not takes(grammar, table, text), text
    some = backend.compile(of(separated(at_least_one=True, stop_after_first=True)))
    assert takes(some, table, NINE)
    assert not takes(some, table, "")
    assert not takes(some, table, f"{NINE}; {NINE}")


def test_sequences_alternatives_and_leaves(backend: LLGuidance, table: TokenTable) -> None:
    form = {
        "type": "sequence",
        "elements": [
            {
                "type": "tag",
                "begin": "<think>",
                "content": {"type": "any_text"},
                "end": "</think>",
            },
            {
                "type": "or",
                "elements": [
                    {"type": "const_string", "value": "yes"},
                    {"type": "regex", "pattern": "[0-9]{2}/[0-9]"},
                    {"type": "grammar", "grammar": 'root ::= "(" root? ")"'},
                    {"type": "json_schema", "json_schema": {"const": {"a": 1}}},
                ],
            },
        ],
    }
    grammar = backend.compile(of(form))
    for end in ("yes", "12/3", "((()))", '{"a": 1}'):
        assert takes(grammar, table, f"<think>any < text</think>{end}"), end
        assert takes(grammar, table, f"<think></think>{end}"), end
        assert not takes(grammar, table, end)
    for end in ("no", "12/", "(()", '{"a": 2}', "yesyes", " yes"):
        assert not takes(grammar, table, f"<think>x</think>{end}"), end


def test_free_text_then_a_tag(backend: LLGuidance, table: TokenTable) -> None:
    form = {"type": "sequence", "elements": [{"type": "any_text"}, TAGS[0], {"type": "any_text"}]}
    grammar = backend.compile(of(form))
    assert takes(grammar, table, f"so <f {ROME} and more")
    assert not takes(grammar, table, "so")
    assert not takes(grammar, table, "<f=city>1")


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ({"type": "structural_tag"}, "missing required field `format`"),
        ({"type": "structural_tag", "format": {"type": "nothing"}}, "'nothing'"),
        ({"type": "structural_tag", "format": {"type": "any_text", "x": 1}}, "unknown field `x`"),
        ({"type": "other", "format": {"type": "any_text"}}, "'other'"),
        ({**OLD, "triggers": []}, "triggers"),
        ({**OLD, "triggers": ["<g="]}, "starts with 0 of the triggers"),
        ({**OLD, "triggers": ["<f=", "<f=c"]}, "starts with 2 of the triggers"),
        ({**OLD, "triggers": ["<f=", "<g"]}, "no tag begins with the trigger '<g'"),
        ({**OLD, "structures": []}, "empty"),
        ({**OLD, "structures": [{"begin": "<f=", "end": "", "schema": {"not": {}}}]}, "'not'"),
        (
            {**OLD, "structures": [{"begin": "<f=", "end": "", "schema": {"type": "objekt"}}]},
            "objekt",
        ),
        (
            {
                "type": "structural_tag",
                "format": {"type": "sequence", "elements": [{"type": "any_text"}] * 2},
            },
            "tell where it ends",
        ),
        ({"type": "structural_tag", "format": {"type": "regex", "pattern": "("}}, "unclosed group"),
        ({"type": "structural_tag", "format": {"type": "grammar", "grammar": "r ::= ("}}, "wrong"),
    ],
)
def test_wrong_tags(backend: LLGuidance, tag: dict[str, Any], reason: str) -> None:
    sentence = refusal_of(backend, lambda: Constraint.structural_tag(tag))
    assert sentence is not None
    assert reason in sentence
