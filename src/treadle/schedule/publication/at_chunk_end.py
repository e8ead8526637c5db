"""Computed blocks are shown to others when their step has settled, as SGLang does at the end of a
chunk; those who would find them soon may wait for it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.ports import Fence, Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)

MOST_PASSED = 32
"""How many postponed requests are passed in a step: each is looked for in the cache again."""


@dataclasses.dataclass(frozen=True)
class Wait:
    """When a request waits for what a running one is about to compute."""

    num_tokens: int
    """It would find so many more; 0: it never waits."""
    lets_pass: bool = False
    """Whether those behind it may start meanwhile. TensorRT-LLM postpones that way, for a block."""


class AtChunkEnd(Generic[R]):
    """What can be found is computed; no step has to be undone for it."""

    def __init__(self, running: Running[R], fence: Fence, wait: Wait) -> None:
        self._running = running
        self._fence = fence
        self._wait = wait
        self._step = 0
        self._passed = 0
        """Postponed in the step that is being composed."""

    @property
    def keeps_order(self) -> bool:
        return not self._wait.lets_pass or self._passed >= MOST_PASSED

    def postpones(self, request: R, num_matched: int, starting: Sequence[R]) -> bool:
        """Whether another request is about to compute more of this prompt than is cached.

        Requests that arrive together then compute it once. The wait ends with the other's chunk:
        what has settled and still is not found will not be.
        """
        end = num_matched + self._wait.num_tokens
        if end == num_matched or not self._running.kv.finds_prefixes or end > request.reusable:
            return False
        new = request.tokens[num_matched:end]
        comes = any(
            other.num_settled < end <= other.num_prompt
            and other.cache_salt == request.cache_salt
            and other.tokens[num_matched:end] == new
            and other.tokens[:num_matched] == request.tokens[:num_matched]
            for other in itertools.chain(self._running.requests, starting)
        )
        if comes:
            self._note()
        return comes

    def _note(self) -> None:
        if self._step != self._fence.next_step:
            self._step, self._passed = self._fence.next_step, 0
        self._passed += 1
        self._running.counters.postponements += 1

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

    def failed(self, request: R, start: int) -> None:
        """Nothing was shown."""
