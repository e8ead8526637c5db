"""LiteLLM, by its provider for any OpenAI-like server and by the one for vLLM."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

from tests.clients.conftest import COUNTED, COUNTING
from tests.clients.serving import MODEL

MESSAGES = [{"role": "user", "content": "Say hello to the weaver."}]


def options(url: str, provider: str = "openai") -> dict[str, Any]:
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "num_retries": 0,
    }


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_chat_whole_and_streamed(url: str, provider: str) -> None:
    body = {**options(url, provider), "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = litellm.completion(**body)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0
    chunks = list(litellm.completion(**body, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert rebuilt.choices[0].message.content == text
    assert rebuilt.choices[0].finish_reason == whole.choices[0].finish_reason


def test_several_answers_with_logprobs(url: str) -> None:
    answer = litellm.completion(
        **options(url, "hosted_vllm"),
        messages=MESSAGES,
        max_tokens=4,
        n=2,
        seed=7,
        logprobs=True,
        top_logprobs=3,
        top_k=50,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert all(len(entry.top_logprobs) == 3 for entry in choice.logprobs.content)


def test_text_completion(url: str) -> None:
    body = {**options(url, "text-completion-openai"), "prompt": COUNTING["prompt"]}
    body |= {"max_tokens": 6, "temperature": 0}
    assert litellm.text_completion(**body).choices[0].text == COUNTED
    chunks = litellm.text_completion(**body, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == COUNTED


def test_asynchronous(url: str) -> None:
    async def ask() -> str:
        body = {**options(url), "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
        chunks = await litellm.acompletion(**body, stream=True)
        text = ""
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
        assert text == (await litellm.acompletion(**body)).choices[0].message.content
        return text

    assert asyncio.run(ask())


def test_errors_have_their_classes(url: str) -> None:
    body = {**options(url), "messages": MESSAGES}
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**body, temperature=-1)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**body, max_tokens=1 << 20)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**body, "model": "openai/other"})
