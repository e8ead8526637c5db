"""The request admitted last gives way, even to those of its own step."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Shortage

R = TypeVar("R", bound=Schedulable)


class PreemptNewest(Shortage[R]):
    """The oldest request never gives way to another, so that one request always ends."""

    def __init__(self, running: Running[R], *, waits: bool = False) -> None:
        self._running = running
        self._waits = waits
        """The newest waits with what it has, in place of giving way to nobody in particular."""

    def victim(self, request: R) -> R | None:
        newest = self._running.requests[-1]
        return None if newest is request and self._waits else newest
