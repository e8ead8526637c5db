"""LangChain's OpenAI models, as its users configure them for a server of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.conftest import COUNTED, COUNTING
from tests.clients.serving import MODEL

QUESTION = [SystemMessage("You are short."), HumanMessage("Say hello to the weaver.")]


def chat(url: str, **changes: Any) -> ChatOpenAI:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "max_retries": 0, **changes}
    return ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", **options)  # type: ignore[arg-type]


def test_chat_invoke_and_stream(url: str) -> None:
    model = chat(url)
    answer = model.invoke(QUESTION)
    assert isinstance(answer, AIMessage)
    assert answer.content
    assert answer.usage_metadata is not None
    used = answer.usage_metadata
    assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"]
    whole = None
    for chunk in model.stream(QUESTION, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content == answer.content
    assert whole.usage_metadata["total_tokens"] == used["total_tokens"]
    assert whole.response_metadata["finish_reason"] == answer.response_metadata["finish_reason"]


def test_chat_batch(url: str) -> None:
    model = chat(url)
    questions = [[HumanMessage(f"What comes after {number}?")] for number in range(4)]
    together = [answer.content for answer in model.batch(questions)]
    assert together == [model.invoke(question).content for question in questions]


def test_chat_asynchronous(url: str) -> None:
    async def ask() -> None:
        model = chat(url)
        answer = await model.ainvoke(QUESTION)
        assert "".join([chunk.content async for chunk in model.astream(QUESTION)]) == answer.content

    asyncio.run(ask())


def test_a_conversation_with_logprobs(url: str) -> None:
    turns = [*QUESTION, AIMessage("Hello, weaver."), HumanMessage("And to the loom?")]
    answer = chat(url).bind(logprobs=True, top_logprobs=2, stop=["\n"]).invoke(turns)
    entries = answer.response_metadata["logprobs"]["content"]
    assert entries
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert "\n" not in answer.content


def test_completions(url: str) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "max_retries": 0}
    model = OpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", **options)  # type: ignore[arg-type]
    prompt = COUNTING["prompt"]
    assert model.invoke(prompt) == COUNTED
    assert "".join(model.stream(prompt)) == COUNTED
    assert model.batch([prompt, prompt]) == [COUNTED, COUNTED]


def test_errors_reach_the_caller(url: str) -> None:
    with pytest.raises(Exception, match="temperature") as wrong:
        chat(url, temperature=-1).invoke(QUESTION)
    assert getattr(wrong.value, "status_code", None) == 400
