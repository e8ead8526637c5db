"""A queue for orders that look around: sorted anew whenever a step looks for candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from treadle.schedule.order.fcfs import Fcfs
from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class Sorting(Protocol[R]):
    """An order among requests, as it is now."""

    def sorted(self, waiting: Sequence[R], outlook: Outlook[R]) -> Sequence[R]:
        """All of `waiting`, which come in the order of their places; ties keep it."""
        ...


class Resorted(Generic[R]):
    """Beneath is the order of arrival, which ties fall back to; with more than `limit` requests it
    is all there is, since to sort would take longer than it saves."""

    def __init__(self, sorting: Sorting[R], limit: int | None = None) -> None:
        self._sorting = sorting
        self._limit = limit
        self._queue: Fcfs[R] = Fcfs()

    def add(self, request: R) -> None:
        self._queue.add(request)

    def put_back(self, request: R) -> None:
        self._queue.put_back(request)

    def remove(self, request: R) -> bool:
        return self._queue.remove(request)

    def candidates(self, outlook: Outlook[R]) -> Iterator[R]:
        if self._limit is not None and len(self._queue) > self._limit:
            yield from self._queue.candidates(outlook)
            return
        for request in self._sorting.sorted(list(self._queue.candidates(outlook)), outlook):
            if request in self._queue:
                yield request

    def __contains__(self, request: object) -> bool:
        return request in self._queue

    def __iter__(self) -> Iterator[R]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)
