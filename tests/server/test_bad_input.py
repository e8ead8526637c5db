"""No input is answered with a 5xx; every refusal is OpenAI-shaped and says where the fault is."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest

from tests.server.fake_engine import KV_TOKENS, VOCAB_SIZE
from tests.server.served import DEADLINE_S, Served, read_until
from treadle.server.body import MAX_BODY_BYTES

PATH = "/v1/completions"


def raw(server: Served, body: bytes, path: str = PATH) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=body, timeout=DEADLINE_S)


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, after checking its shape; strict JSON, whatever it quotes."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content, parse_constant=pytest.fail)
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert isinstance(error, dict)
    return error


@pytest.fixture(autouse=True)
def _alive_afterwards(server: Served) -> Any:
    yield
    assert server.complete("a b").status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b'{"prompt": "a"} x', b'{"prompt": "\xff"}', b"\xef\xbb\xbf{}"],
)
def test_not_json(server: Served, body: bytes) -> None:
    refusal(raw(server, body))


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null", b"5"])
def test_not_an_object(server: Served, body: bytes) -> None:
    assert "the body" in refusal(raw(server, body))["message"]


def test_deep_nesting(server: Served) -> None:
    for depth in (900, 100_000):
        body = b'{"prompt": "a", "nonsense": ' + b"[" * depth + b"]" * depth + b"}"
        assert raw(server, body).status_code in (200, 400)
    refusal(raw(server, b'{"suffix": ' + b'{"a":' * 100_000))


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"]
)
def test_not_finite(server: Served, field: str, number: bytes) -> None:
    body = b'{"prompt": "p", "' + field.encode() + b'": ' + number + b"}"
    assert refusal(raw(server, body))["param"] == field


def test_not_finite_inside(server: Served) -> None:
    error = refusal(raw(server, b'{"prompt": "p", "logit_bias": {"5": NaN}}'))
    assert error["param"] == "logit_bias.5"


@pytest.mark.parametrize(
    ("body", "path", "param"),
    [
        (rb'{"prompt": "\ud83d"}', PATH, "prompt"),
        (rb'{"prompt": "a", "stop": ["\ud83d"]}', PATH, "stop[0]"),
        (rb'{"prompt": "a", "model": "\ud83d"}', PATH, "model"),
        (
            rb'{"messages": [{"role": "user", "content": "\udc00x"}]}',
            "/v1/chat/completions",
            "messages[0].content",
        ),
        (rb'{"prompt": "a", "x\ud83d": "\ud83d"}', PATH, "x\\ud83d"),
    ],
)
def test_half_surrogate_pairs(server: Served, body: bytes, path: str, param: str) -> None:
    assert refusal(raw(server, body, path))["param"] == param


def test_null_character_is_text(server: Served) -> None:
    assert server.complete("\0", max_tokens=1).status_code == 200


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""], [[1], []], None])
def test_empty_prompt(server: Served, prompt: Any) -> None:
    assert refusal(server.complete(prompt))["param"] == "prompt"


@pytest.mark.parametrize("prompt", [[1, "a"], [[1], 2], [[1, "a"]], [1.5], {"a": 1}, 5, [None]])
def test_prompt_of_wrong_type(server: Served, prompt: Any) -> None:
    assert refusal(server.complete(prompt))["param"].startswith("prompt")


@pytest.mark.parametrize("bad", [VOCAB_SIZE, VOCAB_SIZE + 1000, -1, 2**31, 2**63, 2**64, 2**70])
def test_ids_outside_the_vocabulary(server: Served, bad: int) -> None:
    for prompt in ([1, bad], [[1], [bad]]):
        error = refusal(server.complete(prompt))
        assert error["param"] == "prompt"
        assert str(VOCAB_SIZE - 1) in error["message"]
    for field in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        error = refusal(server.complete("p", logprobs=1, **{field: [bad]}))
        assert error["param"] == field
        assert str(VOCAB_SIZE - 1) in error["message"]
    error = refusal(server.complete("p", stop_token_ids=[bad], min_tokens=3))
    assert error["param"] == "stop_token_ids"
    assert refusal(server.complete("p", logit_bias={str(bad): 1}))["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 2**80}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 100_000}, "n"),
        ({"n": True}, "n"),
        ({"n": 0, "stream": True}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**64}, "seed"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias[...]"),
        ({"logit_bias": {"5": 1000}}, "logit_bias[5]"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_json": {}}, "guided_json"),
        ({"regex": ""}, "regex"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_grammar": "root"}, "guided_grammar"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"structured_output": {"regex": "a"}}, "structured_output"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "given_as": "x"}}, "structured_outputs.given_as"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"json": ["a"]}}, "structured_outputs"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ({"json_schema": "[]"}, "json_schema"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schem": {}}}, "response_format.schem"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {}, "stric": True},
                }
            },
            "response_format.json_schema.stric",
        ),
        ({"response_format": "json"}, "response_format"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": "x"}, "bad_words"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "prompt"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprob_token_ids": [], "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": [5] * 129, "logprobs": 1}, "logprob_token_ids"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a b"}, "request_id"),
        ({"request_id": "a\n"}, "request_id"),
        ({"request_id": "é"}, "request_id"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"stop_regex": "a+"}, "stop_regex"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"lora_path": "x"}, "lora_path"),
        ({"mirostat": 2}, "mirostat"),
        ({"typical_p": 0.5}, "typical_p"),
    ],
)
def test_wrong_fields(server: Served, fields: dict[str, Any], param: str) -> None:
    error = refusal(server.complete("p", **fields))
    assert error["param"] == param
    assert re.split(r"[\[.]", param)[0] in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": ""},
        {"best_of": 2, "n": 2},
        {"seed": -1},
        {"top_k": -1},
        {"top_k": 0},
        {"priority": 0},
        {"use_beam_search": False},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"spaces_between_special_tokens": True, "length_penalty": 1.0},
        {"mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0.0, "xtc_probability": 0},
    ],
)
def test_harmless_fields(server: Served, fields: dict[str, Any]) -> None:
    assert server.complete("p", **fields).status_code == 200


def test_empty_bad_word(server: Served) -> None:
    assert refusal(server.complete("p", bad_words=["x", ""]))["param"] == "bad_words"


def test_unknown_model(server: Served) -> None:
    for path in (PATH, "/v1/chat/completions"):
        body = {"model": "other", "prompt": "p", "messages": [{"role": "user", "content": "x"}]}
        error = refusal(server.post(path, **body), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    refusal(httpx.get(f"{server.url}/v1/models/other"), 404)
    assert server.complete("p", model="fake").status_code == 200


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens"),
    [(KV_TOKENS, 1), (KV_TOKENS - 4, 5), (KV_TOKENS + 1, 1), (10_000, 16), (1, 10_000)],
)
def test_longer_than_the_kv_cache(server: Served, num_prompt: int, max_tokens: int) -> None:
    error = refusal(server.complete([1100] * num_prompt, max_tokens=max_tokens))
    assert error["code"] == "context_length_exceeded"
    for number in (KV_TOKENS, num_prompt, max_tokens):
        assert str(number) in error["message"]


def test_just_fits(server: Served) -> None:
    response = server.complete([1100] * (KV_TOKENS - 5), max_tokens=5)
    assert response.json()["usage"]["total_tokens"] == KV_TOKENS


def test_bad_member_leaves_nothing_running(server: Served) -> None:
    refusal(server.complete([[1100, 1101], [1100] * 1000], max_tokens=300))
    assert server.running() == 0


def test_large_bodies(server: Served) -> None:
    body = b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}'
    refusal(raw(server, body), 413)

    def pieces() -> Any:
        yield from (body[start : start + (1 << 20)] for start in range(0, len(body), 1 << 20))

    response = httpx.post(f"{server.url}{PATH}", content=pieces(), timeout=DEADLINE_S)
    refusal(response, 413)


@pytest.mark.parametrize("num_words", [600, 100_000, 6_000_000])
def test_long_texts(server: Served, num_words: int) -> None:
    # The longest would take a tokenizer longer than the deadline.
    text = "word " * num_words
    assert refusal(server.complete(text))["code"] == "context_length_exceeded"
    messages = [{"role": "user", "content": text}]
    response = server.post("/v1/chat/completions", messages=messages)
    assert refusal(response)["code"] == "context_length_exceeded"


def test_paths_and_methods(server: Served) -> None:
    refusal(httpx.get(f"{server.url}/v1/nothing"), 404)
    refusal(httpx.get(f"{server.url}/"), 404)
    response = httpx.get(f"{server.url}{PATH}")
    refusal(response, 405)
    assert response.headers["allow"] == "POST"
    refusal(httpx.delete(f"{server.url}/health"), 405)


def test_not_http(server: Served) -> None:
    with socket.create_connection(server.address, timeout=DEADLINE_S) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("field", ["seed", "max_tokens", "n", "top_k", "min_tokens", "logprobs"])
def test_whole_numbers_of_any_length(server: Served, field: str) -> None:
    digits = b"1" * 400
    error = refusal(raw(server, b'{"prompt": "a", "%s": %s}' % (field.encode(), digits)))
    assert field in (error["param"] or "")


@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000 + "999999999"])
def test_a_declared_length_of_many_digits(server: Served, length: str) -> None:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(64).split()[1] in (b"400", b"413")


def test_more_answers_than_one_request_may_ask_for(server: Served) -> None:
    error = refusal(server.post(PATH, prompt=[[1]] * 3000, n=128))
    assert "1024" in error["message"]
