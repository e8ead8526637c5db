"""Log lines about load and, where asked for, about each answer. Never prints what clients sent."""

from __future__ import annotations

import time
from collections.abc import Callable

from treadle.server.log import say
from treadle.text.observe import Ended
from treadle.wire.messages import Stats

NOTHING = Stats(
    running=0,
    waiting=0,
    kv_usage=0.0,
    prompt_tokens=0,
    generation_tokens=0,
    prefix_queries=0,
    prefix_hits=0,
    preemptions=0,
    steps=0,
)
"""What an engine that has just started says."""


class StatsLog:
    """Lines about load. Each compares the engine's latest Stats with those of the line before."""

    def __init__(
        self, write: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._last = NOTHING
        self._last_s = clock()
        self._was_busy = False

    def tick(self, stats: Stats | None) -> None:
        now = self._clock()
        seconds, self._last_s = now - self._last_s, now
        if stats is None:
            return
        last, self._last = self._last, stats
        is_busy = bool(stats.running or stats.waiting)
        moved = (stats.steps, stats.generation_tokens) != (last.steps, last.generation_tokens)
        if is_busy or moved:
            self._write(_load(last, stats, seconds))
        if not is_busy and (moved or self._was_busy):
            self._write("idle")
        self._was_busy = is_busy


def _load(last: Stats, stats: Stats, seconds: float) -> str:
    queries = stats.prefix_queries - last.prefix_queries
    hits = stats.prefix_hits - last.prefix_hits
    prompt = (stats.prompt_tokens - last.prompt_tokens) / seconds
    generated = (stats.generation_tokens - last.generation_tokens) / seconds
    found = f", prefix hits {hits / queries:.0%}" if queries else ""
    return (
        f"running {stats.running}, waiting {stats.waiting}, prompt {prompt:.1f} tokens/s, "
        f"generation {generated:.1f} tokens/s, KV {stats.kv_usage:.0%}{found}"
    )


class RequestLog:
    """An observer that writes a line for each answer that ends."""

    def __init__(self, write: Callable[[str], None] = say) -> None:
        self._write = write

    def first_token(self, seconds: float) -> None: ...

    def next_tokens(self, seconds: float) -> None: ...

    def rejected(self, num_answers: int) -> None:
        self._write(f"refused {num_answers} answers: the queue is full")

    def measured(self, stats: Stats) -> None: ...

    def ended(self, answer: Ended) -> None:
        first = (
            "no token" if answer.first_s is None else f"first token after {answer.first_s:.3f} s"
        )
        self._write(
            f"{answer.request_id}: {answer.prompt_tokens} prompt tokens"
            f" ({answer.cached_tokens} cached), {answer.generation_tokens} generated, {first},"
            f" {answer.seconds:.3f} s in all, {answer.reason}"
        )
