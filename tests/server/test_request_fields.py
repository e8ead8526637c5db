"""Fields about a request rather than its text: ids, times, usage in streams; and limits."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.server import fake_engine as script
from tests.server.conftest import Start
from tests.server.served import Served, eventually

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def test_request_id(server: Served) -> None:
    answer = server.complete("a b", request_id="my-id/7")
    assert answer.json()["id"] == "cmpl-my-id/7"
    assert answer.headers["x-request-id"] == "cmpl-my-id/7"
    assert server.post(CHAT, messages=MESSAGES, request_id="x").json()["id"] == "chatcmpl-x"
    events = server.events(PATH, prompt="a b", request_id="again")
    assert {event["id"] for event in events} == {"cmpl-again"}


def test_request_id_is_taken_while_it_is_answered(server: Served) -> None:
    body = {"prompt": [script.HOLD], "request_id": "taken", "max_tokens": 5}
    with server.open_request(PATH, **body):
        eventually(lambda: server.running() == 1)
        for stream in (False, True):
            response = server.complete("a b", request_id="taken", stream=stream)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "request_id"
    eventually(lambda: server.running() == 0)
    assert server.complete("a b", request_id="taken").status_code == 200


def test_header_is_echoed(server: Served) -> None:
    headers = {"X-Request-Id": "trace 1"}
    for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": ""}):
        response = httpx.post(f"{server.url}{PATH}", json=body, headers=headers)
        assert response.headers.get_list("x-request-id") == ["trace 1"]
    response = httpx.get(f"{server.url}/nowhere", headers=headers)
    assert response.headers.get_list("x-request-id") == ["trace 1"]
    # Two of them with one header are two requests all the same.
    with httpx.Client(base_url=server.url, headers=headers) as client:
        ids = [client.post(PATH, json={"prompt": "a"}).json()["id"] for _ in range(2)]
    assert ids[0] != ids[1]


def test_fingerprint_is_the_servers(server: Served) -> None:
    answers = [
        server.complete("a").json(),
        server.post(CHAT, messages=MESSAGES).json(),
        *server.events(PATH, prompt="a", stream_options={"include_usage": True}),
    ]
    [fingerprint] = {answer["system_fingerprint"] for answer in answers}
    assert re.fullmatch("fp_[0-9a-f]{10}", fingerprint)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_only_where_asked_for(server: Served, options: Any) -> None:
    for path, what in ((PATH, {"prompt": "a b"}), (CHAT, {"messages": MESSAGES})):
        events = server.events(path, stream_options=options, **what)
        assert all("usage" not in event and event["choices"] for event in events)


def test_usage_that_grows(server: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body: dict[str, Any] = {"max_tokens": 5, "n": 2, "stream_options": options}
    for path, what in ((PATH, {"prompt": "a b"}), (CHAT, {"messages": MESSAGES})):
        *events, last = server.events(path, **what, **body)
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == counts[-1] == 10
        assert {event["usage"]["prompt_tokens"] for event in events} == {
            last["usage"]["prompt_tokens"]
        }
    only_continuous = {"continuous_usage_stats": True}
    assert all(
        "usage" not in event
        for event in server.events(PATH, prompt="a", stream_options=only_continuous)
    )


@pytest.mark.parametrize("name", ["timings", "timings_per_token"])
def test_timings(server: Served, name: str) -> None:
    first = 2000 + 10 * len(name)  # a prompt that nobody else sends
    prompts = [[first, first + 1, first + 2, first + 3], [first + 4]]
    body = {"prompt": prompts, "n": 2, "max_tokens": 3, name: True}
    timings = server.post(PATH, **body).json()["timings"]
    times = script.TIMINGS
    assert timings == {
        "queue_ms": 250.0,
        "cache_n": 0,
        "prompt_n": 5,
        "prompt_ms": 500.0,
        "prompt_per_second": 5 / times.prefill_s,
        "predicted_n": 12,
        "predicted_ms": 2000.0,
        "predicted_per_second": 8 / times.decode_s,
    }
    # The second time all but one token of each prompt is cached.
    cached = {**timings, "cache_n": 3, "prompt_n": 2, "prompt_per_second": 4.0}
    *others, last = server.events(PATH, **body)
    assert last["timings"] == cached
    assert all("timings" not in event for event in others)
    *others, last, usage = server.events(PATH, stream_options={"include_usage": True}, **body)
    assert last["timings"] == cached
    assert "timings" not in usage
    assert "timings" not in server.complete("a").json()


def test_the_servers_own_limits(start: Start) -> None:
    options = ("--max-output-tokens", "6", "--max-answers", "4", "--enable-timings")
    server = start("fake", "0", "512", *options, "--trust-request-chat-template").wait_ready()
    ids = [1100, 1101]

    def refusal(path: str, **body: Any) -> tuple[int, Any, Any]:
        response = server.post(path, **body)
        error = response.json()["error"]
        return response.status_code, error["param"], error["message"]

    status, param, message = refusal(PATH, prompt=ids, max_tokens=7)
    assert (status, param) == (400, "max_tokens")
    assert "7" in message
    assert "6" in message
    assert refusal(CHAT, messages=MESSAGES, max_completion_tokens=7)[:2] == (400, "max_tokens")
    assert refusal(PATH, prompt=ids, n=5)[:2] == (400, "n")
    assert refusal(PATH, prompt=[ids] * 3, n=2)[:2] == (400, "n")
    assert refusal(PATH, prompt=[ids] * 5)[:2] == (400, "prompt")
    assert refusal(CHAT, messages=MESSAGES, n=5)[:2] == (400, "n")
    assert refusal(PATH, prompt=ids, min_tokens=7)[:2] == (400, "min_tokens")

    answer = server.complete([ids] * 2, n=2, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 4 * 6, "sixteen are the default where they fit"
    assert answer["timings"]["predicted_n"] == 24
    chat = server.post(CHAT, messages=MESSAGES, ignore_eos=True).json()
    assert chat["usage"]["completion_tokens"] == 6

    def templated(source: str) -> httpx.Response:
        body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
        return server.post(CHAT, chat_template=source, **body)

    hi = server.complete("<Hi>", max_tokens=1, return_token_ids=True).json()
    own = templated("{% for m in messages %}<{{ m.content }}>{% endfor %}").json()
    assert own["prompt_token_ids"] == hi["choices"][0]["prompt_token_ids"]
    for source in (
        "{% for m in",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ 'x' * 1000000000000 }}",
    ):
        response = templated(source)
        assert response.status_code == 400, source
        assert "template" in response.json()["error"]["message"]
    refused = templated("{{ raise_exception('roles must alternate') }}")
    assert "roles must alternate" in refused.json()["error"]["message"]


def test_prompts_at_the_edge_of_the_window(start: Start) -> None:
    server = start("fake", "0", "64").wait_ready()
    for num_prompt, max_tokens in ((60, 10), (64, 16), (65, 16), (10_000, 16)):
        response = server.complete([1100] * num_prompt, max_tokens=max_tokens)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["type"] == "invalid_request_error"
        for number in (64, num_prompt, max_tokens):
            assert re.search(rf"\b{number}\b", error["message"])
    assert server.complete([1100] * 60, max_tokens=4).status_code == 200

    def chat(num_words: int) -> httpx.Response:
        return server.post(CHAT, messages=[{"role": "user", "content": " a" * num_words}])

    around = chat(1).json()["usage"]["prompt_tokens"] - 1
    answer = chat(63 - around).json()
    assert answer["usage"] == {
        "prompt_tokens": 63,
        "completion_tokens": 1,
        "total_tokens": 64,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["choices"][0]["finish_reason"] == "length"
    assert chat(64 - around).json()["error"]["code"] == "context_length_exceeded"
    [model] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["max_model_len"] == 64
