"""vLLM's composition: one token budget, running requests first in order of admission, then waiting
ones; a prompt larger than what is left of the budget is computed in chunks."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.entrance import Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.policy import Chunking
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Composition

R = TypeVar("R", bound=Schedulable)


class Unified(Composition[R]):
    """Nobody starts in a step in which somebody had to give way."""

    def __init__(
        self, running: Running[R], growth: Growth[R], entrance: Entrance[R], chunking: Chunking
    ) -> None:
        self._running = running
        self._growth = growth
        self._entrance = entrance
        self._chunking = chunking

    def compose(self, draft: Draft[R]) -> None:
        if self._advance(draft):
            self._admit(draft)

    def _advance(self, draft: Draft[R]) -> bool:
        """Give running requests their tokens; False when blocks ran out on the way."""
        departures = self._running.departures
        self._growth.prepare(self._running.requests, draft)
        most = self._chunking.most_tokens
        for request in list(self._running.requests):
            wanted = draft.room(request, request.num_computed)
            if wanted == 0 or request.row is None:
                continue
            if most and wanted > most:
                wanted = most
            if not self._growth.reach(request, request.num_computed + wanted, draft):
                return False
            draft.add(request, wanted)
        return self._running.departures == departures

    def _admit(self, draft: Draft[R]) -> None:
        self._entrance.open()
        most = self._chunking.most_tokens or draft.budget
        while draft.budget and (candidate := self._entrance.next(min(most, draft.budget))):
            room = draft.room(candidate.request, candidate.match.num_tokens)
            if room == 0:
                return  # no prompt token more may be scored in this step
            wanted = min(room, most)
            if not self._chunking.on and wanted < candidate.rest and not draft.is_empty:
                return
            self._entrance.reserve(candidate, wanted)
            self._entrance.start(candidate.request, wanted, draft)
