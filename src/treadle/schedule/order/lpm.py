"""Longest prefix match: those first of which the cache has most tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.order.in_batch import InBatchCheck
from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class LongestPrefixMatch(Generic[R]):
    """Whose prefix another of the same round computes comes last."""

    def __init__(self, check: InBatchCheck) -> None:
        self._check = check

    def sorted(self, waiting: Sequence[R], outlook: Outlook[R]) -> Sequence[R]:
        behind = self._check.deferred(waiting, outlook)
        return sorted(
            waiting,
            key=lambda request: (request in behind, -outlook.match(request).num_tokens),
        )
