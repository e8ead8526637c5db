"""An engine that gets nowhere is noticed; one that is slow, idle, paused or loading is not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import httpx
import pytest

from tests.server import fake_engine as script
from tests.server.served import Served, eventually, is_alive, read_all, read_until
from tests.server.test_real_engine import RealServed
from treadle.server.watchdog import Watchdog
from treadle.text.frontend import Frontend
from treadle.text.workers import Worker
from treadle.wire.messages import Stats

PATH = "/v1/completions"
Start = Callable[..., Served]


class Told:
    """What a Frontend would tell."""

    def __init__(self) -> None:
        self.num_open = 1
        self.num_signs = 0
        self.has_engine = True
        self.paused = False
        self.stats: Stats | None = None
        self.workers: list[Worker] = []


def stats(*, steps: int) -> Stats:
    return Stats(
        running=1,
        waiting=0,
        kv_usage=0.0,
        prompt_tokens=0,
        generation_tokens=0,
        prefix_queries=0,
        prefix_hits=0,
        preemptions=0,
        steps=steps,
    )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def watchdog(told: Told) -> Watchdog:
    return Watchdog(cast("Frontend", told), 8.0)


def test_stuck_when_the_time_is_up(watchdog: Watchdog) -> None:
    assert [watchdog.tick(1.0) for _ in range(9)] == [None] * 7 + ["engine"] * 2


def test_any_sign_of_life_starts_the_time_anew(told: Told, watchdog: Watchdog) -> None:
    for _ in range(5):
        assert not any(watchdog.tick(1.0) for _ in range(7))
        told.num_signs += 1
        assert not watchdog.tick(1.0)


def test_nothing_to_do_is_not_stuck(told: Told, watchdog: Watchdog) -> None:
    told.num_open = 0
    assert not any(watchdog.tick(1.0) for _ in range(20))
    told.num_open = 1
    assert not any(watchdog.tick(1.0) for _ in range(7))


def test_paused_is_not_stuck(told: Told, watchdog: Watchdog) -> None:
    told.paused = True
    assert not any(watchdog.tick(1.0) for _ in range(20))


def test_loading_is_not_stuck(told: Told, watchdog: Watchdog) -> None:
    told.has_engine = False
    assert not any(watchdog.tick(1.0) for _ in range(20))


def test_a_worker_that_falls_behind_is_stuck_though_the_engine_is_not(
    told: Told, watchdog: Watchdog
) -> None:
    told.workers = [Worker("detokenizer 1"), Worker("detokenizer 2")]
    watchdog = Watchdog(cast("Frontend", told), 8.0)
    told.stats = stats(steps=0)
    assert not any(watchdog.tick(1.0) for _ in range(7))
    found = []
    for step in range(1, 10):
        told.num_signs += 1
        told.stats = stats(steps=step)
        told.workers[0].num_signs += 1
        told.workers[0].handed_on(told.stats)
        found.append(watchdog.tick(1.0))
    assert found == [None] * 7 + ["detokenizer 2"] * 2


def test_a_machine_that_slept_is_not_a_stuck_engine(watchdog: Watchdog) -> None:
    assert not watchdog.tick(3600.0)
    assert not watchdog.tick(3600.0)


def test_engine_that_never_plans(start: Start) -> None:
    """Alive, and telling so; its stacks are shown."""
    served = start("fake", "0", "512", "--watchdog-timeout", "1").wait_ready()
    engine = served.engine_pid
    began = time.monotonic()
    hold = {"prompt": [script.HOLD], "max_tokens": 9}
    with (
        served.open_request(PATH, **hold) as whole,
        served.open_request(PATH, **hold, stream=True) as stream,
    ):
        for connection in (whole, stream):
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 500")
            assert b"the engine is stuck: no progress for 1 s" in answer
    assert 1 < time.monotonic() - began < 1 + 3
    assert served.wait() == 1
    assert not is_alive(engine)
    assert "fake_engine.py" in served.log  # a line of its stack
    assert "in step" in served.log
    assert served.log.splitlines()[-1].startswith("treadle: the engine is stuck")


def test_a_slow_answer_is_not_stuck(start: Start) -> None:
    served = start("fake", "0", "512", "--watchdog-timeout", "0.5").wait_ready()
    response = served.complete([script.SLOW, 1100], max_tokens=200)
    assert response.json()["choices"][0]["finish_reason"] == "length"
    time.sleep(1.0)  # idle for longer than the limit
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_no_watchdog_when_it_is_off(start: Start) -> None:
    served = start("fake", "0", "512", "--watchdog-timeout", "0").wait_ready()
    with served.open_request(PATH, prompt=[script.HOLD], max_tokens=9):
        eventually(lambda: served.running() == 1)
        assert httpx.get(f"{served.url}/health").status_code == 200


def test_real_engine_that_is_stopped(demo_gguf: Path) -> None:
    served = RealServed(demo_gguf, "--watchdog-timeout", "2")
    try:
        engine = served.wait_ready().engine_pid
        body = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}
        with (
            served.open_request(PATH, **body, stream=True) as stream,
            served.open_request(PATH, **body) as whole,
        ):
            read_until(stream, b"data: ")
            eventually(lambda: served.running() == 2)
            os.kill(engine, signal.SIGSTOP)
            began = time.monotonic()
            assert b'data: {"error":' in read_all(stream)
            assert read_all(whole).startswith(b"HTTP/1.1 500")
            assert time.monotonic() - began < 2 + 3
        assert served.wait() == 1
        assert not is_alive(engine)
    finally:
        served.close()
