"""A new random order in every step; the same seed gives the same orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class Shuffled(Generic[R]):
    """Draws once a step, and from nowhere else: answers draw from keys of their own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    def sorted(self, waiting: Sequence[R], outlook: Outlook[R]) -> Sequence[R]:  # noqa: ARG002
        shuffled = list(waiting)
        self._random.shuffle(shuffled)
        return shuffled
