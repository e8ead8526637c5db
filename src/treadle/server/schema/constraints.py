"""The fields of an OpenAI request that say what the answer's text must be, of whatever engine: at
most one of them holds something, and what it holds is read whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from treadle.errors import InvalidRequest
from treadle.wire.structured_outputs import StructuredOutputsParams

_NAMED = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "grammar": "grammar"}
"""SGLang's and llama.cpp's fields, and what vLLM calls the same."""

_INSTEAD = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json_object": "structured_outputs.json_object",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "guided_decoding_backend": "the server's grammar_backend",
    "guided_decoding": "structured_outputs",
    "structured_output": "structured_outputs",
    "structural_tag": "structured_outputs.structural_tag",
    "response_schema": "response_format",
}
"""Names that vLLM has given up, and some that are near to those that there are."""


class Constraints(msgspec.Struct, kw_only=True):
    """Nothing here is dropped without a word, since an answer that is not as it must be looks like
    one that is."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None

    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    guided_whitespace_pattern: Any = None
    guided_decoding_backend: Any = None
    guided_decoding: Any = None
    structured_output: Any = None
    structural_tag: Any = None
    response_schema: Any = None

    def constraint(self) -> StructuredOutputsParams | None:
        """Raises InvalidRequest that names the field at fault."""
        for name, instead in _INSTEAD.items():
            if getattr(self, name) not in (None, False):
                raise InvalidRequest(f"{name} is not supported; use {instead}", param=name)
        found = {}
        if self.response_format is not None:
            found["response_format"] = _of_format(self.response_format)
        if self.structured_outputs is not None:
            found["structured_outputs"] = _of_fields(self.structured_outputs)
        for name, kind in _NAMED.items():
            if getattr(self, name) is not None:
                chosen = {kind: getattr(self, name)}
                found[name] = StructuredOutputsParams(**chosen, given_as=name)
        asked = {name: one for name, one in found.items() if one is not None}
        if len(asked) > 1:
            both = " and ".join(asked)
            raise InvalidRequest(
                f"{both} both say what the answer must be; give one", param=list(asked)[-1]
            )
        return next(iter(asked.values()), None)


def _of_fields(given: Mapping[str, Any]) -> StructuredOutputsParams:
    where = "structured_outputs"
    if "given_as" in given:
        raise InvalidRequest(f"{where} has no field 'given_as'", param=f"{where}.given_as")
    try:
        return msgspec.convert(given, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        reason, _, place = str(error).partition(" - at `$.")
        raise InvalidRequest(
            f"{where}: {reason[0].lower()}{reason[1:]}",
            param=f"{where}.{place.rstrip('`')}" if place else where,
        ) from None


def _of_format(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """OpenAI's response_format. A schema is kept to whether it is `strict` or not."""
    where = "response_format"
    match given.get("type"):
        case "text":
            _only(given, where, "type")
            return None
        case "json_object":
            _only(given, where, "type", "schema")
            if given.get("schema") is not None:  # llama.cpp's way
                return StructuredOutputsParams(json=given["schema"], given_as=where)
            return StructuredOutputsParams(json_object=True, given_as=where)
        case "json_schema":
            _only(given, where, "type", "json_schema")
            return StructuredOutputsParams(json=_schema_of(given), given_as=where)
        case "structural_tag":
            return StructuredOutputsParams(structural_tag=dict(given), given_as=where)
        case kind:
            raise InvalidRequest(
                f"{where}.type is {kind!r:.40}; it must be text, json_object, json_schema or"
                " structural_tag",
                param=f"{where}.type",
            )


def _schema_of(given: Mapping[str, Any]) -> Any:
    where = "response_format.json_schema"
    about = given.get("json_schema")
    if not isinstance(about, dict):
        raise InvalidRequest(f"{where} must be an object that holds name and schema", param=where)
    _only(about, where, "name", "description", "schema", "strict")
    if not isinstance(about.get("name"), str) or not about["name"]:
        raise InvalidRequest(f"{where}.name must be a string", param=f"{where}.name")
    if not isinstance(about.get("strict"), bool | None):
        raise InvalidRequest(f"{where}.strict must be true or false", param=f"{where}.strict")
    if not isinstance(about.get("schema"), dict | bool):
        raise InvalidRequest(f"{where}.schema must be a JSON schema", param=f"{where}.schema")
    return about["schema"]


def _only(given: Mapping[str, Any], where: str, *names: str) -> None:
    for name in given:
        if name not in names:
            raise InvalidRequest(
                f"{where} has no field {name!r:.60}; it may hold {', '.join(names)}",
                param=f"{where}.{name:.60}",
            )
