"""How much a chat template may do in one rendering: passes through loops, text made, time.

Operations that make much of little say beforehand how much; all others are bounded by what they
work on, and their number by the clock. Knows values, and nothing of jinja2 but its error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence, Sized

from jinja2.exceptions import SecurityError

MAX_STEPS = 1_000_000
"""Passes through loop bodies and macros."""

MAX_CHARS = 1 << 24
"""Characters in a rendered prompt, and in any text made on the way."""

MAX_MADE = 1 << 28
"""Characters in all texts made on the way."""

MAX_SECONDS = 2.0
"""Of one thread's work, so that a busy machine refuses nothing."""

_ITEM = 32
"""Characters that a number, or the place of an item in a list, counts for."""

_FORMATS = frozenset({"%", "format", "format_map", "strftime_now"})

_SPLITS = frozenset({"split", "rsplit", "splitlines"})
_PER_SPLIT_CHAR = 4

_SLOW = frozenset({"pprint", "striptags", "title", "urlize", "wordwrap"})
_PER_SLOW_CHAR = 32

_MAX_QUICK_CHARS = 1 << 16
_STEPS_PER_LOOK = 64
"""The clock costs more than a small step."""


class Budget:
    """What one rendering has left. Every method raises SecurityError where that is too little."""

    def __init__(self) -> None:
        self._steps = 0
        self._made = 0
        self._end = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise SecurityError(f"it loops more than {MAX_STEPS} times")
        if self._steps % _STEPS_PER_LOOK == 0:
            self._look_at_clock()

    def make(self, size: int, what: str) -> None:
        if size > MAX_CHARS:
            raise SecurityError(f"the result of '{what}' is too large")
        self._made += size
        if self._made > MAX_MADE:
            raise SecurityError(f"it makes more than {MAX_MADE} characters of text")
        if size > _MAX_QUICK_CHARS:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        if time.thread_time() > self._end:
            raise SecurityError(f"it takes longer than {MAX_SECONDS:g} s")


def result_size(name: str, value: object, arguments: Sequence[object]) -> int:
    """No less than what comes of `value` by the operation: padding to a width, or putting a text
    between others, multiplies."""
    if name in _FORMATS and isinstance(value, str):
        return _formatted_size(value, arguments)
    if name == "list":
        return _ITEM * len(value) if isinstance(value, Sized) else _ITEM
    if name == "replace" and isinstance(value, str):
        return _replaced_size(value, *map(str, arguments[:2]))
    size = weight(value) * (_PER_SLOW_CHAR if name in _SLOW else 1)
    if name in _SPLITS:
        return size * _PER_SPLIT_CHAR
    more = sum(weight(argument, numbers=True) for argument in arguments)
    if name == "sum" and not all(isinstance(argument, int | str) for argument in arguments):
        more = size  # adding lists one after the other copies the first ones again and again
    return size * (1 + more)


def _replaced_size(text: str, old: str = "", new: str = "") -> int:
    return len(text) + text.count(old) * len(new)


def _formatted_size(form: str, arguments: Sequence[object]) -> int:
    """A width stands in the format, or is an argument where the format asks for one."""
    asks = re.search(r"\*|:[^}]*\{", form) is not None
    widest = max((int(digits) for digits in re.findall(r"\d+", form)), default=0)
    widest += sum(weight(argument, numbers=asks) for argument in arguments)
    return len(form) + (form.count("%") + form.count("{")) * widest


def weight(value: object, *, numbers: bool = False) -> int:
    """Characters that a value comes to when it is written out, roughly. Looks no further where they
    are too many: a list of lists of the same list is small in memory alone."""
    total, left = 0, [value]
    while left and total <= MAX_CHARS:
        item = left.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, Mapping):
            total += _ITEM * len(item)
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            total += _ITEM * len(item)
            left += item
        elif isinstance(item, range):
            total += _ITEM * len(item)
        elif isinstance(item, int) and numbers:
            total += abs(item)
        else:
            total += _ITEM
    return total
