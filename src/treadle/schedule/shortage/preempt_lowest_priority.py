"""The least important request gives way, and among equals the one that arrived last, even if it is
in the step that is being composed."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Shortage

R = TypeVar("R", bound=Schedulable)


class PreemptLowestPriority(Shortage[R]):
    """The most important request never gives way to another, so that one request always ends."""

    def __init__(self, running: Running[R]) -> None:
        self._running = running

    def victim(self, request: R) -> R | None:  # noqa: ARG002
        return max(self._running.requests, key=lambda other: (other.priority, other.arrived))
