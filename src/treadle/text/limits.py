"""How much a chat template may do in one rendering: passes through loops, text made, time.

Bounds what a template holds when it is made: an operation on it, even one that no clock can stop,
is then bounded too. Knows values, and nothing of jinja2 but its error.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError

MAX_STEPS = 1_000_000
"""Passes through loop bodies, macros and the items of filters."""

MAX_CHARS = 1 << 25
"""Characters in a rendered prompt, and in any text or nested list made on the way."""

MAX_MADE = 1 << 28
"""Characters in all texts made on the way."""

MAX_SECONDS = 2.0
"""Of one thread's work, so that a busy machine refuses nothing."""

MAX_DEPTH = 200
"""Levels of lists in lists: Python walks them by recursion in C, here and there unchecked."""

MAX_BITS = 512
"""Of whole numbers that a template computes."""

MAX_KEYS = 4096
"""Of a dictionary made at once: keys chosen to collide take time by the square of their number."""

ITEM = 32
"""Characters that a number, or the place of an item in a list, counts for."""

_MAX_QUICK_CHARS = 1 << 16


class Budget:
    """What one rendering has left. Every method raises SecurityError where that is too little."""

    def __init__(self) -> None:
        self._steps = 0
        self._made = 0
        self._end = time.thread_time() + MAX_SECONDS
        self._next_look = time.perf_counter() + MAX_SECONDS

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise SecurityError(f"it loops more than {MAX_STEPS} times")
        self.look()

    def make(self, size: int, what: str) -> None:
        if size > MAX_CHARS:
            raise SecurityError(f"the result of '{what}' is too large")
        self._made += size
        if self._made > MAX_MADE:
            raise SecurityError(f"it makes more than {MAX_MADE} characters of text")
        if size > _MAX_QUICK_CHARS:
            self.look()

    def hold(self, value: object, what: str) -> None:
        """A new list, tuple or dictionary, of items that may be shared."""
        num_items, num_chars = unfolded(value)
        if num_chars > MAX_CHARS:
            raise SecurityError(f"the result of '{what}' is too large")
        self.make(num_items * ITEM, what)

    def draw(self, items: Iterable[object]) -> list[object]:
        """All items of a generator, each a step."""
        drawn = []
        for item in items:
            self.step()
            drawn.append(item)
        return drawn

    def look(self) -> None:
        """At the clock: at that of the wall, which costs little, and at the thread's own when the
        time could be up."""
        now = time.perf_counter()
        if now > self._next_look:
            left = self._end - time.thread_time()
            if left < 0:
                raise SecurityError(f"it takes longer than {MAX_SECONDS:g} s")
            self._next_look = now + left


def unfolded(value: object, *, numbers: bool = False) -> tuple[int, int]:
    """Items and characters that a value comes to when it is written out, roughly. Looks no further
    where they are too many or too deep: a list of lists of the same list is small in memory alone.
    """
    num_items, num_chars, depth = 0, 0, 0
    level: list[Any] = [value]
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str | bytes):
                num_chars += len(item)
            elif isinstance(item, Mapping):
                num_items += len(item)
                below += item.keys()
                below += item.values()
            elif isinstance(
                item, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView
            ):
                num_items += len(item)
                below += item
            elif isinstance(item, range):
                num_items += len(item)
            elif isinstance(item, int) and numbers:
                num_chars += abs(item)
            else:
                num_chars += ITEM
            if num_chars + num_items * ITEM > MAX_CHARS:
                return num_items, MAX_CHARS + 1
        level, depth = below, depth + 1
        if depth > MAX_DEPTH:
            return num_items, MAX_CHARS + 1
    return num_items, num_chars + num_items * ITEM


def weight(value: object, *, numbers: bool = False) -> int:
    return unfolded(value, numbers=numbers)[1]
