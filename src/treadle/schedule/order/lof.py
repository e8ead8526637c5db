"""Longest output first: who may answer with most tokens, among those of equal priority."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.order.ranked import Key, Ranked
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class LongestOutputFirst(Ranked[R]):
    """What may be answered counts, not what is left of it; ties keep their places."""

    def __init__(self) -> None:
        super().__init__(_length)


def _length(request: Schedulable) -> Key:
    return request.priority, -request.max_tokens
