"""SGLang's retraction: before tokens are handed out, some go until the rest finds its blocks: those
that have generated least, or the least important. They leave nothing in the cache and queue up
anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from treadle.schedule.admission.ratio import NewTokenRatio
from treadle.schedule.order.ranked import Key
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Shortage

R = TypeVar("R", bound=Schedulable)


Rank = Callable[[Schedulable], Key]
"""Less goes first."""


def longest_kept(request: Schedulable) -> Key:
    """Fewest generated first, among equals the longest prompt."""
    return request.generated, -request.num_prompt


def important_kept(request: Schedulable) -> Key:
    """The least important first, among equals the one that arrived last."""
    return -request.priority, -request.arrived


class Retraction(Shortage[R]):
    """The request that ranks last stays, so that one request always ends."""

    looks_ahead = True
    shows_kv = False
    to_front = False

    def __init__(self, running: Running[R], ratio: NewTokenRatio, rank: Rank) -> None:
        self._running = running
        self._rank = rank
        self._ratio = ratio
        self._retracts = False

    def excess(self, wants: Sequence[tuple[R, int]]) -> R | None:
        if self._fits(wants):
            self._note([request for request, _ in wants])
            return None
        if self._running.blocks_return:
            return None  # those that were retracted have not given their blocks back yet
        if len(self._running.requests) == 1 and self._running.in_flight:
            return None  # its own window may move on
        self._retracts = True
        return min(self._running.requests, key=self._rank)

    def victim(self, request: R) -> R | None:  # noqa: ARG002
        return None  # `excess` has seen to it; who finds none waits for those that end

    def _note(self, stay: Sequence[R]) -> None:
        if not stay:
            return
        if self._retracts:
            self._ratio.estimate(stay)
        else:
            self._ratio.decay()
        self._retracts = False

    def _fits(self, wants: Sequence[tuple[R, int]]) -> bool:
        kv = self._running.kv
        left = list(kv.available)
        for request, num_tokens in wants:
            missing = kv.growth(request.lease, num_tokens)
            left = [have - more for have, more in zip(left, missing, strict=True)]
        return min(left) >= 0
