"""Priorities and routing keys over HTTP, with the real engine: who is refused, and who is not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.served import RealServed
from tests.server.test_bad_input import refusal

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@contextlib.contextmanager
def serving(model: Path, *options: str) -> Iterator[RealServed]:
    served = RealServed(model, "--max-num-seqs", "2", *options)
    try:
        yield served.wait_ready()
    finally:
        served.close()


def ask(served: RealServed, path: str, **fields: object) -> httpx.Response:
    body = {
        "/v1/completions": {"prompt": "a b", "max_tokens": 2},
        "/v1/chat/completions": CHAT,
        "/generate": {"text": "a b", "sampling_params": {"max_new_tokens": 2}},
    }[path]
    return served.post(path, **body, **fields)


PATHS = ("/v1/completions", "/v1/chat/completions", "/generate")


def test_first_come_first_served_refuses_priorities(demo_gguf: Path) -> None:
    with serving(demo_gguf) as served:
        for path in PATHS:
            for stream in (False, True):
                error = refusal(ask(served, path, priority=3, stream=stream))
                assert error["param"] == "priority"
                assert "--order priority" in error["message"]
            assert ask(served, path, priority=0).status_code == 200
            assert refusal(ask(served, path, priority="high"))["message"]


def test_priorities_that_abort(demo_gguf: Path) -> None:
    with serving(demo_gguf, "--abort-on-priority-when-disabled") as served:
        for path in PATHS:
            response = ask(served, path, priority=0)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (503, "priority")
            assert "priorities are disabled" in error["message"]
            assert ask(served, path).status_code == 200


@pytest.mark.parametrize("options", [["--priorities", "ignore"], ["--order", "priority"]])
def test_priorities_are_taken(demo_gguf: Path, options: list[str]) -> None:
    with serving(demo_gguf, *options) as served:
        for path in PATHS:
            assert ask(served, path, priority=-3).status_code == 200
        found = served.post("/generate", text=["a", "b"], priority=[1, None])
        assert len(found.json()) == 2
        assert refusal(served.post("/generate", text=["a", "b"], priority=[1]))


def test_routing_keys(demo_gguf: Path) -> None:
    with serving(demo_gguf, "--order", "routing-key") as served:
        for path in PATHS:
            assert ask(served, path, routing_key="tenant").status_code == 200
            error = refusal(ask(served, path, routing_key="x" * 1025))
            assert error["param"] == "routing_key"
        url = f"{served.url}/generate"
        for length, status in ((9, 200), (1025, 400)):
            headers = {"x-smg-routing-key": "x" * length}
            assert httpx.post(url, json={"text": "a"}, headers=headers).status_code == status
