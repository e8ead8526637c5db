"""First come, first served; who gave way while it ran is first of all."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.order.ranked import Ranked
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class Fcfs(Ranked[R]):
    """The place in the queue decides alone."""

    def __init__(self) -> None:
        super().__init__(lambda _: ())
