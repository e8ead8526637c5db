"""The keywords of JSON Schema that llguidance enforces, and where it does not quite.

The table was found by random walks whose answers jsonschema judged; a test walks again.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import llguidance

from treadle.errors import InvalidRequest
from treadle.grammars.schema import Place, Rule, audit, check_ends
from treadle.grammars.schema import closed as close


def checked(schema: Any, *, closed: bool) -> dict[str, Any]:
    """The schema as the library shall read it; raises InvalidRequest for what it would ignore."""
    if schema is False:
        raise InvalidRequest("the JSON schema is false, which nothing fits")
    schema = {} if schema is True else {**schema}
    schema.pop("x-guidance", None)  # the library's options, which are not the caller's
    audit(schema, "llguidance", ENFORCED)
    check_ends(schema)
    done: dict[str, Any] = close(schema) if closed else schema
    return done


def _local(place: Place) -> str | None:
    reference = place.schema["$ref"]
    if not isinstance(reference, str):
        return "must be a string"
    if not reference.startswith("#") and "://" in reference:
        return f"names {reference!r:.100}; schemas are not fetched"
    return None


def _apart(place: Place) -> str | None:
    """Names that the schema does not list may come twice, and count once."""
    least, required = place.schema["minProperties"], place.schema.get("required") or []
    if isinstance(least, int) and isinstance(required, list) and least > len(required) + 1:
        return (
            f"is {least}, with {len(required)} properties required; at most one more can be counted"
        )
    return None


def _exclusive(keyword: str) -> Rule:
    def rule(place: Place) -> str | None:
        """The library takes the bound itself where the other one has the same whole part."""
        bound = place.schema[keyword]
        kinds = place.schema.get("type", "number")
        if isinstance(bound, bool) or "number" not in ([kinds] if kinds == "number" else kinds):
            return None
        bounds = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        numbers = {name: place.schema[name] for name in bounds if name in place.schema}
        if isinstance(bound, int | float) and _takes({"type": "number", **numbers}, f"{bound:g}"):
            return f"cannot be kept to beside so close a bound; use one below or above {bound:g}"
        return None

    return rule


def _takes(schema: dict[str, Any], text: str) -> bool:
    source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = llguidance.LLMatcher(_bytes(), source, log_level=0)
    taken = matcher.try_consume_tokens([*text.encode()])
    return bool(taken == len(text) and matcher.is_accepting())


@functools.cache
def _bytes() -> llguidance.LLTokenizer:
    """A vocabulary of single bytes. Making it takes longer than asking it."""
    return llguidance.LLTokenizer("byte")


ENFORCED: dict[str, Rule | None] = {
    **dict.fromkeys(("type", "enum", "const", "$defs", "definitions", "$id", "id", "$anchor")),
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties")),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "minItems", "maxItems")),
    **dict.fromkeys(("minimum", "maximum", "multipleOf", "maxProperties")),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format")),
    **dict.fromkeys(("anyOf", "oneOf", "allOf")),
    "$ref": _local,
    "minProperties": _apart,
    "exclusiveMinimum": _exclusive("exclusiveMinimum"),
    "exclusiveMaximum": _exclusive("exclusiveMaximum"),
}
"""Keyword → why it cannot be kept where it stands. The library itself refuses the combinations that
it knows it cannot keep."""
