"""Processes that make texts: what they tell is what the API would make itself, and what a request
crosses on its way, counted by the links it crosses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from treadle.text.choice import Choice
from treadle.text.load import ModelText, load_text
from treadle.text.output import AnswerText
from treadle.text.process import TextService, follow
from treadle.text.workers import FromWorker, Told
from treadle.wire.channel import EngineChannel, Link
from treadle.wire.ends import EngineEnds
from treadle.wire.messages import Delta, Failed, Finish, FromEngine, Generate, Stats
from treadle.wire.sampling_params import SamplingParams

STATS = Stats(
    running=1,
    waiting=0,
    kv_usage=0.0,
    prompt_tokens=1,
    generation_tokens=1,
    prefix_queries=0,
    prefix_hits=0,
    preemptions=0,
    steps=3,
)


@pytest.fixture(scope="module")
def text(demo_gguf: Path) -> ModelText:
    return load_text(demo_gguf)


def ask(name: str, **params: object) -> Generate:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    return Generate(request_id=name, prompt=[5, 6, 7], params=sampling, seed=0)


def deltas(name: str, tokens: list[int], finish: Finish | None = "length") -> list[Delta]:
    *begun, last = tokens
    return [
        *(Delta(request_id=name, tokens=[token]) for token in begun),
        Delta(request_id=name, tokens=[last], finish=finish),
    ]


def test_parts_are_those_that_the_api_would_make(text: ModelText) -> None:
    tokens = text.tokenizer.encode("a 🦩 b ñ c", add_special=False)
    request = ask("r")
    own = Choice(0, AnswerText(text.tokenizer, request.params))
    service = TextService(text.tokenizer)
    service.take([request])
    for delta in deltas("r", tokens):
        [told] = service.take([delta])
        assert isinstance(told, Told)
        assert (told.part, told.early) == (own.part(delta), False)


def test_a_stop_string_is_told_once_and_then_nothing(text: ModelText) -> None:
    tokens = text.tokenizer.encode(" the quick brown fox", add_special=False)
    service = TextService(text.tokenizer)
    service.take([ask("r", stop="quick")])
    told = service.take(deltas("r", tokens, "abort"))
    last = told[-1]
    assert isinstance(last, Told)
    assert (last.part.finish_reason, last.part.stop_reason, last.early) == ("stop", "quick", True)
    assert len(told) < len(tokens)
    assert service.take([Failed(request_id="r", status=500, message="late")]) == []


def test_failures_and_stats_are_handed_on_in_order(text: ModelText) -> None:
    service = TextService(text.tokenizer)
    failed = Failed(request_id="r", status=400, message="no")
    [told, *rest] = service.take([ask("r"), Delta(request_id="r", tokens=[5]), failed, STATS])
    assert isinstance(told, Told)
    assert rest == [failed, STATS]
    assert service.take([failed]) == []


class Joined:
    """An engine's channel, the API's ends, and workers in threads between them."""

    def __init__(self, num_workers: int, text: ModelText) -> None:
        here, there = socket.socketpair()
        fed = [socket.socketpair() for _ in range(num_workers)]
        tell = [socket.socketpair() for _ in range(num_workers)]
        workers = tuple(ours.detach() for ours, _ in fed)
        self.api = Link(here)
        self.engine = EngineChannel(EngineEnds(there.detach(), workers))
        self.from_workers = [Link(ours) for ours, _ in tell]
        self.at_workers = [
            (Link(mine), Link(api)) for (_, mine), (_, api) in zip(fed, tell, strict=True)
        ]
        self._threads = [
            threading.Thread(target=follow, args=(mine, api, TextService(text.tokenizer)))
            for mine, api in self.at_workers
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.engine.close()
        for thread in self._threads:
            thread.join()
        for link in (
            self.api,
            *self.from_workers,
            *(end for both in self.at_workers for end in both),
        ):
            link.close()


@contextmanager
def joined(num_workers: int, text: ModelText) -> Iterator[Joined]:
    processes = Joined(num_workers, text)
    try:
        yield processes
    finally:
        processes.close()


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_what_a_request_crosses(text: ModelText, num_workers: int) -> None:
    """In: once. Out: once, or twice through a process that makes texts."""
    answers = {
        f"r-{number}": text.tokenizer.encode(f" answer {number} 🦩", add_special=False)
        for number in range(5)
    }
    with joined(num_workers, text) as all_of_them:
        engine = all_of_them.engine
        for name in answers:
            all_of_them.api.send([ask(name)])
            [got] = engine.receive(block=True)
            assert isinstance(got, Generate)
            assert got.prompt == [5, 6, 7]
        for name, tokens in answers.items():
            for delta in deltas(name, tokens):
                engine.send([delta])
        num_deltas = sum(map(len, answers.values()))
        engine.send([STATS])
        texts = dict.fromkeys(answers, "")
        num_parts = num_stats = 0
        while num_workers and num_stats < num_workers:
            for link in all_of_them.from_workers:
                for frame in link.frames():
                    for message in msgspec.msgpack.decode(frame, type=list[FromWorker]):
                        num_stats += isinstance(message, Stats)
                        if isinstance(message, Told):
                            num_parts += 1
                            texts[message.request_id] += message.part.text
        assert all_of_them.api.num_sent == len(answers) == engine.text.num_received
        direct = [
            message
            for frame in all_of_them.api.frames()
            for message in msgspec.msgpack.decode(frame, type=list[FromEngine])
        ]
        if num_workers == 0:
            assert [type(message) for message in direct] == [Delta] * num_deltas + [Stats]
            assert engine.text.num_sent == num_deltas + 1
            return
        assert direct == [STATS]
        assert texts == {name: text.tokenizer.decode(tokens) for name, tokens in answers.items()}
        assert num_parts == num_deltas
        # Each worker has each of its requests and the Stats besides.
        crossed = sum(link.num_sent for link in engine.workers) - len(answers) - num_workers
        crossed_again = sum(link.num_received for link in all_of_them.from_workers)
        assert crossed == num_deltas
        assert num_deltas - len(answers) <= crossed_again <= num_deltas + num_workers


def test_who_is_gone_holds_up_no_engine(text: ModelText) -> None:
    with joined(1, text) as processes:
        [(mine, _)] = processes.at_workers
        processes.api.send([ask("r")])
        processes.engine.receive(block=True)
        processes.api.close()
        for _ in range(2000):
            processes.engine.send([STATS, Delta(request_id="r", tokens=[5] * 100)])
        assert processes.engine.receive(block=False) == []
        assert mine.is_open
