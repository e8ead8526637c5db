"""Where the parts of answers wait for their consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from treadle.errors import TreadleError
from treadle.text.choice import ChoiceDelta
from treadle.text.shared_scores import SharedScores


class Inbox:
    """What has arrived for one consumer. Parts of one answer merge while nobody takes them, so a
    slow consumer holds up nobody and is handed one part, however long it was away.

    A consumer is a task that waits in `take`, or a function given to `listen`, which is called
    without a task's switch and takes what there is with `take_now`.
    """

    def __init__(self, num_answers: int, scores: Mapping[int, SharedScores]) -> None:
        """`scores` by the index of the answers that share them."""
        self.num_open = num_answers
        self._scores = scores
        self._parts: dict[int, ChoiceDelta] = {}
        self._error: TreadleError | None = None
        self._news = asyncio.Event()
        self.tell: Callable[[], None] = self._news.set
        """Have the consumer look; once for all that a frame of the engine's brought."""

    def put(self, part: ChoiceDelta) -> bool:
        """Whether the consumer knows of nothing yet, so that it is to be told."""
        knows = bool(self._parts)
        shared = self._scores.get(part.index)
        for each in (part,) if shared is None else shared.pass_on(part):
            held = self._parts.setdefault(each.index, each)
            if held is not each:
                held.append(each)
        return not knows and bool(self._parts)

    def fail(self, error: TreadleError) -> None:
        self._error = error
        self.tell()

    def listen(self, consumer: Callable[[], None]) -> None:
        """Call `consumer`, in place of waking whoever waits in `take`; now, if there is news."""
        self.tell = consumer
        if self._parts or self._error is not None:
            consumer()

    async def take(self) -> list[ChoiceDelta]:
        """At least one part; raises once the parts before a failure are taken."""
        await self._news.wait()
        parts = self.take_now()
        if self._error is None:
            self._news.clear()
        return parts

    def take_now(self) -> list[ChoiceDelta]:
        """The same without waiting; there may be none."""
        if not self._parts and self._error is not None:
            raise self._error.with_traceback(None)  # raised in every consumer
        parts, self._parts = list(self._parts.values()), {}
        for part in parts:
            self.num_open -= part.finish_reason is not None
        return parts
