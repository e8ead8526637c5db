"""JSON schemas under the default backend, judged by jsonschema."""

from __future__ import annotations

import collections
import copy
import datetime as dt
import ipaddress
import json
import random
import re
import uuid
from typing import Any

import jsonschema
import pytest

from tests.grammars.schemas import schema as random_schema
from tests.grammars.walks import allowed, answers, refusal_of, takes, walk
from treadle.grammars.limits import WHITESPACE
from treadle.grammars.llguidance import LLGuidance
from treadle.grammars.llguidance_schema import ENFORCED
from treadle.grammars.schema import KEYWORDS
from treadle.grammars.tokens import TokenTable
from treadle.wire.constraint import Constraint

JUDGE = jsonschema.Draft202012Validator
Schema = dict[str, Any]

NUM_SCHEMAS = 300


@pytest.mark.parametrize("part", range(6))
def test_random_answers_fit_random_schemas(
    backend: LLGuidance, table: TokenTable, part: int
) -> None:
    """Every answer that ends parses and fits; what is refused is refused by a sentence."""
    seen: collections.Counter[str] = collections.Counter()
    for seed in range(part, NUM_SCHEMAS, 6):
        schema = random_schema(random.Random(seed))
        JUDGE.check_schema(schema)
        constraint = Constraint.json_schema(schema)
        if refusal_of(backend, lambda: constraint):  # noqa: B023
            seen["refused"] += 1
            continue
        for text in answers(backend.compile(constraint), table, 5, limit=120):
            seen["answers"] += 1
            value = json.loads(text)
            assert JUDGE(schema).is_valid(value), (schema, text)
    assert seen["answers"] > 150
    assert seen["refused"] < 8


