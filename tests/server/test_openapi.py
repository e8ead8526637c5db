"""/openapi.json says what holds: every route, every field, and ranges that are enforced."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from tests.server.conftest import Start
from tests.server.served import Served
from treadle.server.schema.chat import ChatRequest
from treadle.server.schema.completions import CompletionRequest
from treadle.text.sglang import GenerateRequest, Sampling
from treadle.wire.sampling_params import LIMITS

Json = dict[str, Any]

PATHS = {
    "/live": ["get"],
    "/health": ["get"],
    "/ping": ["get", "post"],
    "/health_generate": ["get"],
    "/version": ["get"],
    "/server_info": ["get"],
    "/get_server_info": ["get"],
    "/get_model_info": ["get"],
    "/get_weight_version": ["get"],
    "/get_load": ["get"],
    "/load": ["get"],
    "/metrics": ["get"],
    "/v1/models": ["get"],
    "/v1/models/{model}": ["get"],
    "/v1/completions": ["post"],
    "/v1/chat/completions": ["post"],
    "/generate": ["post", "put"],
    "/abort_request": ["post"],
    "/tokenize": ["post"],
    "/v1/tokenize": ["post"],
    "/detokenize": ["post"],
    "/v1/detokenize": ["post"],
    "/apply-template": ["post"],
    "/tokenizer_info": ["get"],
    "/pause": ["post"],
    "/resume": ["post"],
    "/is_paused": ["get"],
    "/pause_generation": ["post"],
    "/continue_generation": ["post"],
    "/reset_prefix_cache": ["post"],
    "/flush_cache": ["get", "post"],
    "/openapi.json": ["get"],
}


@pytest.fixture(scope="module")
def described(server: Served) -> Json:
    response = httpx.get(f"{server.url}/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert isinstance(document, dict)
    return document


def alternatives(schema: Json) -> list[Json]:
    found = schema.get("anyOf", [schema])
    assert isinstance(found, list)
    return found


def test_every_route_with_its_methods(described: Json) -> None:
    assert described["openapi"] == "3.1.0"
    assert {path: sorted(methods) for path, methods in described["paths"].items()} == PATHS
    operations = [one for path in described["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)


def test_other_methods_are_405(server: Served, described: Json) -> None:
    for path, methods in described["paths"].items():
        url = server.url + path.replace("{model}", "fake")
        for method in {"get", "post", "put", "patch", "delete"} - set(methods):
            response = httpx.request(method.upper(), url)
            assert response.status_code == 405, (method, path)
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_every_reference_is_there(described: Json) -> None:
    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [ref for child in node.values() for ref in references(child)]
        if isinstance(node, list):
            return [ref for child in node for ref in references(child)]
        return []

    found = set(references(described))
    schemas = described["components"]["schemas"]
    assert found == {f"#/components/schemas/{name}" for name in schemas}


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest, GenerateRequest, Sampling])
def test_every_field(described: Json, kind: type[msgspec.Struct]) -> None:
    schema = described["components"]["schemas"][kind.__name__]
    assert set(schema["properties"]) == {f.encode_name for f in msgspec.structs.fields(kind)}


def test_every_limit_is_told(described: Json) -> None:
    fields = described["components"]["schemas"]["CompletionRequest"]["properties"]
    for name, limit in LIMITS.items():
        if name in fields and name != "prompt_logprobs":
            [number] = [
                one for one in alternatives(fields[name]) if one["type"] in ("integer", "number")
            ]
            low = "exclusiveMinimum" if limit.open_below else "minimum"
            assert (number[low], number["maximum"]) == (limit.low, limit.high)


def test_limits_are_enforced_where_they_are_told(server: Served, described: Json) -> None:
    """Just beyond each, a request is refused; at each, it is not."""
    schemas = described["components"]["schemas"]
    bodies: list[tuple[str, str, Any]] = [
        ("/v1/completions", "CompletionRequest", lambda name, x: {"prompt": "a", name: x}),
        ("/generate", "Sampling", lambda name, x: {"text": "a", "sampling_params": {name: x}}),
    ]
    for path, schema, body_of in bodies:
        num_checked = 0
        for name, field in schemas[schema]["properties"].items():
            for number in alternatives(field):
                if number.get("type") not in ("integer", "number") or "maximum" not in number:
                    continue
                num_checked += 1
                open_below = "exclusiveMinimum" in number
                low = number["exclusiveMinimum" if open_below else "minimum"]
                for value in (number["maximum"] + 1, low if open_below else low - 1):
                    assert server.post(path, **body_of(name, value)).status_code == 400, name
                if name not in ("max_tokens", "max_new_tokens", "min_tokens", "min_new_tokens"):
                    body = body_of(name, number["maximum"])
                    assert server.post(path, **body).status_code == 200, name
        assert num_checked >= 10


def test_answers_are_as_described(server: Served, described: Json) -> None:
    """By msgspec's own reading of the schemas' types: required fields, and no others."""
    schemas = described["components"]["schemas"]

    def check(value: Any, schema: Json) -> None:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        if "properties" in schema:
            assert set(schema["required"]) <= set(value) <= set(schema["properties"])
            for name, child in value.items():
                check(child, schema["properties"][name])
        elif schema.get("type") == "array" and "items" in schema and schema["items"]:
            for child in value:
                check(child, schema["items"])

    calls: list[tuple[str, str, Json]] = [
        ("post", "/v1/completions", {"prompt": "a b", "logprobs": 1}),
        ("post", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("post", "/tokenize", {"prompt": "a"}),
        ("post", "/detokenize", {"tokens": [5]}),
        ("post", "/detokenize", {"tokens": [-5]}),
        ("post", "/pause?mode=x", {}),
        ("get", "/server_info", {}),
        ("get", "/get_model_info", {}),
        ("get", "/get_load", {}),
        ("get", "/load", {}),
        ("get", "/health", {}),
        ("get", "/v1/models", {}),
    ]
    for method, path, body in calls:
        response = httpx.request(method, server.url + path, json=body, timeout=20)
        told = described["paths"][path.partition("?")[0]][method]["responses"]
        content = told[str(response.status_code)]["content"]
        check(response.json(), content[response.headers["content-type"]]["schema"])


def test_security_where_there_are_keys(start: Start, described: Json) -> None:
    assert "securitySchemes" not in described["components"]
    served = start("fake", "--api-key", "k").wait_ready()
    document = httpx.get(f"{served.url}/openapi.json").json()
    assert document["components"]["securitySchemes"] == {
        "key": {"type": "http", "scheme": "bearer"}
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            guarded = httpx.request(method, served.url + path).status_code == 401
            assert ("security" in operation) == guarded == ("401" in operation["responses"]), path
