"""What an answer's text must be: the one constraint a request may have, in canonical form.

Only its shape is checked here; whether a backend can hold it is known when it is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from treadle.errors import InvalidRequest

MAX_CONSTRAINT_CHARS = 2**18
"""Of a constraint's text."""

MAX_NESTING = 64
"""Arrays and objects within each other, in a schema or a structural tag."""

MAX_CHOICES = 4096

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Equal constraints compile to equal grammars, so that it is its own key in caches."""

    kind: Kind
    text: str = ""
    """A schema, list or structural tag as JSON without white space, keys in the order given, which
    is the order of an answer's properties; a regex or grammar as it was given."""
    whitespace: str | None = None
    """A regex for the white space between the tokens of JSON; empty allows none, None is treadle's
    own: no space, one, or a line break and its indentation (`grammars.limits.WHITESPACE`)."""
    closed: bool = False
    """Objects take no properties that the schema does not name, unless it says so itself."""

    @classmethod
    def json_schema(
        cls, schema: object, *, whitespace: str | None = None, closed: bool = False
    ) -> Constraint:
        """From a schema, or the JSON text of one. True and false are schemas too."""
        value = _parsed(schema, "the JSON schema")
        if not isinstance(value, dict | bool):
            raise InvalidRequest(f"the JSON schema is {_named(value)}; it must be an object")
        return cls("json_schema", _canonical(value, "the JSON schema"), whitespace, closed)

    @classmethod
    def json_object(cls, *, whitespace: str | None = None) -> Constraint:
        """Any JSON object."""
        return cls("json_object", whitespace=whitespace)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """The whole answer must match."""
        return cls("regex", _text(pattern, "the regex"))

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Constraint:
        """The answer is one of these."""
        is_list = isinstance(choices, list | tuple)
        if not is_list or not all(isinstance(text, str) for text in choices):
            raise InvalidRequest("the choices must be a list of strings")
        if not choices:
            raise InvalidRequest("the list of choices is empty, so that nothing can be answered")
        if len(choices) > MAX_CHOICES:
            raise InvalidRequest(f"there are {len(choices)} choices; at most {MAX_CHOICES} may be")
        return cls("choice", _canonical(list(dict.fromkeys(choices)), "the list of choices"))

    @classmethod
    def grammar(cls, text: str) -> Constraint:
        """A grammar in Lark's notation, or in GBNF, which SGLang's `ebnf` is too."""
        return cls("grammar", _text(text, "the grammar"))

    @classmethod
    def structural_tag(cls, tag: object) -> Constraint:
        """Free text with constrained parts, in vLLM's or SGLang's form."""
        value = _parsed(tag, "the structural tag")
        if not isinstance(value, dict):
            raise InvalidRequest(f"the structural tag is {_named(value)}; it must be an object")
        return cls("structural_tag", _canonical(value, "the structural tag"))


def _parsed(value: object, what: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(_text(value, what), parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest(_too_deep(what)) from None
    except ValueError as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _canonical(value: Any, what: str) -> str:
    _check_depth(value, what, MAX_NESTING)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None
    return _text(text, what)


def _check_depth(value: object, what: str, left: int) -> None:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    if not left:
        raise InvalidRequest(_too_deep(what))
    for part in value:
        _check_depth(part, what, left - 1)


def _too_deep(what: str) -> str:
    return f"{what} is nested deeper than {MAX_NESTING} levels"


def _text(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} is {_named(text)}; it must be a string")
    if not text:
        raise InvalidRequest(f"{what} is empty")
    if len(text) > MAX_CONSTRAINT_CHARS:
        raise InvalidRequest(
            f"{what} has {len(text)} characters; at most {MAX_CONSTRAINT_CHARS} may be"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} holds a lone surrogate, half of a character") from None
    return text


def _named(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")
