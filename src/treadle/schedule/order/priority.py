"""The most important first, as vLLM orders: ties by arrival, then by id."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.order.ranked import Key, Ranked
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class Priority(Ranked[R]):
    """Who gave way goes back to where it stood."""

    def __init__(self) -> None:
        super().__init__(importance)


def importance(request: Schedulable) -> Key:
    """Less is more important."""
    return request.priority, request.arrived, request.request_id
