"""The queue has an end: who finds it full, or waits too long in it, is told at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.server import fake_engine as script
from tests.server.served import RealServed, Served, eventually
from tests.server.test_metrics import samples

Start = Callable[..., Served]

TWO_ROWS = ("fake", "0", "512", "--max-num-seqs", "2")
SLOW = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "ignore_eos": True}


def at_once(served: Served, count: int) -> list[tuple[httpx.Response, float]]:
    """Answers, each with the seconds it took, to requests sent together."""
    together = threading.Barrier(count)

    def ask(_: int) -> tuple[httpx.Response, float]:
        together.wait()
        began = time.monotonic()
        return served.complete(**SLOW), time.monotonic() - began

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def test_a_full_queue_refuses_at_once(start: Start) -> None:
    served = start(*TWO_ROWS, "--max-queued-requests", "4").wait_ready()
    answers = at_once(served, 20)
    refused = [(response, seconds) for response, seconds in answers if response.status_code != 200]
    assert len(refused) == 14
    for response, seconds in refused:
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("service_unavailable_error", "queue_full")
        assert seconds < 1.5
    for response, _ in answers:
        if response.status_code == 200:
            assert response.json()["usage"]["completion_tokens"] == 390
    found = samples(httpx.get(f"{served.url}/metrics").text)
    assert found["vllm:admission_rejections_total", ""] == 14
    assert served.complete("a b").status_code == 200


def test_answers_of_one_request_count_each(start: Start) -> None:
    served = start(*TWO_ROWS, "--max-queued-requests", "4").wait_ready()
    assert served.complete("a b", n=6, max_tokens=3).status_code == 200
    error = served.complete("a b", n=7, max_tokens=3)
    # Waiting would not help.
    assert (error.status_code, error.json()["error"]["param"]) == (400, "n")


def test_an_answer_has_a_limit_where_asked_for(demo_gguf: Path) -> None:
    served = RealServed(demo_gguf, "--running-timeout", "0.5", "--max-num-seqs", "2")
    try:
        served.wait_ready()
        for stream in (False, True):
            response = served.complete("a b", max_tokens=7000, ignore_eos=True, stream=stream)
            text = response.text
            assert "running_timeout" in text
            assert response.status_code == (200 if stream else 503)
        assert served.complete("a b", max_tokens=2).status_code == 200
    finally:
        served.close()


def test_a_full_queue_loses_the_least_important(demo_gguf: Path) -> None:
    served = RealServed(
        demo_gguf,
        *("--max-num-seqs", "1", "--max-queued-requests", "1", "--order", "priority"),
    )
    body = {"prompt": "a b", "ignore_eos": True}
    try:
        served.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(served.complete, **body, max_tokens=600, priority=5)
            eventually(lambda: served.running() == 1)
            waiting = pool.submit(served.complete, **body, max_tokens=2, priority=5)
            eventually(lambda: waiting_of(served) == 1)
            refused = served.complete(**body, max_tokens=2, priority=5)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
            assert served.complete(**body, max_tokens=2, priority=4).status_code == 200
            displaced = waiting.result()
            assert displaced.status_code == 503
            assert "more important" in displaced.json()["error"]["message"]
            assert running.result().status_code == 200
        found = samples(httpx.get(f"{served.url}/metrics").text)
        assert found["vllm:admission_rejections_total", ""] == 2
    finally:
        served.close()


def waiting_of(served: Served) -> float:
    found = samples(httpx.get(f"{served.url}/metrics").text)
    return found["vllm:num_requests_waiting", ""]


def test_two_thousand_wait_by_default(start: Start) -> None:
    served = start(*TWO_ROWS).wait_ready()
    body = {"prompt": [[1100]] * 1000, "max_tokens": 2}
    with ThreadPoolExecutor(2) as pool:
        for response in pool.map(lambda _: served.complete(**body), range(2)):
            assert len(response.json()["choices"]) == 1000


def test_a_wait_has_a_limit_where_asked_for(start: Start) -> None:
    served = start(*TWO_ROWS, "--queue-timeout", "0.4").wait_ready()
    hold = {"prompt": [script.HOLD], "max_tokens": 9}
    with (
        served.open_request("/v1/completions", **hold),
        served.open_request("/v1/completions", **hold),
    ):
        eventually(lambda: served.running() == 2)
        began = time.monotonic()
        for stream in (False, True):
            response = served.complete("a b", stream=stream)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "queue_timeout"
            assert response.headers["retry-after"] == "1"
        assert time.monotonic() - began < 4
        # Those that run are not waiting, however long their first token takes.
        assert served.running() == 2
    eventually(lambda: served.running() == 0)
    assert served.complete("a b").status_code == 200
