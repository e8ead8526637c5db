"""Highest response ratio next: who has waited longest for the little that it needs.

Waiting is measured in work, in the prompt tokens that the engine has computed meanwhile, so that
the order does not depend on a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.order.in_batch import InBatchCheck
from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class HighestResponseRatioNext(Generic[R]):
    """Nobody waits for ever: every ratio grows. Whose prefix another of the same round computes
    comes last; ties are by id."""

    def __init__(self, check: InBatchCheck) -> None:
        self._check = check

    def sorted(self, waiting: Sequence[R], outlook: Outlook[R]) -> Sequence[R]:
        behind = self._check.deferred(waiting, outlook)

        def key(request: R) -> tuple[bool, float, str]:
            # Never 0: the last token is computed, whatever the cache has.
            uncached = len(request.tokens) - outlook.match(request).num_tokens
            ratio = (outlook.prefilled - request.prefilled_before) / uncached
            return request in behind, -ratio, request.request_id

        return sorted(waiting, key=key)
