"""The scheduler: requests wait, run in rows, and leave; each step computes some of their tokens.

Composition is vLLM's: one token budget, running requests first in order of admission, then waiting
ones as long as a whole prompt finds blocks; a prompt larger than the budget is computed in chunks.
When a running request finds no block, the newest one is preempted: it loses its blocks, keeps its
tokens, and is computed again later, as far as the prefix cache does not still know it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.draft import Draft, Flight
from treadle.schedule.order import WaitingOrder
from treadle.schedule.ports import KV, Fence, KVMatch, Schedulable
from treadle.wire.plan import RowWork

R = TypeVar("R", bound=Schedulable)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_scores: int
    """Prompt tokens whose log-probabilities are asked for: each takes a row of logits."""
    worth_waiting: int
    """A request waits for another to compute what both begin with, if it is so many tokens."""


@dataclasses.dataclass
class Counters:
    """What happened since the start; only ever grows."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    computed_tokens: int = 0


class Scheduler(Generic[R]):
    """A request is in `waiting` or in `running`, or has left. Running ones have a row and a lease.

    Rows and leases are given back through the fence, since launched steps may still name them.
    """

    def __init__(self, limits: Limits, waiting: WaitingOrder[R], kv: KV, fence: Fence) -> None:
        self.limits = limits
        self.counters = Counters()
        self._waiting = waiting
        self._running: list[R] = []
        self._kv = kv
        self._fence = fence
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        self._leaves: list[int] = []
        self._matched: tuple[R, int, int, KVMatch] | None = None
        """The request last looked for in the cache: its length, the cache's version, the match."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> Sequence[R]:
        return self._running

    def add(self, request: R) -> None:
        self._waiting.add(request)

    def finish(self, request: R) -> None:
        """The request computes nothing more, whether it runs or waits."""
        request.finished = True
        if request.row is None:
            self._waiting.remove(request)
        else:
            self._running.remove(request)
            self._give_back(request)

    def plan(self) -> Flight[R] | None:
        """The next step, or None when nothing can run now."""
        draft: Draft[R] = Draft(self.limits.max_num_batched_tokens, self.limits.max_scores)
        if self._advance_running(draft):
            self._admit_waiting(draft)
        flight = draft.finish(self._fence.next_step, self._leaves)
        if flight is not None:
            self._leaves = []
            self.counters.computed_tokens += self.limits.max_num_batched_tokens - draft.budget
        return flight

    def settle(self, request: R, work: RowWork) -> None:
        """The work's tokens have KV now: show their blocks to others."""
        if request.row != work.row or request.finished:
            return
        end = request.num_settled = work.start + work.num_tokens
        published = self._kv.publish(request.lease, request.tokens, end, decode=work.tokens is None)
        request.edits += published.edits
        if published.surplus:
            self._fence.defer(lambda: self._kv.free(published.surplus))

    def _advance_running(self, draft: Draft[R]) -> bool:
        """Give running requests their tokens; False when blocks ran out on the way."""
        preemptions = self.counters.preemptions
        for request in list(self._running):
            wanted = draft.room(request, request.num_computed)
            if wanted == 0 or request.row is None:
                continue
            if not self._grow(request, request.num_computed + wanted):
                return False
            draft.add(request, wanted)
        return self.counters.preemptions == preemptions

    def _grow(self, request: R, num_tokens: int) -> bool:
        """Get blocks for `num_tokens` tokens, preempting newer requests until there are enough.

        With steps in flight, blocks come back only when those settle: then this step does without.
        So does a request with nobody newer to preempt: steps in flight may end another request, or
        move its own window on.
        """
        while (edits := self._kv.grow(request.lease, num_tokens)) is None:
            victim = self._running[-1]
            if self._fence.num_deferred or (victim is request and self._fence.in_flight):
                return False
            self._preempt(victim)
            if victim is request:
                return False
        request.edits += edits
        return True

    def _preempt(self, victim: R) -> None:
        self.counters.preemptions += 1
        self._running.remove(victim)
        self._give_back(victim)
        victim.num_computed = 0
        self._waiting.put_back(victim)

    def _give_back(self, request: R) -> None:
        row, lease, computed = request.row, request.lease, request.num_computed
        assert row is not None
        request.row = request.lease = None
        self._leaves.append(row)

        def release() -> None:
            self._kv.release(lease, request.tokens, computed)
            self._free_rows.append(row)

        self._fence.defer(release)

    def _admit_waiting(self, draft: Draft[R]) -> None:
        while draft.budget and self._free_rows:
            request = self._waiting.head()
            # A preempted request's last token may still be in flight; it is needed as a literal.
            if request is None or request.num_pending:
                return
            match = self._match(request)
            if not self._kv.fits(match, len(request.tokens)):
                return
            if draft.room(request, match.num_tokens) == 0:
                return  # no prompt token more may be scored in this step
            if self._comes_soon(request, match.num_tokens):
                return
            self._waiting.pop()
            self._matched = None
            self._running.append(request)
            self._start(request, match, draft)

    def _match(self, request: R) -> KVMatch:
        """What the cache has of a request. One that cannot start is asked for with every step; it
        is looked for again only once the cache has changed."""
        length, version = len(request.tokens), self._kv.version
        if self._matched is None or self._matched[:3] != (request, length, version):
            match = self._kv.match(request.tokens[: _reusable(request)], request.cache_salt)
            self._matched = request, length, version, match
        return self._matched[3]

    def _comes_soon(self, request: R, num_matched: int) -> bool:
        """Whether a running request is about to compute more of this prompt than is cached.

        Requests that arrive together then compute it once. The wait ends with the other's chunk:
        what has settled and still is not found will not be.
        """
        end = num_matched + self.limits.worth_waiting
        if not self._kv.finds_prefixes or end > _reusable(request):
            return False
        new = request.tokens[num_matched:end]
        return any(
            other.num_settled < end <= other.num_prompt
            and other.cache_salt == request.cache_salt
            and other.tokens[num_matched:end] == new
            and other.tokens[:num_matched] == request.tokens[:num_matched]
            for other in self._running
        )

    def _start(self, request: R, match: KVMatch, draft: Draft[R]) -> None:
        request.lease, edits = self._kv.lease(match, request.cache_salt)
        request.num_computed = request.num_settled = match.num_tokens
        if request.cached_tokens is None:
            request.cached_tokens = match.num_tokens
            self.counters.prefix_queries += request.num_prompt
            self.counters.prefix_hits += match.num_tokens
        draft.join(request, self._free_rows.pop(), edits)
        wanted = draft.room(request, request.num_computed)
        grown = self._grow(request, request.num_computed + wanted)
        assert grown, "the whole prompt fits"
        draft.add(request, wanted)


def _reusable(request: Schedulable) -> int:
    """How many leading tokens may take their KV from the cache: not the last, whose logits are
    wanted, nor the one whose logits score a prompt token."""
    if request.next_score < request.num_prompt:
        return request.next_score - 1
    return len(request.tokens) - 1
