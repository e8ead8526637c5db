"""Where the parts of answers wait for their consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from treadle.errors import TreadleError
from treadle.text.choice import ChoiceDelta
from treadle.text.shared_scores import SharedScores


class Inbox:
    """What has arrived for one consumer. Parts of one answer merge while nobody takes them, so a
    slow consumer holds up nobody and is handed one part, however long it was away."""

    def __init__(self, num_answers: int, scores: Mapping[int, SharedScores]) -> None:
        """`scores` by the index of the answers that share them."""
        self.num_open = num_answers
        self._scores = scores
        self._parts: dict[int, ChoiceDelta] = {}
        self._error: TreadleError | None = None
        self._news = asyncio.Event()

    def put(self, part: ChoiceDelta) -> None:
        shared = self._scores.get(part.index)
        for each in (part,) if shared is None else shared.pass_on(part):
            held = self._parts.setdefault(each.index, each)
            if held is not each:
                held.append(each)
            self._news.set()

    def fail(self, error: TreadleError) -> None:
        self._error = error
        self._news.set()

    async def take(self) -> list[ChoiceDelta]:
        """At least one part; raises once the parts before a failure are taken."""
        await self._news.wait()
        if not self._parts and self._error is not None:
            raise self._error.with_traceback(None)  # raised in every consumer
        parts, self._parts = list(self._parts.values()), {}
        self.num_open -= sum(part.finish_reason is not None for part in parts)
        if self._error is None:
            self._news.clear()
        return parts
