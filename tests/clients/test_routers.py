"""SGLang's and vLLM's routers in front of two servers: they find them, use both, and miss none that
dies.

What they ask of a worker by themselves: /health every so often, and once /server_info (or
/get_server_info) and /model_info (or /get_model_info), going on without where those are absent.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import COUNTED, COUNTING
from tests.clients.serving import DEADLINE_S, MODEL, Program, Serving, free_port

CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say hello to the weaver."}],
    "max_tokens": 8,
    "temperature": 0,
}


class Router(Program):
    """One of the routers, ready, with its workers."""

    def __init__(self, name: str, workers: list[Serving], log: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = {
            "host": "127.0.0.1",
            "port": port,
            "policy": "round_robin",
            "prometheus-port": free_port(),
            "health-check-interval-secs": 1,
            "health-failure-threshold": 1,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        urls = ["--worker-urls", *(worker.url for worker in workers)]
        super().__init__([sys.executable, "-m", f"{name}.launch_router", *flags, *urls], log)
        self._num_workers = len(workers)

    def wait_ready(self) -> Router:
        end = time.monotonic() + DEADLINE_S
        while self._num_healthy() != self._num_workers:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.1)
        return self

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=DEADLINE_S)

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def counted(self) -> None:
        answer = self.post("/v1/completions", COUNTING)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == COUNTED

    def _num_healthy(self) -> int:
        try:
            answer = httpx.get(f"{self.url}/readiness", timeout=DEADLINE_S).json()
        except httpx.TransportError:
            return 0
        return int(answer.get("healthy_workers", 0))


def start_worker(python: Path, log: Path) -> Serving:
    return Serving(python, log, "--threads", "1")


@pytest.fixture(scope="module")
def workers(
    serving_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Serving]]:
    folder = tmp_path_factory.mktemp("workers")
    with contextlib.ExitStack() as stack:
        workers = [start_worker(serving_python, folder / str(number)) for number in range(2)]
        for worker in workers:
            stack.callback(worker.close)
        yield [worker.wait_ready() for worker in workers]


@pytest.fixture(scope="module", params=["sglang_router", "vllm_router"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def router(
    name: str, workers: list[Serving], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Router]:
    router = Router(name, workers, tmp_path_factory.mktemp("router") / name)
    with contextlib.closing(router):
        yield router.wait_ready()


def test_both_workers_serve(router: Router, workers: list[Serving]) -> None:
    before = [worker.metric("vllm:request_success_total") for worker in workers]
    for _ in range(4):
        router.counted()
    after = [worker.metric("vllm:request_success_total") for worker in workers]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 2]


def test_chat_whole_and_streamed(router: Router) -> None:
    whole = router.post("/v1/chat/completions", CHAT).json()["choices"][0]
    events = router.events("/v1/chat/completions", CHAT)
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == whole["message"]["content"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_generate_whole_and_streamed(router: Router) -> None:
    """SGLang's own route; each event of a stream has the whole text so far."""
    params = {"max_new_tokens": COUNTING["max_tokens"], "temperature": 0}
    body = {"text": COUNTING["prompt"], "sampling_params": params}
    whole = router.post("/generate", body)
    assert whole.status_code == 200, whole.text
    assert whole.json()["text"] == COUNTED
    assert whole.json()["meta_info"]["completion_tokens"] == COUNTING["max_tokens"]
    last = router.events("/generate", body)[-1]
    assert last["text"] == COUNTED
    assert last["meta_info"]["finish_reason"]["type"] == "length"


def test_an_error_reaches_the_client(router: Router) -> None:
    response = router.post("/v1/completions", {**COUNTING, "temperature": -1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


def test_a_client_that_goes_is_noticed_through_the_router(
    router: Router, workers: list[Serving]
) -> None:
    body = {**COUNTING, "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{router.url}/v1/completions", json=body) as response:
        assert response.status_code == 200
        next(response.iter_bytes())
    for worker in workers:
        worker.wait_idle()


def test_one_dies_and_the_other_serves(
    name: str, workers: list[Serving], serving_python: Path, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        doomed = start_worker(serving_python, tmp_path / "doomed")
        stack.callback(doomed.close)
        both = [doomed.wait_ready(), workers[0]]
        router = Router(name, both, tmp_path / name)
        stack.callback(router.close)
        router.wait_ready()
        router.counted()
        doomed.close()
        for _ in range(4):
            router.counted()
