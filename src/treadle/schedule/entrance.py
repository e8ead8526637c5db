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

    @property
    def rest(self) -> int:
        """What would have to be computed of its tokens."""
        return len(self.request.tokens) - self.match.num_tokens


class Entrance(Generic[R]):
    """Compositions `open` it with a step, ask `next` until it has nobody, `reserve` what those take
    whom they have tokens for, and `start` them."""

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
        self._walk: Iterator[R] | None = None
        """Over the waiting requests; begun when somebody is first asked for."""
        self._rows = 0
        """How many may start yet in this step."""
        self._reserved: list[R] = []
        """Who is to start in this step."""
        self._refused: Candidate[R] | None = None
        """For whom there was no KV."""
        self.is_full = False
        """Whether rows or KV ended the walk: both come back only when somebody leaves."""
        self._matches: Matches[R] = Matches(running.kv)

    @property
    def running(self) -> Sequence[R]:
        return self._running.requests

    @property
    def prefilled(self) -> int:
        return self._running.counters.prefilled

    def open(self, set_aside: int = 0) -> None:
        """A step begins to look at waiting requests."""
        self._admission.open(set_aside)
        self._walk = None
        self._refused = None
        self._rows = self._running.num_free_rows
        self._reserved = []
        self.is_full = False

    def next(self, most_tokens: int) -> Candidate[R] | None:
        """Who may start now, if anybody may, with so many tokens at most. One that may not keeps
        those behind it waiting, unless it waits for what another computes and the publication lets
        them pass."""
        self._walk = self._walk or self._waiting.candidates(self)
        if not self._rows:
            self.is_full = True
            return None
        for request in self._walk:
            # A preempted request's last token may still be in flight; it is needed as a literal.
            if request.num_pending:
                return None
            candidate = Candidate(request, self.match(request))
            tokens = min(candidate.rest, most_tokens)
            if not self._admission.admits(request, candidate.match, tokens):
                self.is_full = True
                self._refused = candidate
                return None
            if not self._publication.postpones(request, candidate.match.num_tokens, self._reserved):
                return candidate
            if self._publication.keeps_order:
                return None
        return None

    def kept_out(self) -> Candidate[R] | None:
        """The one who would be next if rows and KV did not end."""
        if self._refused is None and self._walk is not None:
            request = next(self._walk, None)
            if request is not None and not request.num_pending:
                return Candidate(request, self.match(request))
        return self._refused

    def reserve(self, candidate: Candidate[R], num_tokens: int) -> None:
        """The candidate is to start with `num_tokens`; those asked for later get what is left."""
        self._rows -= 1
        self._reserved.append(candidate.request)
        self._admission.charge(candidate.request, candidate.match, num_tokens)

    def start(self, request: R, num_tokens: int, draft: Draft[R]) -> None:
        """One for whom there is room starts, and computes `num_tokens` tokens in this step; fewer
        if by now more of it is cached."""
        match = self.match(request)
        tokens = min(num_tokens, draft.room(request, match.num_tokens))
        if tokens <= 0:
            return
        self._waiting.remove(request)
        self._running.start(request, match, draft)
        grown = self._running.grow(request, match.num_tokens + tokens)
        assert grown, "admission sees to it that there are blocks"
        draft.add(request, tokens)

    def match(self, request: R) -> KVMatch:
        """What the cache has of a request."""
        return self._matches.of(request)

    def path(self, request: R) -> Sequence[object]:
        return self._running.kv.path(self.match(request))
