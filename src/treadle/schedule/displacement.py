"""Running requests give way to a waiting one that is more important by far, as in SGLang.

Only where there is no row or no KV for it, and only if what they free is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from treadle.schedule.order.priority import importance
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class Displacement(Generic[R]):
    """Nobody gives way to one who is not more important by more than the threshold, so that two
    requests never displace each other in turn."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    def victims(
        self, by: R, running: Iterable[R], missing: float, frees: Callable[[R], float]
    ) -> list[R]:
        """As few as free `missing` tokens, and one at least: the least important first, the newest
        among equals. None where all of them would not be enough."""
        chosen: list[R] = []
        for request in sorted(running, key=importance, reverse=True):
            if request.priority - by.priority <= self._threshold:
                break
            chosen.append(request)
            missing -= frees(request)
            if missing <= 0:
                return chosen
        return []
