"""What a caller may ask of an answer's text, under vLLM's names; one of them is the constraint."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from treadle.errors import InvalidRequest
from treadle.wire.constraint import Constraint

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputsParams(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    dict=True,
):
    """Exactly one of the first six is given."""

    json: Any = None
    """A JSON schema, as an object or its text."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """In Lark's notation or in GBNF."""
    json_object: bool | None = None
    """Any JSON object; false is the same as leaving it out."""
    structural_tag: Any = None
    disable_any_whitespace: bool = False
    """No white space between the tokens of JSON."""
    disable_additional_properties: bool = False
    """Objects take no properties that the schema does not name, unless it says so itself."""
    whitespace_pattern: str | None = None
    """A regex for the white space between the tokens of JSON."""
    given_as: str = "structured_outputs"
    """The field of the request that it came in, for errors."""

    def __post_init__(self) -> None:
        """Raise InvalidRequest, naming the field, unless one constraint of the right shape is
        asked for."""
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        # A schema may be `false`, which no answer meets: a constraint, not the absence of one.
        given += ["json"] if self.json is False else []
        if len(given) != 1:
            which = " and ".join(given) or "none"
            raise InvalidRequest(
                f"{self.given_as} must hold exactly one of {', '.join(KINDS)}; it holds {which}",
                param=self.given_as,
            )
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise InvalidRequest(
                "disable_any_whitespace leaves whitespace_pattern without a meaning; give one",
                param=self.given_as,
            )
        self._check_options(given[0])
        self.constraint  # noqa: B018 – made here, so that a wrong one is refused here

    @functools.cached_property
    def constraint(self) -> Constraint:
        """The constraint in canonical form."""
        try:
            return self._constraint()
        except InvalidRequest as error:
            message = f"{self.given_as}: {error.message}"
            raise InvalidRequest(message, param=self.given_as) from None

    def _check_options(self, given: str) -> None:
        """An option that changes nothing was meant for something else."""
        options = {
            "disable_any_whitespace": ("json", "json_object"),
            "whitespace_pattern": ("json", "json_object"),
            "disable_additional_properties": ("json",),
        }
        for option, kinds in options.items():
            if getattr(self, option) not in (None, False) and given not in kinds:
                raise InvalidRequest(
                    f"{self.given_as}: {option} goes with {' or '.join(kinds)}, not {given}",
                    param=self.given_as,
                )

    def _constraint(self) -> Constraint:
        whitespace = "" if self.disable_any_whitespace else self.whitespace_pattern
        if self.json_object:
            return Constraint.json_object(whitespace=whitespace)
        if self.regex is not None:
            return Constraint.regex(self.regex)
        if self.choice is not None:
            return Constraint.choice(self.choice)
        if self.grammar is not None:
            return Constraint.grammar(self.grammar)
        if self.structural_tag is not None:
            return Constraint.structural_tag(self.structural_tag)
        closed = self.disable_additional_properties
        return Constraint.json_schema(self.json, whitespace=whitespace, closed=closed)
