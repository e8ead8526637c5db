"""Conversations at their times to an engine in this process, and when their tokens came.

Drives the loop itself: between a request's time and its tokens stands nothing but the engine. A
request that is due while a step runs is handed over after it, and waits from when it was due.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from collections.abc import Sequence

import msgspec

from treadle.bench.completion import Measured
from treadle.bench.scenarios import Conversation
from treadle.engine.loop import Engine
from treadle.errors import EngineError, InvalidRequest
from treadle.wire.messages import Delta, Failed, Generate
from treadle.wire.sampling_params import SamplingParams


class _Turn(msgspec.Struct):
    """A request under way."""

    asked: Conversation
    history: list[int]
    measured: Measured
    last_s: float = 0.0
    answer: list[int] = []


class Timed:
    """One run. Every answer has its full length."""

    def __init__(self, engine: Engine, asked: Sequence[Conversation], think_s: float) -> None:
        self._engine = engine
        self._think_s = think_s
        self._due: list[tuple[float, int, _Turn]] = []
        self._running: dict[str, _Turn] = {}
        self._digest: dict[tuple[int, int], list[int]] = {}
        self.measured: list[Measured] = []
        for at, one in enumerate(asked):
            self._plan(one.due_s, _Turn(one, list(one.turns[0]), _measured(at, 0, one)))

    def run(self) -> float:
        """Until all is answered; the seconds it took."""
        began = time.perf_counter()
        while self._due or self._running:
            now = time.perf_counter() - began
            while self._due and self._due[0][0] <= now:
                self._start(heapq.heappop(self._due)[2])
            if not self._running:
                time.sleep(max(self._due[0][0] - now, 0))
                continue
            messages = self._engine.step()
            now = time.perf_counter() - began
            for message in messages:
                self._take(message, now)
        return time.perf_counter() - began

    @property
    def digest(self) -> str:
        """Of all answers: the same whatever policy ran."""
        ordered = [self._digest[key] for key in sorted(self._digest)]
        return hashlib.blake2b(msgspec.json.encode(ordered), digest_size=8).hexdigest()

    def _plan(self, due_s: float, turn: _Turn) -> None:
        turn.measured.arrival_s = turn.measured.sent_s = due_s
        heapq.heappush(self._due, (due_s, len(self.measured), turn))
        self.measured.append(turn.measured)

    def _start(self, turn: _Turn) -> None:
        key = f"{turn.measured.conversation}.{turn.measured.turn}"
        turn.measured.input_len = len(turn.history)
        length = turn.asked.output_len
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        self._running[key] = turn
        self._engine.handle(Generate(request_id=key, prompt=turn.history, params=params, seed=0))

    def _take(self, message: object, now: float) -> None:
        if isinstance(message, Failed):
            kind = InvalidRequest if message.status < 500 else EngineError
            raise kind(message.message)
        assert isinstance(message, Delta)
        turn = self._running[message.request_id]
        found, since = turn.measured, now - turn.measured.arrival_s
        if message.tokens:
            if found.ttft_s is None:
                found.ttft_s = since
                found.cached_tokens = message.cached_tokens
            else:
                found.itl_s.append(now - turn.last_s)
            turn.last_s = now
            turn.answer += message.tokens
        if message.finish is not None:
            del self._running[message.request_id]
            self._finish(turn, since, now)

    def _finish(self, turn: _Turn, latency_s: float, now: float) -> None:
        found, asked = turn.measured, turn.asked
        found.latency_s = latency_s
        found.prompt_tokens, found.completion_tokens = len(turn.history), len(turn.answer)
        self._digest[found.conversation, found.turn] = turn.answer
        after = found.turn + 1
        if after < len(asked.turns):
            history = [*turn.history, *turn.answer, *asked.turns[after]]
            self._plan(
                now + self._think_s,
                _Turn(asked, history, _measured(found.conversation, after, asked)),
            )


def _measured(conversation: int, turn: int, asked: Conversation) -> Measured:
    return Measured(
        conversation=conversation, turn=turn, input_len=None, output_len=asked.output_len
    )
