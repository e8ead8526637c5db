"""The openai package as the client, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server import fake_engine as script
from tests.server.served import Served, eventually

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="one two", max_tokens=4, logprobs=1)
    assert answer.choices[0].text == "one twoone two"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 3, 7, 10]
    assert answer.usage is not None
    assert answer.usage.total_tokens == 6


def test_completion_stream(client: openai.OpenAI) -> None:
    with client.completions.create(
        model="fake", prompt=["one two", "three four"], max_tokens=4, n=2, stream=True
    ) as stream:
        texts = [""] * 4
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    assert texts == [
        "one twoone two",
        " twoone twoone",
        "three fourthree four",
        " fourthree fourthree",
    ]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2
    )
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content).endswith(
        choice.message.content or "?"
    )


def test_chat_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=9)
    with client.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content


def test_stream_accumulated_by_the_client(client: openai.OpenAI) -> None:
    # The prompt, and so the answer, holds an end of turn.
    whole = client.chat.completions.create(model="fake", messages=MESSAGES)
    with client.chat.completions.stream(model="fake", messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="fake", prompt="x", temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="other", prompt="x")
    assert unknown.value.code == "model_not_found"
    body: Any = {"model": "fake", "prompt": [script.REFUSE], "max_tokens": 9, "stream": True}
    with pytest.raises(openai.APIError, match="scripted refusal"):
        list(client.completions.create(**body))


def test_many_at_once(server: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        prompt = f"number {number} of many"
        if number % 2:
            answer = await client.completions.create(model="fake", prompt=prompt, max_tokens=40)
            return answer.choices[0].text
        text = ""
        async with await client.completions.create(
            model="fake", prompt=prompt, max_tokens=40, stream=True
        ) as stream:
            async for chunk in stream:
                text += chunk.choices[0].text
        return text

    async def ask_all() -> list[str]:
        base = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(40)))

    for number, text in enumerate(asyncio.run(ask_all())):
        assert text.startswith(f"number {number} of manynumber {number}")


def test_cancelled_task_aborts(server: Served) -> None:
    async def cancel() -> None:
        base = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            prompt: Any = [script.HOLD]
            asking = asyncio.create_task(
                client.completions.create(model="fake", prompt=prompt, max_tokens=9)
            )
            await asyncio.to_thread(eventually, lambda: server.running() == 1)
            asking.cancel()
            await asyncio.wait([asking])

    asyncio.run(cancel())
    eventually(lambda: server.running() == 0)
