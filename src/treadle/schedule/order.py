"""The waiting queue: in which order requests are admitted."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from treadle.schedule.ports import KVMatch, Schedulable

R = TypeVar("R", bound=Schedulable)


class Outlook(Protocol[R]):
    """What an order may look at beside the waiting requests."""

    @property
    def running(self) -> Sequence[R]: ...
    def match(self, request: R) -> KVMatch:
        """What the cache has of a waiting request; looked up when asked."""
        ...


class WaitingOrder(Protocol[R]):
    """Requests that hold nothing yet; a preempted one returns by `put_back`."""

    def add(self, request: R) -> None: ...
    def put_back(self, request: R) -> None: ...
    def candidates(self, outlook: Outlook[R]) -> Iterator[R]:
        """In order of preference. Whoever asks may take the one given last, pass over it, or ask no
        more; those that were not taken keep their places."""
        ...

    def take(self, request: R) -> None: ...
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

    def candidates(self, outlook: Outlook[R]) -> Iterator[R]:  # noqa: ARG002
        passed, more = 0, True
        while more:
            more = False
            for request in itertools.islice(self._queue, passed, None):
                yield request
                if request not in self._queue:
                    more = True  # it was taken, and what walks over a changed queue is void
                    break
                passed += 1

    def take(self, request: R) -> None:
        del self._queue[request]

    def remove(self, request: R) -> bool:
        if request not in self._queue:
            return False
        del self._queue[request]
        return True

    def __len__(self) -> int:
        return len(self._queue)
