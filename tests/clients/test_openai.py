"""OpenAI's own client: every kind of call, and its exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.conftest import COUNTED, COUNTING
from tests.clients.serving import MODEL, Serving

HELLO: list[Any] = [{"role": "user", "content": "Say hello to the weaver."}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def test_completion_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(**COUNTING)
    assert whole.choices[0].text == COUNTED
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == COUNTING["max_tokens"]
    options = {"include_usage": True}
    *chunks, last = client.completions.create(**COUNTING, stream=True, stream_options=options)
    assert "".join(chunk.choices[0].text for chunk in chunks) == COUNTED
    assert (last.choices, last.usage.total_tokens) == ([], whole.usage.total_tokens)


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT).choices[0]
    assert whole.message.role == "assistant"
    assert whole.message.content
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**CHAT, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert [chunk.delta.role for chunk in chunks if chunk.delta.role] == ["assistant"]
    reasons = [chunk.finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.finish_reason]


def test_the_client_gathers_a_stream_itself(client: openai.OpenAI) -> None:
    """Its helper folds the chunks into an answer, and refuses any that do not fit together."""
    first = client.chat.completions.create(**CHAT).choices[0].message.content or ""
    # The helper raises for answers that are cut off by length.
    body: dict[str, Any] = {**CHAT, "stop": [first[5:8]], "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**body).choices[0]
    with client.chat.completions.stream(**body) as stream:
        events = [event.type for event in stream]
        gathered = stream.get_final_completion().choices[0]
    assert {"content.delta", "content.done", "logprobs.content.done"} <= {*events}
    assert whole.finish_reason == "stop"
    assert gathered.message.content == whole.message.content
    assert gathered.finish_reason == whole.finish_reason
    assert gathered.logprobs == whole.logprobs


def test_answers_to_one_prompt(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {**CHAT, "temperature": 1.0, "seed": 3, "n": 3}
    whole = client.chat.completions.create(**body).choices
    assert [choice.index for choice in whole] == [0, 1, 2]
    texts = [choice.message.content for choice in whole]
    assert len(set(texts)) > 1
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_logprobs(client: openai.OpenAI) -> None:
    choice = client.completions.create(**COUNTING, logprobs=2).choices[0]
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or []) == COUNTED
    for token, value, top in zip(
        choice.logprobs.tokens or [],
        choice.logprobs.token_logprobs or [],
        choice.logprobs.top_logprobs or [],
        strict=True,
    ):
        assert top[token] == value == max(top.values())
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2).choices[0]
    assert answer.logprobs is not None
    entries = answer.logprobs.content or []
    text = b"".join(bytes(entry.bytes or []) for entry in entries).decode()
    assert text.startswith(answer.message.content or "-")
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert all(entry.top_logprobs[0].token == entry.token for entry in entries)


def test_fields_beyond_openais(client: openai.OpenAI) -> None:
    """What users of vLLM put into `extra_body`."""
    extra = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    body: dict[str, Any] = {**COUNTING, "temperature": 1.0}
    answer = client.completions.create(**body, extra_body={**extra, "min_tokens": 6})
    assert answer.choices[0].text == COUNTED


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(**{**CHAT, "temperature": -1})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(**{**COUNTING, "max_tokens": 1 << 20})
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**CHAT, "model": "other"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError), client.chat.completions.stream(**CHAT, n=0) as bad:
        list(bad)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="text")


def test_errors_of_connections(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {**COUNTING, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(**body)
    nobody = client.with_options(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(openai.APIConnectionError):
        nobody.models.list()


def test_a_stream_closed_early_is_aborted(client: openai.OpenAI, server: Serving) -> None:
    body: dict[str, Any] = {**COUNTING, "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
    before = server.metric("vllm:generation_tokens_total")
    with client.completions.create(**body, stream=True) as stream:
        next(iter(stream))
    server.wait_idle()
    assert server.metric("vllm:generation_tokens_total") - before < 4000


def test_many_at_once(url: str) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        prompt = f"{number}, {number + 1}, {number + 2},"
        body: dict[str, Any] = {**COUNTING, "prompt": prompt}
        if number % 2:
            return (await client.completions.create(**body)).choices[0].text
        text = ""
        async with await client.completions.create(**body, stream=True) as stream:
            async for chunk in stream:
                text += chunk.choices[0].text
        return text

    async def ask_all() -> tuple[list[str], list[str]]:
        base = f"{url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            together = await asyncio.gather(*(ask(client, number) for number in range(20)))
            return together, [await ask(client, number) for number in range(20)]

    together, alone = asyncio.run(ask_all())
    assert together == alone
    assert len(set(together)) > 10
