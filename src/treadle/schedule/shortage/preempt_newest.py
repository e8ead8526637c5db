"""The request admitted last gives way, even to those of its own step."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)


class PreemptNewest(Generic[R]):
    """The oldest request never gives way, so that one request always ends."""

    def __init__(self, running: Running[R]) -> None:
        self._running = running

    def victim(self, request: R) -> R | None:  # noqa: ARG002
        return self._running.requests[-1]
