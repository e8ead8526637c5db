"""A queue for orders whose key never changes while a request waits: a heap."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)

Key = tuple[float | str, ...]

_SWEEP_FROM = 64


class _Entry(NamedTuple, Generic[R]):
    key: Key
    place: int
    """Ties are by place; no two are the same, so that requests are never compared."""
    request: R


class Ranked(Generic[R]):
    """Nothing costs more than the logarithm of how many wait, however far a walk goes per request.

    A request that left stays in the heap as a stale entry until it is met, or until stale ones are
    more than half.
    """

    def __init__(self, key: Callable[[R], Key]) -> None:
        self._key = key
        self._entries: dict[R, _Entry[R]] = {}
        self._heap: list[_Entry[R]] = []
        self._passed: list[_Entry[R]] = []
        """Offered in the last walk, and no longer in the heap."""
        self._first = 0
        self._last = 0

    def add(self, request: R) -> None:
        self._last += 1
        self._enter(request, self._last)

    def put_back(self, request: R) -> None:
        self._first -= 1
        self._enter(request, self._first)

    def remove(self, request: R) -> bool:
        return self._entries.pop(request, None) is not None

    def candidates(self, outlook: Outlook[R]) -> Iterator[R]:  # noqa: ARG002
        self._restore()
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                self._passed.append(entry)
                yield entry.request

    def __contains__(self, request: object) -> bool:
        return request in self._entries

    def __iter__(self) -> Iterator[R]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _enter(self, request: R, place: int) -> None:
        assert request not in self._entries, "a request waits once"
        entry = _Entry(self._key(request), place, request)
        self._entries[request] = entry
        if len(self._heap) > max(_SWEEP_FROM, 2 * len(self._entries)):
            self._heap = [each for each in self._heap if self._is_current(each)]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, entry)

    def _restore(self) -> None:
        for entry in self._passed:
            if self._is_current(entry):
                heapq.heappush(self._heap, entry)
        self._passed.clear()

    def _is_current(self, entry: _Entry[R]) -> bool:
        return self._entries.get(entry.request) is entry
