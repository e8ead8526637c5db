"""The real engine under load: health stays fast, streams go on, what cannot fit is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.served import DEADLINE_S, Served, eventually
from tests.server.test_real_engine import RealServed
from tests.tiny import tiny_llama

PATH = "/v1/completions"

KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 2
"""K and V of two layers with two heads of 16 numbers in f16; see tests.tiny."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("f32", tmp_path_factory.mktemp("model"))


def serve(model: Path, *options: str) -> Iterator[Served]:
    served = RealServed(model, *options)
    try:
        yield served.wait_ready()
        eventually(lambda: served.running() == 0)
        assert served.process.poll() is None, served.wait()
    finally:
        served.close()


@pytest.fixture(scope="module")
def small_pool(model: Path) -> Iterator[Served]:
    """64 tokens of KV for a window of 256."""
    options = ("--max-model-len", "256", "--kv-cache-memory-bytes", str(64 * KV_BYTES_PER_TOKEN))
    yield from serve(model, *options, "--block-size", "16")


def ids(count: int, first: int = 0) -> list[int]:
    return [3 + (first + 7 * at) % 300 for at in range(count)]


def test_larger_than_the_pool_is_told_at_once(small_pool: Served) -> None:
    for num_prompt, max_tokens in ((100, 1), (40, 100)):
        began = time.monotonic()
        response = small_pool.complete(ids(num_prompt), max_tokens=max_tokens)
        assert response.status_code == 400
        assert "64" in response.json()["error"]["message"]
        assert time.monotonic() - began < 2


def test_two_that_do_not_fit_together_both_finish(small_pool: Served) -> None:
    body = {"temperature": 0, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    prompts = [ids(40), ids(40, 5), ids(3)]
    alone = [small_pool.complete(prompt, **body).json()["choices"] for prompt in prompts]

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=small_pool.url, timeout=DEADLINE_S) as client:
            asking = (client.post(PATH, json={"prompt": prompt, **body}) for prompt in prompts)
            return await asyncio.gather(*asking)

    assert [response.json()["choices"] for response in asyncio.run(together())] == alone


def test_eight_answers_in_a_small_pool(small_pool: Served) -> None:
    response = small_pool.complete(ids(30), n=8, max_tokens=8, temperature=0, ignore_eos=True)
    texts = [choice["text"] for choice in response.json()["choices"]]
    assert len(texts) == 8
    assert len(set(texts)) == 1


@pytest.fixture(scope="module")
def chunked(model: Path) -> Iterator[Served]:
    yield from serve(model, "--max-num-batched-tokens", "64")


def test_a_stream_goes_on_beside_long_prompts(chunked: Served) -> None:
    """Steps hold its next token beside a chunk of a prompt: it never waits for a whole prompt."""
    body: dict[str, Any] = {"max_tokens": 1, "temperature": 0}

    async def run() -> int:
        async with httpx.AsyncClient(base_url=chunked.url, timeout=DEADLINE_S) as client:
            stream = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
            async with client.stream("POST", PATH, json=stream) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                asking = [
                    asyncio.create_task(client.post(PATH, json={"prompt": ids(400, first), **body}))
                    for first in range(10)
                ]
                num_between = 0
                async for line in lines:
                    if line.startswith("data: {"):
                        num_between += not all(task.done() for task in asking)
                await asyncio.gather(*asking)
                return num_between

    num_between = asyncio.run(run())
    # Ten prompts of 400 tokens are at least 63 steps of 64, and each brings a token; some arrive
    # together. Did prompts go first, there would be none.
    assert num_between >= 10


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Served]:
    yield from serve(model)


def test_health_is_fast_under_load(plain: Served) -> None:
    """50 streams, prompts of 100 kB, and a body of 30 MB."""
    stream = {"prompt": "a b c", "max_tokens": 400, "ignore_eos": True, "stream": True}
    text = json.dumps({"prompt": "up went the threads " * 5000, "max_tokens": 1})
    huge = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * (30 << 20)})
    times: list[float] = []

    async def run() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=plain.url, timeout=60, limits=limits) as client,
            httpx.AsyncClient(base_url=plain.url, timeout=60) as prober,
        ):
            work = [client.post(PATH, json=stream) for _ in range(50)]
            work += [client.post(PATH, content=text) for _ in range(8)]
            work.append(client.post(PATH, content=huge))
            working = asyncio.ensure_future(asyncio.gather(*work))
            while not working.done() or len(times) < 10:
                for path in ("/health", "/metrics"):
                    began = time.monotonic()
                    assert (await prober.get(path)).status_code == 200
                    times.append(time.monotonic() - began)
                await asyncio.sleep(0.1)
            return [response.status_code for response in await working]

    statuses = asyncio.run(run())
    assert statuses[:50] == [200] * 50
    assert set(statuses[50:58]) == {400}  # longer than the window, and told so
    assert statuses[58] == 200
    assert sorted(times)[int(0.99 * (len(times) - 1))] < 1.0
