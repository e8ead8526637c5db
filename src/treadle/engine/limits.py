"""Limits of a server that its engine sees to: who leaves a full queue, and who has run too long.

Where priorities do not count, a full queue is the text side's: it refuses before anything is sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from treadle.engine.request import Request
from treadle.errors import OverloadError
from treadle.schedule.order.priority import importance


@dataclasses.dataclass(frozen=True)
class Limits:
    """None for no limit."""

    max_queued: int | None = None
    """How many may wait beyond those for whom there are rows."""
    running_timeout: float | None = None
    """Seconds that an answer may take from when it first started."""

    def displaced(self, by: Request, waiting: Collection[Request], rows: int) -> Request | None:
        """Who must leave so that `by` may wait, while `rows` are free: the least important, the
        newest among equals. Raises OverloadError where that is not less important than `by`."""
        if self.max_queued is None or len(waiting) < self.max_queued + rows:
            return None
        worst = max(waiting, key=importance, default=by)
        if by.priority < worst.priority:
            return worst
        raise _overload(
            "queue_full",
            f"the queue is full: {self.max_queued} answers wait already, none less important",
        )

    def expired(self, running: Iterable[Request], now: float) -> list[Request]:
        """Those who have run for longer than they may, by the clock of their times."""
        if self.running_timeout is None:
            return []
        limit = now - self.running_timeout
        return [one for one in running if one.times.started and one.times.started < limit]

    def took_too_long(self) -> OverloadError:
        seconds = self.running_timeout
        return _overload("running_timeout", f"the answer took more than {seconds:g} s")


def gave_way() -> OverloadError:
    """What is said to one that left for a more important one."""
    return _overload("queue_full", "the queue is full, and a more important request came")


def _overload(code: str, message: str) -> OverloadError:
    error = OverloadError(message)
    error.code = code
    return error


UNLIMITED = Limits()
