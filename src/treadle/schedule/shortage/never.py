"""Nobody gives way: admission has seen to it that there is enough up to the end."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.ports import Schedulable
from treadle.schedule.strategies import Shortage

R = TypeVar("R", bound=Schedulable)


class Never(Shortage[R]):
    """A request may miss a step while blocks come back from steps in flight, never more."""

    def victim(self, request: R) -> R | None:  # noqa: ARG002
        return None
