"""How running requests give way to a more important one that is kept out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.admission.estimate import Estimate
from treadle.schedule.displacement import Displacement
from treadle.schedule.draft import Draft
from treadle.schedule.entrance import Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)


class MakingWay(Generic[R]):
    """What they give up comes back once no step in flight names it; the one they give way to
    starts with a later step, and until then nobody else gives way."""

    def __init__(
        self,
        running: Running[R],
        growth: Growth[R],
        entrance: Entrance[R],
        estimate: Estimate[R],
        displacement: Displacement[R],
    ) -> None:
        self._running = running
        self._growth = growth
        self._entrance = entrance
        self._estimate = estimate
        self._displacement = displacement

    def of(self, requests: Sequence[R], draft: Draft[R]) -> bool:
        """Whether some of `requests`, which run, gave way."""
        if not self._entrance.is_full or self._running.blocks_return:
            return False
        candidate = self._entrance.kept_out()
        if candidate is None:
            return False
        missing = self._estimate.missing(candidate.request, candidate.match)
        victims = self._displacement.victims(
            candidate.request, requests, missing, self._estimate.frees
        )
        for victim in victims:
            self._growth.give_way(victim, draft)
            self._running.counters.displacements += 1
        return bool(victims)
