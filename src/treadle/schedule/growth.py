"""Blocks for running requests, and how others give way for them."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Shortage

R = TypeVar("R", bound=Schedulable)


class Growth(Generic[R]):
    """Who gives way keeps its tokens, waits, and is computed again later as far as the prefix cache
    does not still know it."""

    def __init__(
        self, running: Running[R], waiting: WaitingOrder[R], shortage: Shortage[R]
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._shortage = shortage

    def reach(self, request: R, num_tokens: int, draft: Draft[R]) -> bool:
        """Get blocks for `num_tokens` tokens; others give way until there are enough.

        With steps in flight, blocks come back only when those settle: then this step does without.
        So does a request that would have to give way itself: steps in flight may end another, or
        move its own window on.
        """
        while not self._running.grow(request, num_tokens):
            if self._running.blocks_return:
                return False
            victim = self._shortage.victim(request)
            if victim is None or (victim is request and self._running.in_flight):
                return False
            self._preempt(victim, draft)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: R, draft: Draft[R]) -> None:
        self._running.counters.preemptions += 1
        self._running.stop(victim, draft)
        self._waiting.put_back(victim)
