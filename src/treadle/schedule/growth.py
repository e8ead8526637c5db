"""Blocks for running requests, and how others give way for them."""

from __future__ import annotations

from collections.abc import Sequence
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

    def prepare(self, requests: Sequence[R], draft: Draft[R]) -> None:
        """Before these are given their tokens: see that there are blocks for all, or that some give
        way. It costs nothing where the shortage looks at one request at a time."""
        if not self._shortage.looks_ahead:
            return
        wants, budget = list[tuple[R, int]](), draft.budget
        for request in requests:
            tokens = min(draft.room(request, request.num_computed), budget)
            budget -= tokens
            if tokens:
                wants.append((request, request.num_computed + tokens))
        while (victim := self._shortage.excess(wants)) is not None:
            wants = [want for want in wants if want[0] is not victim]
            self._run_short(victim, draft)

    def reach(self, request: R, num_tokens: int, draft: Draft[R]) -> bool:
        """Get blocks for `num_tokens` tokens; others give way until there are enough.

        With steps in flight, blocks come back only when those settle: then this step does without.
        So does a request that would have to give way itself: steps in flight may end another, or
        move its own window on.
        """
        while not self._running.grow(request, num_tokens):
            victim = None if self._running.blocks_return else self._shortage.victim(request)
            if victim is None or (victim is request and self._running.in_flight):
                self._running.counters.pauses += 1
                return False
            self._run_short(victim, draft)
            if victim is request:
                return False
        return True

    def give_way(self, victim: R, draft: Draft[R]) -> None:
        """The request loses its place to another, and waits again."""
        self._running.stop(victim, draft, shows_kv=self._shortage.shows_kv)
        self._running.counters.preemptions += 1
        if not self._shortage.shows_kv:
            self._running.counters.retractions += 1
        if self._shortage.to_front:
            self._waiting.put_back(victim)
        else:
            self._waiting.add(victim)

    def _run_short(self, victim: R, draft: Draft[R]) -> None:
        """For want of blocks. The last one has nobody to wait for: what it does not find now it
        never will."""
        if len(self._running.requests) > 1:
            self.give_way(victim, draft)
            return
        self._running.stop(victim, draft, shows_kv=self._shortage.shows_kv)
        self._running.given_up.append(victim)