ASKED: dict[str, list[Schema]] = {
    "type": [{"type": "integer"}, {"type": ["null", "boolean"]}, {"type": "string"}],
    "enum": [{"enum": ["a", 1, None]}],
    "const": [{"const": {"a": [1.5]}}],
    "properties": [{"type": "object", "properties": {"a": {"type": "null"}}}],
    "required": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}],
    "additionalProperties": [
        {"type": "object", "additionalProperties": {"type": "boolean"}},
        {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False},
    ],
    "patternProperties": [
        {
            "type": "object",
            "patternProperties": {"^[ab]$": {"const": 1}},
            "additionalProperties": False,
        }
    ],
    "propertyNames": [{"type": "object", "propertyNames": {"maxLength": 2}}],
    "minProperties": [
        {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 1},
        {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 2},
    ],
    "maxProperties": [
        {"type": "object", "additionalProperties": {"const": 1}, "maxProperties": 2},
        {"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "maxProperties": 1},
    ],
    "items": [{"type": "array", "items": {"const": 1}}],
    "prefixItems": [
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False},
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3},
    ],
    "minItems": [{"type": "array", "items": {"const": 1}, "minItems": 3}],
    "maxItems": [{"type": "array", "items": {"const": 1}, "maxItems": 2}],
    "uniqueItems": [{"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}],
    "contains": [{"type": "array", "contains": {"const": 1}}],
    "minContains": [{"type": "array", "contains": {"const": 1}, "minContains": 2}],
    "maxContains": [{"type": "array", "contains": {"const": 1}, "maxContains": 1}],
    "minimum": [{"type": "integer", "minimum": 7}, {"type": "number", "minimum": -0.5}],
    "maximum": [{"type": "integer", "maximum": -7}, {"type": "number", "maximum": 2.25}],
    "exclusiveMinimum": [
        {"type": "integer", "exclusiveMinimum": 7, "maximum": 9},
        {"type": "number", "exclusiveMinimum": 1, "maximum": 1.5},
        {"type": "number", "exclusiveMinimum": 0},
    ],
    "exclusiveMaximum": [
        {"type": "integer", "exclusiveMaximum": 7, "minimum": 5},
        {"type": "number", "exclusiveMaximum": -1, "minimum": -1.5},
        {"type": "number", "exclusiveMaximum": 2.5},
    ],
    "multipleOf": [{"type": "integer", "multipleOf": 7}, {"type": "number", "multipleOf": 0.25}],
    "minLength": [{"type": "string", "minLength": 4}],
    "maxLength": [{"type": "string", "maxLength": 2}],
    "pattern": [
        {"type": "string", "pattern": "^a+b?$"},
        {"type": "string", "pattern": "ab", "maxLength": 5},
        {"type": "string", "pattern": "^\\w{2}$", "minLength": 2},
    ],
    "format": [{"type": "string", "format": "date"}],
    "anyOf": [{"anyOf": [{"const": 1}, {"type": "object", "required": ["a"]}]}],
    "oneOf": [
        {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"minimum": 1}, {"maximum": 5}]},
    ],
    "allOf": [{"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}],
    "not": [{"type": "integer", "not": {"const": 1}}],
    "if": [{"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "null"}}],
    "dependentRequired": [
        {"properties": {"a": {"const": 1}}, "dependentRequired": {"a": ["b"]}, "type": "object"}
    ],
    "dependentSchemas": [{"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}],
    "dependencies": [{"type": "object", "dependencies": {"a": ["b"]}}],
    "unevaluatedProperties": [
        {"type": "object", "properties": {"a": {"const": 1}}, "unevaluatedProperties": False}
    ],
    "unevaluatedItems": [
        {"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": False}
    ],
    "$ref": [{"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}, "minimum": 1}],
    "$dynamicRef": [{"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", "const": 1}}}],
    "$anchor": [{"$ref": "#a", "$defs": {"a": {"$anchor": "a", "const": 1}}}],
    "$id": [{"$id": "http://x/y", "$ref": "a", "$defs": {"a": {"$id": "a", "const": 1}}}],
    "definitions": [{"$ref": "#/definitions/a", "definitions": {"a": {"const": 1}}}],
    "contentSchema": [{"type": "string", "contentSchema": {"type": "integer"}}],
    "additionalItems": [{"type": "array", "additionalItems": {"const": 1}, "minItems": 1}],
}
LAYOUT = {"$defs", "id", "then", "else", "$dynamicAnchor", "$recursiveAnchor", "$recursiveRef"}
"""Keywords that come with others."""


def test_each_keyword_is_asked_for() -> None:
    assert {*ASKED} | LAYOUT == KEYWORDS | {"$anchor"}


@pytest.mark.parametrize("keyword", ASKED)
def test_a_keyword_is_enforced_or_refused_by_name(
    backend: LLGuidance, table: TokenTable, keyword: str
) -> None:
    for schema in ASKED[keyword]:
        constraint = Constraint.json_schema(schema)
        refusal = refusal_of(backend, lambda: constraint)  # noqa: B023
        if refusal is not None:
            named = {"minContains": "contains", "maxContains": "contains"}.get(keyword, keyword)
            assert named in refusal or "min/maxProperties" in refusal, refusal
            continue
        assert keyword in ENFORCED
        judge = jsonschema.Draft7Validator if keyword == "additionalItems" else JUDGE
        texts = [*answers(backend.compile(constraint), table, 60, limit=60)]
        assert len(texts) > 3, keyword
        for text in texts:
            assert judge(schema).is_valid(json.loads(text)), (schema, text)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "objekt"),
        ({"$ref": "#/nope"}, "/nope"),
        ({"$ref": "https://example.com/schema.json"}, "schemas are not fetched"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "#/properties/a"),
        ({"$defs": {"x/y": {"not": {}}}}, "#/$defs/x~1y"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"properties": {"a": 3}}, "#/properties/a: 3 stands where a schema is due"),
        ({"anyOf": {}}, "'anyOf' must be a list"),
        ({"properties": []}, "'properties' must be an object"),
        ({"enum": []}, "nothing fits"),
        ({"type": "string", "minLength": "3"}, "minLength"),
        (False, "false"),
        ({"$ref": "#"}, "never ends"),
        ({"properties": {"a": {"$ref": "#"}}, "type": "object", "required": ["a"]}, "never ends"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "never ends"),
        ({"not": {}, "x-guidance": {"lenient": True}}, "'not'"),
    ],
)
def test_refusals_name_what_is_wrong(backend: LLGuidance, schema: Any, reason: str) -> None:
    sentence = refusal_of(backend, lambda: Constraint.json_schema(schema))
    assert sentence is not None
    assert reason in sentence


def test_names_that_are_no_keywords_where_they_stand(
    backend: LLGuidance, table: TokenTable
) -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"const": {"uniqueItems": 1}}, "if": {"enum": [{"contains": 1}]}},
        "required": ["not", "if"],
        "additionalProperties": False,
        "default": {"not": {}},
        "examples": [{"if": {}}],
        "title": "t",
        "x-order": {"not": 1},
    }
    grammar = backend.compile(Constraint.json_schema(schema, whitespace=""))
    assert takes(grammar, table, '{"not":{"uniqueItems":1},"if":{"contains":1}}')


def test_what_may_end_is_taken(backend: LLGuidance) -> None:
    for schema in (
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]},
        {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"const": 1}},
            "$ref": "#/$defs/a",
        },
    ):
        backend.compile(Constraint.json_schema(schema))


COLORS = {
    "type": "object",
    "properties": {
        "c": {"$ref": "#/$defs/C"},
        "l": {"type": "array", "items": {"$ref": "#/$defs/C"}, "minItems": 2, "maxItems": 2},
    },
    "required": ["c", "l"],
    "additionalProperties": False,
    "$defs": {"C": {"enum": ["red", "green"]}},
}


