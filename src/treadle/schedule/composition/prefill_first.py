"""SGLang's composition: a step computes prompts, or it decodes; prompts go first.

A step of prompts goes on with the one that is not whole yet, then takes waiting ones in turn. The
first that does not fit its tokens is cut and ends it, so there is one at a time. On wish decodes of
running requests join it.
"""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.entrance import Candidate, Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.making_way import MakingWay
from treadle.schedule.policy import Chunking, Policy, PrefillFirst
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission, Composition

R = TypeVar("R", bound=Schedulable)


class Room:
    """What a step of prompts may still take."""

    def __init__(self, params: PrefillFirst, chunking: Chunking, page: int, set_aside: int) -> None:
        self._page = page
        self._whole = not chunking.on
        self.prompts = params.prefill_tokens - set_aside
        self.chunk = max(params.chunk_tokens, page) - set_aside

    @property
    def is_left(self) -> bool:
        return self.prompts > 0 and (self._whole or self.chunk > 0)

    def take(self, num_tokens: int) -> None:
        pages = -(-num_tokens // self._page) * self._page
        self.prompts -= pages
        self.chunk -= pages

    def goes_on(self, wanted: int) -> int:
        """How much of a prompt that is under way is computed now."""
        return wanted if self._whole else min(wanted, max(self.chunk, 0))

    def of(self, rest: int, start: int, *, first: bool) -> int:
        """How much of a waiting prompt's `rest`, behind `start` cached tokens, is computed now; 0
        if it has to wait. The first is taken whatever it is, as long as a chunk of it ends a
        page."""
        pages = -(-rest // self._page) * self._page
        if self._whole:
            return rest if first or pages < self.prompts else 0
        if pages <= self.chunk:
            return rest
        end = start + self.chunk
        return max(end - end % self._page - start, 0)


class PrefillBeforeDecode(Composition[R]):
    """While there is no KV or no row for another, none is asked for until somebody leaves."""

    def __init__(
        self,
        running: Running[R],
        growth: Growth[R],
        entrance: Entrance[R],
        admission: Admission[R],
        policy: Policy,
        making_way: MakingWay[R] | None = None,
    ) -> None:
        self._running = running
        self._growth = growth
        self._entrance = entrance
        self._admission = admission
        self._params = policy.prefill_first
        self._chunking = policy.chunking
        self._making_way = making_way
        self._full_since = -1
        """Departures when the batch was last found full."""

    def compose(self, draft: Draft[R]) -> None:
        unfinished, decodes = list[R](), list[R]()
        for request in self._running.requests:
            if draft.room(request, request.num_computed):
                (unfinished if draft.behind(request) else decodes).append(request)
        joining = len(decodes) if self._params.mixed else 0
        room = Room(self._params, self._chunking, self._running.kv.alignment, joining)
        self._entrance.open(joining)
        if self._go_on(unfinished, room, draft) and (self._making_way or not self._is_full):
            self._take(room, joining, draft)
            if self._making_way and self._making_way.of(decodes, draft):
                decodes = [request for request in decodes if request.row is not None]
        if draft.is_empty:
            self._growth.prepare(decodes, draft)
        if draft.is_empty or self._params.mixed:
            self._decode(decodes, draft)
        unfinished = [request for request in unfinished if request.row is not None]
        if draft.is_empty and unfinished:
            self._insist(unfinished[0], room, draft)

    def _go_on(self, unfinished: list[R], room: Room, draft: Draft[R]) -> bool:
        """Whether there were blocks; if not the decodes have this step, and may free some."""
        for request in unfinished:
            wanted = room.goes_on(draft.room(request, request.num_computed))
            wanted = min(wanted, self._admission.goes_on(request, wanted))
            if wanted == 0:
                continue
            if not self._running.grow(request, request.num_computed + wanted):
                return False
            draft.add(request, wanted)
            room.take(wanted)
            self._admission.went_on(request, wanted)
        return True

    def _insist(self, request: R, room: Room, draft: Draft[R]) -> None:
        """Nobody decodes who could free blocks: others give way."""
        self._growth.prepare([request], draft)
        wanted = room.goes_on(draft.room(request, request.num_computed))
        if request.row is None or wanted == 0:
            return
        if self._growth.reach(request, request.num_computed + wanted, draft):
            draft.add(request, wanted)

    def _take(self, room: Room, joining: int, draft: Draft[R]) -> None:
        while room.is_left and (candidate := self._entrance.next(draft.budget - joining)):
            wanted = self._cut(candidate, room, draft.budget - joining, draft)
            if wanted <= 0:
                return
            self._entrance.reserve(candidate, wanted)
            self._entrance.start(candidate.request, wanted, draft)
            room.take(wanted)
            if wanted < candidate.rest:
                return
        if self._entrance.is_full and not self._running.blocks_return:
            self._full_since = self._running.departures

    def _cut(self, candidate: Candidate[R], room: Room, budget: int, draft: Draft[R]) -> int:
        matched = candidate.match.num_tokens
        wanted = room.of(candidate.rest, matched, first=draft.is_empty)
        whole = min(wanted, budget, draft.room(candidate.request, matched))
        return whole if self._chunking.on or whole == wanted or draft.is_empty else 0

    @property
    def _is_full(self) -> bool:
        return bool(self._running.requests) and self._full_since == self._running.departures

    def _decode(self, decodes: list[R], draft: Draft[R]) -> None:
        """Beside prompts nobody gives way: one that started in this step may have found what
        another computes in it."""
        alone = draft.is_empty
        for request in decodes:
            if request.row is None or not draft.room(request, request.num_computed):
                continue
            end = request.num_computed + 1
            if alone:
                grown = self._growth.reach(request, end, draft)
            else:
                grown = self._running.grow(request, end)
            if not grown:
                return
            draft.add(request, 1)
