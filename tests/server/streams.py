"""A stream put together again, to be compared with the whole answer."""

from __future__ import annotations

from typing import Any

from tests.server.served import Served

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"

_PER_TOKEN = ("text_offset", "token_logprobs", "tokens", "top_logprobs", "content")


def whole(server: Served, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    return _comparable(response.json())


def streamed(server: Served, path: str, **body: Any) -> dict[str, Any]:
    """What a client has that adds up the chunks. Checks what must hold of each chunk."""
    options = {"include_usage": True}
    *events, last = server.events(path, stream_options=options, **body)
    assert last["choices"] == []
    assert all(event["usage"] is None for event in events)
    for name in ("id", "created", "model", "object", "system_fingerprint"):
        assert {event[name] for event in events} == {last[name]}
    answer: dict[str, Any] = {"usage": last["usage"]}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for name in ("prompt_token_ids", "timings"):
            if name in event:
                assert name not in answer, "told twice"
                answer[name] = event[name]
        for chunk in event["choices"]:
            _add(choices.setdefault(chunk["index"], _empty(path)), chunk)
    assert all(choice["finish_reason"] is not None for choice in choices.values())
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def _empty(path: str) -> dict[str, Any]:
    return {"text": "", "logprobs": None, "finish_reason": None, "chunks": 0, "chat": path == CHAT}


def _add(choice: dict[str, Any], chunk: dict[str, Any]) -> None:
    assert choice["finish_reason"] is None, "a chunk after the last one"
    assert "finish_reason" in chunk
    is_first = choice["chunks"] == 0
    choice["chunks"] += 1
    if choice["chat"]:
        delta = chunk["delta"]
        assert ("role" in delta) == is_first
        choice["text"] += delta.get("content", "")
    else:
        choice["text"] += chunk["text"]
    choice["finish_reason"] = chunk["finish_reason"]
    choice["stop_reason"] = chunk.get("stop_reason")
    if "prompt_token_ids" in chunk:
        assert is_first
        choice["prompt_token_ids"] = chunk["prompt_token_ids"]
    if "token_ids" in chunk:
        choice["token_ids"] = choice.get("token_ids", []) + chunk["token_ids"]
    for name, values in (chunk["logprobs"] or {}).items():
        held = choice["logprobs"] = choice["logprobs"] or {}
        if name in _PER_TOKEN:
            held[name] = held.get(name, []) + values


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """A whole answer in the shape that `streamed` gives."""
    choices = []
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        if logprobs is not None:
            logprobs = {name: logprobs[name] for name in _PER_TOKEN if name in logprobs}
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        names = ("finish_reason", "stop_reason", "token_ids", "prompt_token_ids")
        told = {name: choice[name] for name in names if name in choice}
        choices.append({"text": text, "logprobs": logprobs, **told})
    names = ("usage", "prompt_token_ids", "timings")
    return {**{name: answer[name] for name in names if name in answer}, "choices": choices}


def assert_equal(stream: dict[str, Any], expected: dict[str, Any], ignoring: str = "") -> None:
    for answer in (stream, expected):
        answer["usage"].pop("prompt_tokens_details")  # the second request finds the first's prefix
        answer.pop(ignoring, None)
        for choice in answer["choices"]:
            choice.pop("chunks", None)
            choice.pop("chat", None)
            if choice["logprobs"] is not None and not any(choice["logprobs"].values()):
                choice["logprobs"] = None  # an answer without tokens
    assert stream == expected