def test_references_do_not_depend_on_the_order_of_keys(
    backend: LLGuidance, table: TokenTable
) -> None:
    first = {key: COLORS[key] for key in reversed(COLORS)}
    old = json.loads(json.dumps(COLORS).replace("$defs", "definitions"))
    chained = copy.deepcopy(COLORS)
    chained["$defs"] = {"C": {"$ref": "#/$defs/D"}, "D": {"enum": ["red", "green"]}}
    written = set()
    for schema in (COLORS, first, old, chained):
        grammar = backend.compile(Constraint.json_schema(schema))
        texts = [walk(grammar, table, seed) for seed in range(20)]
        for text in texts:
            assert text is not None
            assert JUDGE(schema).is_valid(json.loads(text))
        written.add(tuple(texts))
    assert len(written) == 1, "the same seed, the same text"


def test_literals_of_any_script(backend: LLGuidance, table: TokenTable) -> None:
    values = ["café", "日本", 'a"b', "line\nbreak", "😀", "\x01"]
    escaped, raw = (json.dumps({"enum": values}, ensure_ascii=escape) for escape in (True, False))
    for schema in (escaped, raw):
        grammar = backend.compile(Constraint.json_schema(schema))
        seen = {json.loads(text) for text in answers(grammar, table, 40)}
        assert len(seen) > 3
        assert seen <= {*values}


def test_strings_hold_no_control_characters_and_no_wrong_escapes(
    backend: LLGuidance, table: TokenTable
) -> None:
    schema = {"type": "string", "minLength": 30, "maxLength": 60}
    grammar = backend.compile(Constraint.json_schema(schema))
    count = 0
    for text in answers(grammar, table, 40):
        count += 1
        assert min(text) >= 0x20
        assert 30 <= len(json.loads(text)) <= 60
    assert count > 20


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.json_object(),
        Constraint.json_schema(
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        ),
        Constraint.json_schema({"type": "array", "items": {"enum": [1, "a  b"]}, "minItems": 3}),
    ],
)
def test_white_space_is_bounded(
    backend: LLGuidance, table: TokenTable, constraint: Constraint
) -> None:
    """A walk that leans towards white space; within strings it means something."""
    grammar = backend.compile(constraint)
    blank = [token for token, text in enumerate(table.spellings) if text and not text.strip()]
    choose, matcher, text = random.Random(1), grammar.matcher(), b""
    for _ in range(300):
        tokens = [token for token in blank if matcher.clone().accept(token)]
        if not tokens or choose.random() < 0.2:
            tokens = allowed(matcher, table)
        token = choose.choice(tokens)
        assert matcher.accept(token)
        text += table.spellings[token]
        if matcher.is_finished:
            break
    outside = re.sub(rb'"([^"\\]|\\.)*("|$)', b'""', text)
    runs = [len(run) for run in re.findall(rb"\s+", outside)]
    assert 0 < max(runs) <= 17
    assert re.fullmatch(WHITESPACE, "\n" + " " * 16)


def test_white_space_as_asked_for(backend: LLGuidance, table: TokenTable) -> None:
    schema = {"type": "object", "properties": {"a": {"const": [1, 2]}}, "required": ["a"]}
    none = backend.compile(Constraint.json_schema(schema, whitespace="", closed=True))
    assert takes(none, table, '{"a":[1,2]}')
    assert not takes(none, table, '{"a": [1,2]}')
    assert not takes(none, table, '{"a":[1,2],"b":1}')
    own = backend.compile(Constraint.json_schema(schema, whitespace=r"[\t ]{0,2}"))
    assert takes(own, table, '{\t"a": \t[1,2]}')
    assert not takes(own, table, '{\n"a":[1,2]}')
    assert takes(own, table, '{"a":[1,2],"b":1}')
    sentence = refusal_of(backend, lambda: Constraint.json_schema(schema, whitespace="("))
    assert sentence is not None
    assert "unclosed group" in sentence


def test_formats_mean_what_they_say(backend: LLGuidance, table: TokenTable) -> None:
    readers = {
        "date": dt.date.fromisoformat,
        "date-time": lambda text: dt.datetime.fromisoformat(text.upper().replace(":60", ":59")),
        "uuid": uuid.UUID,
        "ipv4": ipaddress.IPv4Address,
        "ipv6": ipaddress.IPv6Address,
    }
    for name, read in readers.items():
        grammar = backend.compile(Constraint.json_schema({"type": "string", "format": name}))
        texts = [json.loads(text) for text in answers(grammar, table, 60)]
        assert len(texts) > 40
        for text in texts:
            try:
                read(text)
            except ValueError as error:
                raise AssertionError((name, text)) from error
