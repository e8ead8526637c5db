"""The waiting queue: in which order requests are admitted."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class WaitingOrder(Protocol[R]):
    """Requests that hold nothing yet. `head` is next; a preempted request returns by `put_back`."""

    def add(self, request: R) -> None: ...
    def put_back(self, request: R) -> None: ...
    def head(self) -> R | None: ...
    def pop(self) -> R: ...
    def remove(self, request: R) -> bool:
        """Whether it was there."""
        ...

    def __len__(self) -> int: ...


class Fcfs(Generic[R]):
    """First come, first served; preempted requests go to the front. Nothing here costs more the
    more requests wait."""

    def __init__(self) -> None:
        self._queue: OrderedDict[R, None] = OrderedDict()

    def add(self, request: R) -> None:
        self._queue[request] = None

    def put_back(self, request: R) -> None:
        self._queue[request] = None
        self._queue.move_to_end(request, last=False)

    def head(self) -> R | None:
        return next(iter(self._queue), None)

    def pop(self) -> R:
        return self._queue.popitem(last=False)[0]

    def remove(self, request: R) -> bool:
        if request not in self._queue:
            return False
        del self._queue[request]
        return True

    def __len__(self) -> int:
        return len(self._queue)
