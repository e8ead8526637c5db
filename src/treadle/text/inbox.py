"""Where the parts of answers wait for their consumer."""

from __future__ import annotations

import asyncio

from treadle.errors import TreadleError
from treadle.text.choice import ChoiceDelta


class Inbox:
    """What has arrived for one consumer. Parts of one answer merge while nobody takes them, so a
    slow consumer holds up nobody and is handed one part, however long it was away."""

    def __init__(self, num_answers: int) -> None:
        self.num_open = num_answers
        self._parts: dict[int, ChoiceDelta] = {}
        self._error: TreadleError | None = None
        self._news = asyncio.Event()

    def put(self, part: ChoiceDelta) -> None:
        held = self._parts.setdefault(part.index, part)
        if held is not part:
            held.append(part)
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
