"""Computed blocks are shown to others when their step has settled, as SGLang does at the end of a
chunk; and those who would find them wait for it."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.schedule.ports import Fence, Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)


class AtChunkEnd(Generic[R]):
    """What can be found is computed; no step has to be undone for it."""

    keeps_order = True

    def __init__(self, running: Running[R], fence: Fence, worth_waiting: int) -> None:
        self._running = running
        self._fence = fence
        self._worth_waiting = worth_waiting
        """A request waits for another to compute what both begin with, if it is so many tokens."""

    def postpones(self, request: R, num_matched: int) -> bool:
        """Whether a running request is about to compute more of this prompt than is cached.

        Requests that arrive together then compute it once. The wait ends with the other's chunk:
        what has settled and still is not found will not be.
        """
        end = num_matched + self._worth_waiting
        if not self._running.kv.finds_prefixes or end > request.reusable:
            return False
        new = request.tokens[num_matched:end]
        return any(
            other.num_settled < end <= other.num_prompt
            and other.cache_salt == request.cache_salt
            and other.tokens[num_matched:end] == new
            and other.tokens[:num_matched] == request.tokens[:num_matched]
            for other in self._running.requests
        )

    def planned(self, request: R, start: int, end: int) -> None:
        """Nothing is shown before it is there."""

    def undone(self, request: R, start: int, end: int) -> None:
        """Nothing was shown."""

    def settled(self, request: R, end: int, *, decode: bool) -> None:
        kv = self._running.kv
        request.num_settled = end
        published = kv.publish(request.lease, request.tokens, end, decode=decode)
        request.edits += published.edits
        if published.surplus:
            self._fence.defer(lambda: kv.free(published.surplus))
