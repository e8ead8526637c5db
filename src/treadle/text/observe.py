"""What there is to know of answers while they come and when they have ended; for metrics and logs.

Numbers only: what was asked and answered is nobody's business here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

from treadle.wire.messages import Finish, Generate, Stats, Timings

EndReason = Finish | Literal["error"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One answer, after its end."""

    request_id: str
    reason: EndReason
    seconds: float
    """From when it was sent to the engine to its end."""
    first_s: float | None
    """From when it was sent to the engine to its first token."""
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    max_tokens: int | None
    timings: Timings | None
    """By the engine's clock; None when it never began, or did not say."""
    group: tuple[int, int] | None
    """With the last answer of a prompt to end: n, and the longest answer's tokens."""


class Observer(Protocol):
    """Told about each answer as its tokens arrive, whether or not anybody reads them."""

    def first_token(self, seconds: float) -> None:
        """Seconds since the request was sent to the engine."""

    def next_tokens(self, seconds: float) -> None:
        """Seconds since this answer's previous tokens."""

    def ended(self, answer: Ended) -> None:
        """Every answer that was sent to the engine ends once."""

    def rejected(self, num_answers: int) -> None:
        """They found the queue full and were never sent."""

    def measured(self, stats: Stats) -> None:
        """The engine said how it is doing, as it does some times a second while it works."""


class Observers:
    """Several of them, told one after the other."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def first_token(self, seconds: float) -> None:
        for observer in self._observers:
            observer.first_token(seconds)

    def next_tokens(self, seconds: float) -> None:
        for observer in self._observers:
            observer.next_tokens(seconds)

    def ended(self, answer: Ended) -> None:
        for observer in self._observers:
            observer.ended(answer)

    def rejected(self, num_answers: int) -> None:
        for observer in self._observers:
            observer.rejected(num_answers)

    def measured(self, stats: Stats) -> None:
        for observer in self._observers:
            observer.measured(stats)


class PromptTally:
    """The n answers to one prompt, until all have ended."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._num_open = n
        self._longest = 0

    def end(self, num_tokens: int) -> tuple[int, int] | None:
        """See `Ended.group`."""
        self._num_open -= 1
        self._longest = max(self._longest, num_tokens)
        return None if self._num_open else (self._n, self._longest)


class Watch:
    """Measures one answer, from when it is sent to its end. Takes times instead of asking for
    them."""

    def __init__(self, generate: Generate, tally: PromptTally, now: float) -> None:
        self._request_id = generate.request_id
        self._num_prompt = len(generate.prompt)
        self._max_tokens = generate.params.max_tokens
        self._tally = tally
        self._sent_s = now
        self._first_s: float | None = None
        self._last_s = now
        self._num_tokens = 0
        self._num_cached = 0

    @property
    def sent_s(self) -> float:
        return self._sent_s

    @property
    def has_begun(self) -> bool:
        return self._first_s is not None

    def take(self, num_tokens: int, num_cached: int, now: float, observer: Observer) -> None:
        self._num_cached = max(self._num_cached, num_cached)
        if not num_tokens:
            return
        if self._first_s is None:
            self._first_s = now
            observer.first_token(now - self._sent_s)
        else:
            observer.next_tokens(now - self._last_s)
        self._last_s = now
        self._num_tokens += num_tokens

    def end(self, reason: EndReason, now: float, timings: Timings | None = None) -> Ended:
        return Ended(
            request_id=self._request_id,
            reason=reason,
            seconds=now - self._sent_s,
            first_s=None if self._first_s is None else self._first_s - self._sent_s,
            prompt_tokens=self._num_prompt,
            cached_tokens=self._num_cached,
            generation_tokens=self._num_tokens,
            max_tokens=self._max_tokens,
            timings=timings,
            group=self._tally.end(self._num_tokens),
        )
