"""TensorRT-LLM's static batch: requests start together, and the next ones when all have ended."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.admission.account import Account
from treadle.schedule.admission.no_evict import end_of
from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission

R = TypeVar("R", bound=Schedulable)


class Static(Admission[R]):
    """Nobody joins a batch that is under way."""

    def __init__(self, running: Running[R]) -> None:
        self._running = running
        self._account = Account(running, end_of)
        self._under_way = False

    def open(self, set_aside: int = 0) -> None:  # noqa: ARG002
        self._under_way = bool(self._running.requests)
        self._account.open()

    def admits(self, request: R, match: KVMatch, num_tokens: int) -> bool:  # noqa: ARG002
        return not self._under_way and self._account.affords(request, match)

    def charge(self, request: R, match: KVMatch, num_tokens: int) -> None:  # noqa: ARG002
        self._account.charge(request, match)
