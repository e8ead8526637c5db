"""Constraints over HTTP, under the names of each engine, by the real engine on the demo model."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.served import DEADLINE_S, RealServed

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def json_schema(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}


@pytest.fixture(scope="module", params=["0", "1"])
def real(demo_gguf: Path, request: pytest.FixtureRequest) -> Iterator[RealServed]:
    served = RealServed(demo_gguf, "--overlap-depth", request.param)
    try:
        served.wait_ready()
        yield served
        served.signal(signal.SIGTERM)
        assert served.wait() == 0
    finally:
        served.close()


def refused(response: httpx.Response, param: str) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    return str(error["message"])


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": json_schema(SCHEMA)},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
        {"json_schema": SCHEMA},
    ],
)
@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_schemas(real: RealServed, path: str, fields: dict[str, Any]) -> None:
    body = {"prompt": "p"} if path == TEXT else {"messages": MESSAGES}
    body = {**body, "temperature": 1.5, "seed": 3, "max_tokens": 200, **fields}
    (choice,) = real.post(path, **body).json()["choices"]
    answer = choice["text"] if path == TEXT else choice["message"]["content"]
    value = json.loads(answer)
    assert (list(value), choice["finish_reason"]) == (["a", "b"], "stop")
    assert value["a"] <= 99
    assert value["b"] in ("x", "y")
    streamed = ""
    for event in real.events(path, **body):
        for part in event["choices"]:
            streamed += part["text"] if path == TEXT else part["delta"].get("content", "")
    assert streamed == answer


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"structured_outputs": {"regex": "[a-c]{4}"}}, "[a-c]{4}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"ebnf": 'root ::= "<" [0-9] ">"'}, r"<\d>"),
        ({"grammar": 'root ::= "<" [0-9] ">"'}, r"<\d>"),
        ({"structured_outputs": {"grammar": "start: /[0-9]/"}}, r"\d"),
    ],
)
def test_texts(real: RealServed, fields: dict[str, Any], pattern: str) -> None:
    choices = real.post(TEXT, prompt="p", n=3, max_tokens=40, **fields).json()["choices"]
    assert all(re.fullmatch(pattern, choice["text"]) for choice in choices)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}


def test_generate(real: RealServed) -> None:
    for sampling, pattern in (
        ({"regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"ebnf": 'root ::= "x" | "y"'}, "[xy]"),
        ({"json_schema": json.dumps({"const": 5})}, "5"),
    ):
        answer = real.post("/generate", text="p", sampling_params=sampling).json()
        assert re.fullmatch(pattern, answer["text"])
    anything = {"json_schema": "$$ANY$$", "max_new_tokens": 300, "temperature": 0}
    text = real.post("/generate", text="{", sampling_params=anything).json()["text"]
    assert text.startswith("{")


def test_stop_strings_within_forced_text(real: RealServed) -> None:
    body = {"prompt": "p", "temperature": 0, "max_tokens": 32, "regex": "abcENDxyz"}
    for stop in (["END"], ["NDx", "END"]):
        deltas = [
            choice["text"]
            for event in real.events(TEXT, **body, stop=stop)
            for choice in event["choices"]
        ]
        (choice,) = real.post(TEXT, **body, stop=stop).json()["choices"]
        assert "".join(deltas) == choice["text"] == "abc"
        assert not any("E" in delta for delta in deltas)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


def test_characters_of_several_tokens_in_a_stream(real: RealServed) -> None:
    body = {"prompt": "p", "temperature": 0, "regex": "(😀|漢|é|👩‍👩‍👧){4}", "max_tokens": 60}
    (choice,) = real.post(TEXT, **body).json()["choices"]
    parts = [c["text"] for event in real.events(TEXT, **body) for c in event["choices"]]
    assert "".join(parts) == choice["text"]
    assert "\ufffd" not in choice["text"]


def test_log_probabilities(real: RealServed) -> None:
    plain = real.post(TEXT, prompt="p", logprobs=5, max_tokens=1, temperature=0).json()
    held = real.post(TEXT, prompt="p", logprobs=5, max_tokens=3, temperature=0, regex="a").json()
    best = [answer["choices"][0]["logprobs"]["top_logprobs"][0] for answer in (plain, held)]
    likeliest = max(best[0], key=lambda text: best[0][text])
    assert best[1][likeliest] == best[0][likeliest], "the model's own distribution"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": json_schema({"type": "objekt"})}, "response_format"),
    ({"response_format": json_schema({"$ref": "#/nope"})}, "response_format"),
    ({"json_schema": {"type": "string", "pattern": "("}}, "json_schema"),
    *(({"regex": text}, "regex") for text in ("(", "[z-a]", "a{9,1}", "(?<=x)y")),
    ({"ebnf": "root ::= "}, "ebnf"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs"),
]


def test_wrong_ones_are_refused_in_the_middle_of_traffic(real: RealServed) -> None:
    body: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 100}
    usual = real.post(TEXT, **body).json()["choices"][0]["text"]
    found: list[str] = []

    def stream() -> None:
        events = list(real.events(TEXT, **body))
        found.append("".join(c["text"] for event in events for c in event["choices"]))

    beside = threading.Thread(target=stream)
    beside.start()
    for fields, param in WRONG:
        refused(real.post(TEXT, prompt="p", **fields), param)
        # Nothing has been sent of the stream yet, so that the status tells.
        refused(real.post(TEXT, prompt="p", stream=True, **fields), param)
    refused(
        real.post("/generate", text="p", sampling_params={"regex": "("}), "sampling_params.regex"
    )
    beside.join(DEADLINE_S)
    assert found == [usual]
    assert httpx.get(f"{real.url}/health").status_code == 200


def test_min_tokens_beyond_the_grammar(real: RealServed) -> None:
    body = {"min_tokens": 50, "max_tokens": 80, "response_format": json_schema({"type": "boolean"})}
    answer = real.post(CHAT, messages=MESSAGES, **body)
    assert isinstance(json.loads(answer.json()["choices"][0]["message"]["content"]), bool)


def test_counted(real: RealServed) -> None:
    real.post(TEXT, prompt="p", regex="a long forced text that has no choice at all", max_tokens=40)
    text = httpx.get(f"{real.url}/metrics").text
    (line,) = re.findall(r"^vllm:grammar_forced_tokens_total\S* (\S+)$", text, re.MULTILINE)
    assert float(line) > 0
