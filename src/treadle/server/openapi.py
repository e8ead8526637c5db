"""/openapi.json, made from the table of endpoints and the types that decode requests.

The ranges of numbers come from the table that checks them, so that what is described is what holds.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.server.errors import JSON, ErrorBody
from treadle.server.route import Endpoint
from treadle.text.sglang import NATIVE_NAMES
from treadle.wire.sampling_params import (
    BIAS_LIMIT,
    LIMITS,
    MAX_BAD_WORDS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    Limit,
)

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"

_ERRORS = {
    400: "A field is wrong; `param` names it.",
    401: "No valid API key.",
    403: "Not the admin API key.",
    404: "This server does not have that model.",
    413: "The body is too long.",
    500: "The engine failed.",
    503: "Loading, stopping or full; try again later.",
}

_ALSO_LIMITED = {
    **{theirs: ours for ours, theirs in NATIVE_NAMES.items() if theirs != "logprob_start_len"},
    "top_logprobs": "logprobs",
    "max_completion_tokens": "max_tokens",
}
"""Fields of requests that become fields of SamplingParams under other names."""

_LISTS = {
    "stop": (MAX_STOPS, MAX_STOP_CHARS),
    "bad_words": (MAX_BAD_WORDS, MAX_STOP_CHARS),
    "logprob_token_ids": (MAX_LOGPROB_TOKEN_IDS, None),
}
"""Field → most items, most characters of one."""


class Description:
    """The description of a table, itself a row of it."""

    def __init__(self, endpoints: Sequence[Endpoint], *, with_keys: bool) -> None:
        self._endpoint = Endpoint(
            "/openapi.json", self._answer, "This description.", answer=Json, access="open"
        )
        self._endpoints = [*endpoints, self._endpoint]
        self._with_keys = with_keys

    def endpoints(self) -> list[Endpoint]:
        return [self._endpoint]

    async def _answer(self, request: Request) -> Response:
        del request
        return Response(self._encoded, media_type=JSON)

    @functools.cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(describe(self._endpoints, with_keys=self._with_keys))


def describe(endpoints: Sequence[Endpoint], *, with_keys: bool) -> Json:
    """An OpenAPI 3.1 document."""
    types = _Types()
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        path = paths.setdefault(re.sub(r":\w+}", "}", endpoint.path), {})
        for method in endpoint.methods:
            path[method.lower()] = _operation(endpoint, method, types, with_keys=with_keys)
    components: Json = {"schemas": types.components}
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "treadle", "version": importlib.metadata.version("treadle")},
        "paths": paths,
        "components": components,
    }


class _Types:
    """Schemas of types, and the components that they refer to."""

    def __init__(self) -> None:
        self.components: Json = {}

    def of_request(self, kind: Any) -> Json:
        schema, components = _schema(kind)
        for component in components.values():
            for name, field in component.get("properties", {}).items():
                _limit(name, field)
        self.components |= components
        return schema

    def of_answer(self, kind: Any) -> Json:
        schema, components = _schema(kind)
        self.components = {**components, **self.components}
        return schema


def _schema(kind: Any) -> tuple[Json, Json]:
    [schema], components = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema, components


def _limit(name: str, field: Json) -> None:
    """Write into a field's schema what SamplingParams checks of it."""
    limit = LIMITS.get(_ALSO_LIMITED.get(name, name))
    for kind in field.get("anyOf", [field]):
        if limit is not None and kind.get("type") in ("integer", "number"):
            kind.update(_range(limit))
        elif name in _LISTS:
            most, longest = _LISTS[name]
            text = {"minLength": 1} | ({} if longest is None else {"maxLength": longest})
            if kind.get("type") == "string":
                kind.update(text)
            elif kind.get("type") == "array":
                kind["maxItems"] = most
                kind["items"] |= text if kind["items"].get("type") == "string" else {}
        elif name == "logit_bias" and kind.get("type") == "object":
            kind["propertyNames"] = {"pattern": "^[0-9]+$"}
            kind["additionalProperties"] |= _range(BIAS_LIMIT)


def _range(limit: Limit) -> Json:
    low = "exclusiveMinimum" if limit.open_below else "minimum"
    return {low: limit.low, "maximum": limit.high}


def _operation(endpoint: Endpoint, method: str, types: _Types, *, with_keys: bool) -> Json:
    name = re.sub(r"\W+", "_", endpoint.path).strip("_")
    operation: Json = {
        "operationId": f"{method.lower()}_{name}",
        "summary": endpoint.summary,
        "responses": _responses(endpoint, types, with_keys=with_keys),
    }
    if parameters := [*_path_parameters(endpoint), *_query_parameters(endpoint)]:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content = {JSON: {"schema": types.of_request(endpoint.body)}}
        operation["requestBody"] = {"required": endpoint.body_required, "content": content}
    if with_keys and endpoint.access != "open":
        operation["security"] = [{"key": []}]
    return operation


def _path_parameters(endpoint: Endpoint) -> list[Json]:
    names = re.findall(r"{(\w+)", endpoint.path)
    text = {"type": "string"}
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[Json]:
    if endpoint.query is None:
        return []
    _, components = _schema(endpoint.query)
    properties = components[endpoint.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": properties[name]} for name in properties]


def _responses(endpoint: Endpoint, types: _Types, *, with_keys: bool) -> Json:
    """What each status holds. Every error has OpenAI's shape, save for the probes', who are asked
    for nothing else."""
    answers: dict[int, Json] = {200: {"description": "As asked.", **_answer(endpoint, types)}}
    error = {JSON: {"schema": types.of_answer(ErrorBody)}}
    for status in _statuses(endpoint, with_keys=with_keys):
        answers[status] = {"description": _ERRORS[status], "content": error}
    for status in endpoint.tells:
        answers[status] = {"description": _ERRORS[status], **_answer(endpoint, types)}
    return {str(status): answers[status] for status in sorted(answers)}


def _answer(endpoint: Endpoint, types: _Types) -> Json:
    content: Json = {}
    if endpoint.media is not None:
        content[endpoint.media] = {"schema": {"type": "string"}}
    if endpoint.answer is not None:
        content[JSON] = {"schema": types.of_answer(endpoint.answer)}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"content": content} if content else {}


def _statuses(endpoint: Endpoint, *, with_keys: bool) -> set[int]:
    statuses = set(endpoint.errors)
    if endpoint.body is not None:
        statuses |= {400, 413}
    if endpoint.query is not None:
        statuses.add(400)
    if endpoint.streams:
        statuses |= {500, 503}
    if with_keys and endpoint.access != "open":
        statuses |= {401, 403} if endpoint.access == "admin" else {401}
    return statuses
