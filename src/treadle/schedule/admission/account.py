"""Blocks that nobody has been promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)


class Account(Generic[R]):
    """What is available, less what running requests still take up to their horizons, less what was
    charged in this step. Drawn up once a step, when it is first asked for."""

    def __init__(self, running: Running[R], horizon: Callable[[R], int]) -> None:
        self._running = running
        self._horizon = horizon
        """Up to how many tokens a request's KV is thought of."""
        self._left: list[int] | None = None

    def open(self) -> None:
        self._left = None

    def affords(self, request: R, match: KVMatch) -> bool:
        price = self._running.kv.price(match, self._horizon(request))
        return all(cost <= left for cost, left in zip(price, self._drawn_up(), strict=True))

    def charge(self, request: R, match: KVMatch) -> None:
        price = self._running.kv.price(match, self._horizon(request))
        pairs = zip(self._drawn_up(), price, strict=True)
        self._left = [left - cost for left, cost in pairs]

    def _drawn_up(self) -> list[int]:
        if self._left is None:
            kv = self._running.kv
            self._left = list(kv.available)
            for request in self._running.requests:
                missing = kv.missing(request.lease, self._horizon(request))
                self._left = [left - more for left, more in zip(self._left, missing, strict=True)]
        return self._left
