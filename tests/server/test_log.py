"""Lines on standard error: about load while there is some, about answers where asked for."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.server import fake_engine as script
from tests.server.served import Served
from treadle.server.load_log import NOTHING, RequestLog, StatsLog
from treadle.server.log import say
from treadle.text.observe import Ended
from treadle.wire.messages import Stats

Start = Callable[..., Served]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


def lines_of(*stats: Stats | None) -> list[str]:
    lines: list[str] = []
    log = StatsLog(lines.append, Clock())
    for one in stats:
        log.tick(one)
    return lines


def stats(**changes: Any) -> Stats:
    return msgspec.structs.replace(NOTHING, **changes)


BUSY = stats(
    running=3,
    waiting=1,
    kv_usage=0.125,
    prompt_tokens=1205,
    generation_tokens=881,
    prefix_queries=1000,
    prefix_hits=400,
    steps=9,
)
BUSY_LINE = (
    "running 3, waiting 1, prompt 120.5 tokens/s, generation 88.1 tokens/s, KV 12%, prefix hits 40%"
)


def test_nothing_is_said_while_nothing_happens() -> None:
    assert lines_of(None, NOTHING, NOTHING) == []


def test_rates_are_those_of_the_interval() -> None:
    later = msgspec.structs.replace(BUSY, prompt_tokens=1305, generation_tokens=900, steps=10)
    assert lines_of(BUSY, later) == [
        BUSY_LINE,
        "running 3, waiting 1, prompt 10.0 tokens/s, generation 1.9 tokens/s, KV 12%",
    ]


def test_a_queue_that_does_not_move_is_still_told() -> None:
    assert len(lines_of(BUSY, BUSY, BUSY)) == 3


def test_idle_is_said_once() -> None:
    done = msgspec.structs.replace(BUSY, running=0, waiting=0, kv_usage=0.0)
    assert lines_of(BUSY, done, done, done) == [BUSY_LINE, "idle"]


def test_work_between_two_lines_is_told() -> None:
    done = msgspec.structs.replace(BUSY, running=0, waiting=0, kv_usage=0.0)
    first, second = lines_of(NOTHING, done, done)
    assert first.startswith("running 0, waiting 0, prompt 120.5 tokens/s")
    assert second == "idle"


def test_an_answer_is_one_line() -> None:
    lines: list[str] = []
    answer = Ended(
        request_id="cmpl-1-0",
        reason="length",
        seconds=0.5,
        first_s=0.25,
        prompt_tokens=12,
        cached_tokens=3,
        generation_tokens=7,
        max_tokens=7,
        timings=None,
        group=None,
    )
    RequestLog(lines.append).ended(answer)
    assert lines == [
        "cmpl-1-0: 12 prompt tokens (3 cached), 7 generated, first token after 0.250 s, "
        "0.500 s in all, length"
    ]


def test_a_server_says_how_it_is_doing(start: Start) -> None:
    options = ("--log-stats-interval", "0.3", "--log-requests")
    served = start("fake", "0", "512", *options).wait_ready()
    body = {"messages": [{"role": "user", "content": "the secret word"}], "max_tokens": 3}
    assert served.post("/v1/chat/completions", **body).status_code == 200
    served.complete([script.SLOW, 1100], max_tokens=390, ignore_eos=True)
    served.read_until(r"(treadle: running 1, waiting 0, prompt .*)\n")
    served.read_until(r"\ntreadle: (idle)\n")
    line = served.read_until(r"\ntreadle: (chatcmpl-.*)\n")
    assert re.fullmatch(
        r"chatcmpl-\w+-0-0: \d+ prompt tokens \(0 cached\), 3 generated, "
        r"first token after \S+ s, \S+ s in all, length",
        line,
    )
    served.process.terminate()
    assert served.wait() == 0
    assert "secret" not in served.log


def test_silent_where_asked_for(start: Start) -> None:
    served = start("fake", "0", "512", "--log-stats-interval", "0").wait_ready()
    served.complete([script.SLOW, 1100], max_tokens=100)
    served.process.terminate()
    assert served.wait() == 0
    assert "running" not in served.log


@pytest.mark.parametrize("broken", ["closed", "full", "none"])
def test_a_line_that_cannot_be_written_is_lost(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    with open(os.devnull if broken == "closed" else "/dev/full", "w") as stream:
        if broken == "closed":
            stream.close()
        monkeypatch.setattr(sys, "stderr", None if broken == "none" else stream)
        say("a line")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            stream.close()


def test_a_server_whose_reader_is_gone_serves_on(start: Start) -> None:
    served = start("fake", "0", "512", "--log-requests").wait_ready()
    assert served.process.stderr is not None
    served.process.stderr.close()
    served.process.stderr = None
    for _ in range(3):
        assert served.complete([1100], max_tokens=2).status_code == 200
