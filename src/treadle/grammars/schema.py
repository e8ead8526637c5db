"""What a JSON schema asks for, keyword by keyword, so that nothing in it is ignored unseen.

Libraries differ in what they enforce, and some pass over the rest. Each backend names the keywords
that it enforces; a schema that uses others is refused here, by the keyword and its place. Words
that no draft of JSON Schema gives a meaning are notes, as the standard has it.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from treadle.errors import InvalidRequest

_ONE = {"additionalProperties", "additionalItems", "contains", "contentSchema", "else", "if"}
_ONE |= {"items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
_LIST = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keywords that hold a schema, a list of them, or schemas by name."""

_VALUES = {"$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef"}
_VALUES |= {"$ref", "const", "dependencies", "dependentRequired", "enum", "format", "id", "type"}
_VALUES |= {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf", "pattern"}
_VALUES |= {"maxContains", "minContains", "maxItems", "minItems", "maxLength", "minLength"}
_VALUES |= {"maxProperties", "minProperties", "required", "uniqueItems"}

KEYWORDS = frozenset(_ONE | _LIST | _NAMED | _VALUES)
"""All that narrow a schema, or say where one is, in drafts 4 to 2020-12."""

MAX_SCHEMAS = 20_000
"""Schemas within a schema."""


class Place(NamedTuple):
    """One schema within the whole, and its JSON pointer."""

    schema: Mapping[str, Any]
    pointer: str

    def refuse(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"the JSON schema at {self.pointer or '#'}: {reason}")


def places(schema: Any) -> Iterator[Place]:
    """The schema itself and every one within it, outermost first; True and False hold none.

    Raises InvalidRequest where something else stands in a schema's place.
    """
    waiting: list[tuple[Any, str]] = [(schema, "#")]
    count = 0
    while waiting:
        value, pointer = waiting.pop()
        if isinstance(value, bool):
            continue
        if not isinstance(value, dict):
            raise InvalidRequest(
                f"the JSON schema at {pointer}: {value!r:.40} stands where a schema is due"
            )
        count += 1
        if count > MAX_SCHEMAS:
            raise InvalidRequest(f"the JSON schema holds more than {MAX_SCHEMAS} schemas")
        yield Place(value, pointer)
        waiting.extend(reversed([*_within(value, pointer)]))


def _within(schema: Mapping[str, Any], pointer: str) -> Iterator[tuple[Any, str]]:
    for keyword, value in schema.items():
        at = f"{pointer}/{_escape(keyword)}"
        if keyword in _NAMED and isinstance(value, dict):
            yield from ((part, f"{at}/{_escape(name)}") for name, part in value.items())
        elif keyword in _LIST and isinstance(value, list):
            yield from ((part, f"{at}/{index}") for index, part in enumerate(value))
        elif keyword in _ONE:
            yield value, at
        elif keyword in _NAMED or keyword in _LIST:
            due = "an object" if keyword in _NAMED else "a list"
            raise Place(schema, pointer).refuse(f"'{keyword}' must be {due} of schemas")


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


Rule = Callable[[Place], str | None]
"""Why a backend cannot hold a keyword where it stands, if it cannot."""


def audit(schema: Any, backend: str, enforced: Mapping[str, Rule | None]) -> None:
    """Raise InvalidRequest for the first keyword that the backend does not enforce as it stands."""
    for place in places(schema):
        for keyword in place.schema:
            if keyword not in KEYWORDS:
                continue
            if keyword not in enforced:
                raise place.refuse(
                    f"the keyword '{keyword}' is not enforced by the grammar backend {backend}"
                )
            rule = enforced[keyword]
            reason = None if rule is None else rule(place)
            if reason is not None:
                raise place.refuse(f"the keyword '{keyword}' {reason}")


def listed(place: Place) -> str | None:
    """A rule of several backends: properties that must be there are those that are listed."""
    names = place.schema.get("properties") or {}
    for name in place.schema["required"]:
        if name not in names:
            return f"names {name!r:.60}, which 'properties' does not list"
    return None


def closed(schema: Any) -> Any:
    """The schema with objects that take no properties it does not name (vLLM's rule: those that
    list some and do not say)."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    done: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            done[keyword] = {name: closed(part) for name, part in value.items()}
        else:
            done[keyword] = closed(value) if keyword in _ONE or keyword in _LIST else value
    if "properties" in schema or "patternProperties" in schema:
        done.setdefault("additionalProperties", False)
    return done


def check_ends(schema: Any) -> None:
    """Raise InvalidRequest for a schema whose every answer would have to go on for ever, such as an
    object that must hold itself. References beyond the schema are somebody else's concern."""
    ends: dict[str, bool] = {}
    for place in places(schema):
        reference = place.schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            ends[reference] = False
    changed = True
    while changed:  # the least fixed point: what ends, given what is known to end
        changed = False
        for reference in [reference for reference, known in ends.items() if not known]:
            target = resolve(schema, reference)
            if target is None or _ends(target, ends):
                ends[reference] = changed = True
    if not _ends(schema, ends):
        raise InvalidRequest("the JSON schema asks for an answer that never ends: it needs itself")


def resolve(schema: Any, reference: str) -> Any:
    """What a pointer within the schema names; None for other references."""
    at = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        name = urllib.parse.unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, dict) and name in at:
            at = at[name]
        else:
            return None
    return at if reference == "#" or reference.startswith("#/") else None


def _ends(schema: Any, known: Mapping[str, bool]) -> bool:
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return True
    if not known.get(schema.get("$ref", ""), True):
        return False
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list) and parts and not any(_ends(p, known) for p in parts):
            return False
    if not all(_ends(part, known) for part in schema.get("allOf") or ()):
        return False
    return any(_kind_ends(schema, kind, known) for kind in _kinds(schema))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", ["null", "object", "array"])
    return kinds if isinstance(kinds, list) else [kinds]


def _kind_ends(schema: Mapping[str, Any], kind: str, known: Mapping[str, bool]) -> bool:
    if kind == "object":
        properties = schema.get("properties") or {}
        return all(_ends(properties.get(name), known) for name in schema.get("required") or ())
    least = schema.get("minItems", 0)
    if kind != "array" or not least:
        return True
    first = schema.get("prefixItems") or []
    if not all(_ends(part, known) for part in first[:least]):
        return False
    return least <= len(first) or _ends(schema.get("items"), known)
