"""The way from waiting to running: who is next, and what keeps it waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.matches import Matches
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission, Publication

R = TypeVar("R", bound=Schedulable)


class Candidate(NamedTuple, Generic[R]):
    """A waiting request that may start, and what the cache has of it."""

    request: R
    match: KVMatch


class Entrance(Generic[R]):
    """Compositions `open` it with a step, ask `next` until it has nobody, and `admit` those whom
    they have tokens for."""

    def __init__(
        self,
        waiting: WaitingOrder[R],
        running: Running[R],
        admission: Admission[R],
        publication: Publication[R],
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._admission = admission
        self._publication = publication
        self._walk: Iterator[R] = iter(())
        self._matches: Matches[R] = Matches(running.kv)

    @property
    def running(self) -> Sequence[R]:
        return self._running.requests

    @property
    def prefilled(self) -> int:
        return self._running.counters.prefilled

    def open(self) -> None:
        """A step begins to look at waiting requests."""
        self._admission.open()
        self._walk = self._waiting.candidates(self)

    def next(self) -> Candidate[R] | None:
        """Who may start now, if anybody may. One that may not keeps those behind it waiting, unless
        it waits for what another computes and the publication lets them pass."""
        if not self._running.has_row:
            return None
        for request in self._walk:
            # A preempted request's last token may still be in flight; it is needed as a literal.
            if request.num_pending:
                return None
            match = self.match(request)
            if not self._admission.admits(request, match):
                return None
            if not self._publication.postpones(request, match.num_tokens):
                return Candidate(request, match)
            if self._publication.keeps_order:
                return None
        return None

    def admit(self, candidate: Candidate[R], num_tokens: int, draft: Draft[R]) -> None:
        """The candidate starts, and computes `num_tokens` tokens in this step."""
        request, match = candidate
        self._waiting.remove(request)
        self._running.start(request, match, draft)
        grown = self._running.grow(request, match.num_tokens + num_tokens)
        assert grown, "admission sees to it that there are blocks"
        draft.add(request, num_tokens)
        self._admission.charge(request)

    def match(self, request: R) -> KVMatch:
        """What the cache has of a request."""
        return self._matches.of(request)

    def path(self, request: R) -> Sequence[object]:
        return self._running.kv.path(self.match(request))
