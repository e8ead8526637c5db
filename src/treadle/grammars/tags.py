"""Structural tags, free text with constrained parts, read from the two forms clients send.

    {"type": "structural_tag", "format": {"type": "triggered_tags", …}}   vLLM, SGLang
    {"type": "structural_tag", "structures": […], "triggers": […]}        both, formerly

Both become one tree of formats. Knows no library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from treadle.errors import InvalidRequest
from treadle.wire.constraint import Constraint

MAX_FORMATS = 2000


class ConstString(msgspec.Struct, tag="const_string", forbid_unknown_fields=True):
    """This text."""

    value: str


class JsonSchema(msgspec.Struct, tag="json_schema", forbid_unknown_fields=True):
    """JSON of this schema."""

    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"


class Regex(msgspec.Struct, tag="regex", forbid_unknown_fields=True):
    """Text that matches."""

    pattern: str


class EmbeddedGrammar(msgspec.Struct, tag="grammar", forbid_unknown_fields=True):
    """Text of a grammar."""

    grammar: str


class AnyText(msgspec.Struct, tag="any_text", forbid_unknown_fields=True):
    """Any text, up to what follows."""


class Elements(msgspec.Struct, tag="sequence", forbid_unknown_fields=True):
    """One after the other."""

    elements: list[Format]


class Or(msgspec.Struct, tag="or", forbid_unknown_fields=True):
    """One of them."""

    elements: list[Format]


class Tag(msgspec.Struct, tag="tag", forbid_unknown_fields=True):
    """Content between two texts."""

    begin: str
    content: Format
    end: str


class TriggeredTags(msgspec.Struct, tag="triggered_tags", forbid_unknown_fields=True):
    """Free text; where a trigger occurs in it, a tag that begins with the trigger must follow."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    """The answer begins with a tag."""
    stop_after_first: bool = False


class TagsWithSeparator(msgspec.Struct, tag="tags_with_separator", forbid_unknown_fields=True):
    """Tags and nothing between them but the separator."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | Regex
    | EmbeddedGrammar
    | AnyText
    | Elements
    | Or
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


class _Formatted(msgspec.Struct, forbid_unknown_fields=True):
    format: Format
    type: Literal["structural_tag"] = "structural_tag"


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool = True


class _Structured(msgspec.Struct, forbid_unknown_fields=True):
    structures: list[_Structure]
    triggers: list[str]
    type: Literal["structural_tag"] = "structural_tag"


def read_tag(constraint: Constraint) -> Format:
    """Raises InvalidRequest naming the field at fault."""
    fields = msgspec.json.decode(constraint.text)
    try:
        if "structures" in fields:
            old = msgspec.convert(fields, _Structured)
            tags = [Tag(one.begin, JsonSchema(one.schema), one.end) for one in old.structures]
            tree: Format = TriggeredTags(old.triggers, tags)
        else:
            tree = msgspec.convert(fields, _Formatted).format
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the structural tag is wrong: {error}") from None
    _check(tree)
    return tree


def parts(tree: Format) -> Iterator[Format]:
    """The format itself and every one within it."""
    yield tree
    within: list[Any] = []
    match tree:
        case Elements() | Or():
            within = tree.elements
        case Tag():
            within = [tree.content]
        case TriggeredTags() | TagsWithSeparator():
            within = tree.tags
    for part in within:
        yield from parts(part)


def _check(tree: Format) -> None:
    """What types cannot say."""
    for count, part in enumerate(parts(tree), 1):
        if count > MAX_FORMATS:
            raise InvalidRequest(f"the structural tag holds more than {MAX_FORMATS} formats")
        listed = part.elements if isinstance(part, Elements | Or) else None
        if isinstance(part, TriggeredTags | TagsWithSeparator):
            listed = [*part.tags]
        if listed == []:
            raise InvalidRequest("the structural tag is wrong: a list of elements or tags is empty")
        if isinstance(part, TriggeredTags):
            _check_triggers(part)


def _check_triggers(tree: TriggeredTags) -> None:
    if not tree.triggers or not all(tree.triggers):
        raise InvalidRequest("the structural tag is wrong: triggers must be texts, at least one")
    for tag in tree.tags:
        fitting = [trigger for trigger in tree.triggers if tag.begin.startswith(trigger)]
        if len(fitting) != 1:
            raise InvalidRequest(
                f"the structural tag is wrong: the begin {tag.begin!r:.60} starts with "
                f"{len(fitting)} of the triggers; it must start with one"
            )
    for trigger in tree.triggers:
        if not any(tag.begin.startswith(trigger) for tag in tree.tags):
            raise InvalidRequest(
                f"the structural tag is wrong: no tag begins with the trigger {trigger!r:.60}"
            )
