"""What a request's priority does here: nothing, a refusal, or a place among the others."""

from __future__ import annotations

from typing import NamedTuple

from treadle.config.resolve import OrderValues
from treadle.config.settings import PriorityRule
from treadle.errors import InvalidRequest, OverloadError

WORST = 2**63
"""Beyond every priority that can be asked for."""


class Priorities(NamedTuple):
    """Within the engine less is always more important."""

    rule: PriorityRule = "refuse"
    low_first: bool = True
    missing: int = 0

    @classmethod
    def of(cls, values: OrderValues) -> Priorities:
        missing = WORST if values.missing_priority == "worst" else 0
        return cls(values.priorities, values.low_priority_values_first, missing)

    def rank(self, asked: int | None) -> int:
        """Raises for a priority that is refused. Where none counts, all are alike."""
        if self.rule == "count":
            if asked is None:
                return self.missing
            return asked if self.low_first else -asked
        if asked and self.rule == "refuse":
            raise InvalidRequest(
                f"priority is {asked}, and the waiting order does not go by priorities here"
                " (--order priority does); it must be 0 or left out",
                param="priority",
            )
        if asked is not None and self.rule == "abort":
            raise OverloadError(
                f"priority is {asked}; priorities are disabled on this server: send the request"
                " without one",
                param="priority",
            )
        return 0


REFUSED = Priorities()
