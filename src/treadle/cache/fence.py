"""The lifetime rule: what a launched step names is not reused before that step has settled.

The fence knows how many steps were launched and settled. Whoever gives something back that a step
in flight may still read or write (blocks, rows) hands the giving-back to `defer`; it runs once
every step launched until then has settled, at once if nothing is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Fence:
    """Steps are numbered from 1, launched and settled in order."""

    def __init__(self) -> None:
        self._launched = 0
        self._settled = 0
        self._deferred: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def next_step(self) -> int:
        return self._launched + 1

    @property
    def in_flight(self) -> int:
        return self._launched - self._settled

    @property
    def num_deferred(self) -> int:
        return len(self._deferred)

    def launch(self, step: int) -> None:
        assert step == self._launched + 1, f"step {step} launched after {self._launched}"
        self._launched = step

    def settle(self, step: int) -> None:
        assert step == self._settled + 1 <= self._launched, f"step {step} settled out of order"
        self._settled = step
        while self._deferred and self._deferred[0][0] <= step:
            self._deferred.popleft()[1]()

    def defer(self, action: Callable[[], None]) -> None:
        if self.in_flight == 0:
            action()
        else:
            self._deferred.append((self._launched, action))
