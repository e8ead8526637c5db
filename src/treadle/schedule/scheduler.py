"""The scheduler: requests wait, run in rows, and leave; each step computes some of their tokens.

How, is settled by strategies, one on each axis (see `strategies`); here they meet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from treadle.schedule.counters import Counters
from treadle.schedule.draft import Draft, Flight
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.ports import Fence, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission, Composition, Publication
from treadle.wire.plan import RowWork

R = TypeVar("R", bound=Schedulable)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_scores: int
    """Prompt tokens whose log-probabilities are asked for: each takes a row of logits."""


@dataclasses.dataclass(frozen=True)
class Strategies(Generic[R]):
    """Those that the scheduler itself has to do with; the others are asked by these."""

    composition: Composition[R]
    admission: Admission[R]
    publication: Publication[R]


class Scheduler(Generic[R]):
    """A request waits or runs, or has left."""

    def __init__(
        self,
        limits: Limits,
        waiting: WaitingOrder[R],
        running: Running[R],
        strategies: Strategies[R],
        fence: Fence,
    ) -> None:
        self.limits = limits
        self._waiting = waiting
        self._running = running
        self._strategies = strategies
        self._fence = fence

    @property
    def counters(self) -> Counters:
        return self._running.counters

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Collection[R]:
        return self._waiting

    @property
    def free_rows(self) -> int:
        return self.limits.max_num_seqs - len(self.running)

    @property
    def running(self) -> Sequence[R]:
        return self._running.requests

    def add(self, request: R) -> None:
        request.prefilled_before = self.counters.prefilled
        if not self._running.requests and not self.num_waiting:
            self._strategies.admission.rest()
        self._waiting.add(request)

    def finish(self, request: R) -> None:
        """The request computes nothing more, whether it runs or waits."""
        request.finished = True
        if request.row is None:
            self._waiting.remove(request)
        else:
            self._running.leave(request)

    def plan(self) -> Flight[R] | None:
        """The next step, or None when nothing can run now."""
        budget = self.limits.max_num_batched_tokens
        draft: Draft[R] = Draft(budget, self.limits.max_scores, self._strategies.publication)
        self._strategies.composition.compose(draft)
        if draft.is_empty:
            return None
        self.counters.computed_tokens += budget - draft.budget
        self.counters.prefilled += draft.prefilled
        self.counters.chunks += draft.chunks
        leaves, copies = self._running.take_leaves(), self._running.kv.take_copies()
        return draft.finish(self._fence.next_step, leaves, copies)

    def take_given_up(self) -> list[R]:
        """Requests that were running and for which there will never be enough KV; they are the
        caller's to end."""
        given_up, self._running.given_up = self._running.given_up, []
        return given_up

    def settle(self, request: R, work: RowWork, *, failed: bool = False) -> None:
        """The work's tokens have KV now: others may find their blocks, unless the row failed, as
        its KV may be what was wrong."""
        if request.row != work.row or request.finished:
            return
        if failed:
            request.num_computed = work.start
            self._strategies.publication.failed(request, work.start)
            return
        end = work.start + work.num_tokens
        self._strategies.publication.settled(request, end, decode=work.tokens is None)
