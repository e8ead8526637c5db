"""POST /v1/chat/completions against the scripted engine, which answers with the rendered prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.served import Served
from treadle.text.load import ModelText

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi é"}]


def rendered(text: ModelText, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]:
    assert text.template is not None
    return text.tokenizer.encode(text.template.render(messages, **kwargs), add_special=False)


def test_answer_and_usage(server: Served, text: ModelText) -> None:
    answer = server.post(PATH, messages=MESSAGES, max_tokens=5).json()
    prompt = rendered(text, MESSAGES)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "content": text.tokenizer.decode(prompt[:5]),
                "role": "assistant",
                "refusal": None,
            },
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]


def test_rest_of_the_window_is_the_default(server: Served, text: ModelText) -> None:
    usage = server.post(PATH, messages=MESSAGES, ignore_eos=True).json()["usage"]
    assert usage["total_tokens"] == 400  # the scripted engine's KV, less than its window


def test_newer_name_of_max_tokens_wins(server: Served) -> None:
    body = {"messages": MESSAGES, "max_tokens": 9, "max_completion_tokens": 4}
    assert server.post(PATH, **body).json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("n", [1, 3])
def test_stream_equals_whole(server: Served, n: int) -> None:
    body = {"messages": MESSAGES, "max_tokens": 12, "n": n, "logprobs": True, "top_logprobs": 2}
    whole = server.post(PATH, **body).json()
    *events, usage = server.events(PATH, stream_options={"include_usage": True}, **body)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    for index in range(n):
        chunks = [
            choice for event in events for choice in event["choices"] if choice["index"] == index
        ]
        assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in chunk["delta"] for chunk in chunks[1:])
        assert [chunk["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        expected = whole["choices"][index]
        assert chunks[-1]["finish_reason"] == expected["finish_reason"] == "length"
        assert (
            "".join(chunk["delta"].get("content", "") for chunk in chunks)
            == (expected["message"]["content"])
        )
        told = [chunk["logprobs"]["content"] for chunk in chunks if chunk["logprobs"]]
        tokens = [entry for entries in told for entry in entries]
        assert tokens == expected["logprobs"]["content"]


def test_logprobs(server: Served, text: ModelText) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 1}
    [choice] = server.post(PATH, **body).json()["choices"]
    prompt = rendered(text, MESSAGES)
    for token, entry in zip(prompt, choice["logprobs"]["content"], strict=False):
        spelling = text.tokenizer.token_bytes(token)
        assert bytes(entry["bytes"]) == spelling
        assert entry["token"] == spelling.decode()
        assert entry["logprob"] == -0.5
        assert entry["top_logprobs"] == [
            {"token": entry["token"], "logprob": -0.5, "bytes": entry["bytes"]}
        ]


def test_logprobs_without_alternatives(server: Served) -> None:
    [choice] = server.post(PATH, messages=MESSAGES, max_tokens=2, logprobs=True).json()["choices"]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], []]


def test_text_parts_are_lines(server: Served, text: ModelText) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answer = server.post(PATH, messages=[{"role": "user", "content": parts}], max_tokens=1)
    prompt = rendered(text, [{"role": "user", "content": "one\ntwo"}])
    assert answer.json()["usage"]["prompt_tokens"] == len(prompt)


def test_generation_prompt_can_be_left_out(server: Served, text: ModelText) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "add_generation_prompt": False}
    usage = server.post(PATH, **body).json()["usage"]
    assert usage["prompt_tokens"] == len(rendered(text, MESSAGES, add_generation_prompt=False))


def test_nulls_are_absent_fields(server: Served) -> None:
    fields = ("max_completion_tokens", "tools", "tool_choice", "response_format", "logprobs")
    fields += ("top_logprobs", "stream", "stream_options", "n", "stop", "chat_template_kwargs")
    plain = server.post(PATH, messages=MESSAGES, max_tokens=4).json()
    nulls = server.post(PATH, messages=MESSAGES, max_tokens=4, **dict.fromkeys(fields)).json()
    assert nulls["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([*MESSAGES, {"role": 1, "content": "x"}], "messages[1].role"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}],
            "messages[0].tool_calls[0].function",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "5"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "foo"}]}], "messages[0].content[0].type"),
    ],
)
def test_wrong_messages(server: Served, messages: Any, param: str) -> None:
    response = server.post(PATH, messages=messages)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"documents": "text"}, "documents"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"min_tokens": 401}, "min_tokens"),
    ],
)
def test_wrong_fields(server: Served, fields: dict[str, Any], param: str) -> None:
    response = server.post(PATH, messages=MESSAGES, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"top_logprobs": 0},
        {"chat_template_kwargs": {"thinking": False}},
    ],
)
def test_harmless_fields(server: Served, fields: dict[str, Any]) -> None:
    response = server.post(PATH, messages=MESSAGES, max_tokens=1, **fields)
    assert response.status_code == 200
