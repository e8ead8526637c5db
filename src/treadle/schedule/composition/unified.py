"""vLLM's composition: one token budget, running requests first in order of admission, then waiting
ones; a prompt larger than what is left of the budget is computed in chunks."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.entrance import Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)


class Unified(Generic[R]):
    """Nobody starts in a step in which somebody had to give way."""

    def __init__(self, running: Running[R], growth: Growth[R], entrance: Entrance[R]) -> None:
        self._running = running
        self._growth = growth
        self._entrance = entrance

    def compose(self, draft: Draft[R]) -> None:
        if self._advance(draft):
            self._admit(draft)

    def _advance(self, draft: Draft[R]) -> bool:
        """Give running requests their tokens; False when blocks ran out on the way."""
        preemptions = self._running.counters.preemptions
        for request in list(self._running.requests):
            wanted = draft.room(request, request.num_computed)
            if wanted == 0 or request.row is None:
                continue
            if not self._growth.reach(request, request.num_computed + wanted, draft):
                return False
            draft.add(request, wanted)
        return self._running.counters.preemptions == preemptions

    def _admit(self, draft: Draft[R]) -> None:
        self._entrance.open()
        while draft.budget and (candidate := self._entrance.next()):
            wanted = draft.room(candidate.request, candidate.match.num_tokens)
            if wanted == 0:
                return  # no prompt token more may be scored in this step
            self._entrance.admit(candidate, wanted, draft)
