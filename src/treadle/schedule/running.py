"""The requests that run: their rows, their leases, and how these are given back."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.schedule.counters import Counters
from treadle.schedule.draft import Draft
from treadle.schedule.ports import KV, Fence, KVMatch, Schedulable

R = TypeVar("R", bound=Schedulable)


class Running(Generic[R]):
    """A request here has a row and a lease; `requests` is in order of admission.

    Rows and leases are given back through the fence, since launched steps may still name them.
    """

    def __init__(self, num_rows: int, kv: KV, fence: Fence) -> None:
        self.kv = kv
        self.requests: list[R] = []
        self.counters = Counters()
        self._fence = fence
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._leaves: list[int] = []
        self.departures = 0
        """How often a request has left, to end or to wait."""
        self.given_up: list[R] = []
        """Requests that nothing can be done for."""

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def in_flight(self) -> bool:
        """Whether launched steps may still end a request, or move its window on."""
        return self._fence.in_flight > 0

    @property
    def blocks_return(self) -> bool:
        """Whether what was given back is held until steps in flight settle."""
        return self._fence.num_deferred > 0

    def start(self, request: R, match: KVMatch, draft: Draft[R]) -> None:
        """A waiting request takes a row and holds what the cache has of it."""
        self.requests.append(request)
        request.lease, edits = self.kv.lease(match, request.cache_salt, -request.priority)
        request.num_computed = request.num_settled = match.num_tokens
        if request.cached_tokens is None:
            request.cached_tokens = match.num_tokens
            self.counters.prefix_queries += request.num_prompt
            self.counters.prefix_hits += match.num_tokens
        draft.join(request, self._free_rows.pop(), edits)

    def grow(self, request: R, num_tokens: int) -> bool:
        """Blocks for `num_tokens` tokens; False, and nothing changed, if there are not enough."""
        edits = self.kv.grow(request.lease, num_tokens)
        if edits is None:
            return False
        request.edits += edits
        return True

    def stop(self, request: R, draft: Draft[R], *, shows_kv: bool = True) -> None:
        """The request gives way: it loses its blocks, and its part in this step, but no token.
        Others may find what it had computed, or that is lost too."""
        joined = draft.drop(request)
        if not shows_kv:
            request.num_computed = 0
        self._leave(request, joined)
        request.num_computed = 0

    def leave(self, request: R) -> None:
        """The request computes nothing more, or not before it starts again."""
        self._leave(request, joined=False)

    def _leave(self, request: R, joined: bool) -> None:
        """One that has joined in the step that is being composed has a row of which the runner does
        not know."""
        self.requests.remove(request)
        self.departures += 1
        row, lease, computed = request.row, request.lease, request.num_computed
        assert row is not None
        request.row = request.lease = None
        if not joined:
            self._leaves.append(row)

        def release() -> None:
            self.kv.release(lease, request.tokens, computed)
            self._free_rows.append(row)

        self._fence.defer(release)

    def take_leaves(self) -> list[int]:
        """Rows left since the last step was composed."""
        leaves, self._leaves = self._leaves, []
        return leaves
