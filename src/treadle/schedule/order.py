"""The waiting queue: in which order requests are admitted."""

from __future__ import annotations

from collections import deque
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
    """First come, first served; preempted requests go to the front."""

    def __init__(self) -> None:
        self._queue: deque[R] = deque()

    def add(self, request: R) -> None:
        self._queue.append(request)

    def put_back(self, request: R) -> None:
        self._queue.appendleft(request)

    def head(self) -> R | None:
        return self._queue[0] if self._queue else None

    def pop(self) -> R:
        return self._queue.popleft()

    def remove(self, request: R) -> bool:
        try:
            self._queue.remove(request)
        except ValueError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._queue)
