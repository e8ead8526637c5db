"""The real engine behind the real server: the same answers as in process, and a clean end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.served import DEADLINE_S, RealServed, eventually, is_alive
from treadle import LLM, SamplingParams

PATH = "/v1/completions"
PROMPTS = ["The capital of France is", "Once upon a time", "1, 2, 3,", "def main():"]


@pytest.fixture(scope="module")
def real(demo_gguf: Path) -> Iterator[RealServed]:
    served = RealServed(demo_gguf)
    try:
        served.wait_ready()
        yield served
        served.signal(signal.SIGTERM)
        assert served.wait() == 0
    finally:
        served.close()


@pytest.fixture(scope="module")
def llm(demo_gguf: Path) -> Iterator[LLM]:
    with LLM(str(demo_gguf)) as llm:
        yield llm


def test_served_answers_are_those_in_process(real: RealServed, llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=11, n=2, max_tokens=12, logprobs=1)
    body: dict[str, Any] = {"temperature": 1.0, "seed": 11, "n": 2, "max_tokens": 12, "logprobs": 1}
    alone = [llm.generate(prompt, params)[0].outputs for prompt in PROMPTS]

    async def ask_together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=real.url, timeout=DEADLINE_S) as client:
            asking = (client.post(PATH, json={"prompt": prompt, **body}) for prompt in PROMPTS)
            return await asyncio.gather(*asking)

    for outputs, response in zip(alone, asyncio.run(ask_together()), strict=True):
        for output, choice in zip(outputs, response.json()["choices"], strict=True):
            assert choice["text"] == output.text
            assert output.logprobs is not None
            assert choice["logprobs"]["token_logprobs"] == [
                entry[token].logprob
                for entry, token in zip(output.logprobs, output.token_ids, strict=True)
            ]


def test_stream_and_whole_are_equal(real: RealServed) -> None:
    body = {"prompt": PROMPTS, "temperature": 0, "max_tokens": 16, "stop": ["\n", " and"]}
    whole = real.post(PATH, **body).json()["choices"]
    texts = [""] * len(PROMPTS)
    for event in real.events(PATH, **body):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]


def test_second_time_is_cached(real: RealServed) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello there"}]}
    first, second = (
        real.post("/v1/chat/completions", max_tokens=2, temperature=0, **body).json()
        for _ in range(2)
    )
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_disconnect_frees_the_engine(real: RealServed) -> None:
    body = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True, "n": 2}
    with real.open_request(PATH, **body) as connection:
        assert connection.recv(1)
        eventually(lambda: real.running() == 2)
    eventually(lambda: real.running() == 0)
    usage = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", _metrics(real), re.MULTILINE)
    assert usage is not None
    assert float(usage[1]) == 0.0


def _metrics(real: RealServed) -> str:
    return httpx.get(f"{real.url}/metrics").text


def test_engine_killed_amid_an_answer(demo_gguf: Path) -> None:
    served = RealServed(demo_gguf)
    try:
        engine = served.wait_ready().engine_pid
        body = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with served.open_request(PATH, **body) as connection:
            assert connection.recv(1)
            os.kill(engine, signal.SIGKILL)
            received = b""
            while piece := connection.recv(65536):
                received += piece
        assert b'data: {"error":' in received
        assert served.wait() == 1
    finally:
        served.close()


def test_parent_killed(demo_gguf: Path) -> None:
    served = RealServed(demo_gguf)
    try:
        engine = served.wait_ready().engine_pid
        with served.open_request(PATH, prompt="a", max_tokens=8000, ignore_eos=True):
            eventually(lambda: served.running() == 1)
            served.signal(signal.SIGKILL)
            eventually(lambda: not is_alive(engine), seconds=5)
    finally:
        served.close()
