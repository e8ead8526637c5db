"""TensorRT-LLM's composition: first who has KV, then who computes.

Stage one goes through running requests in order of admission and sees that each has blocks for its
step, then lets waiting ones in. Stage two divides the step's tokens: decodes first, each one, then
prompts what is left, whole or in chunks. In the batch prompts stand first.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.entrance import Candidate, Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.policy import Chunking, TwoStage
from treadle.schedule.ports import Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Composition

R = TypeVar("R", bound=Schedulable)


class Prompt(NamedTuple, Generic[R]):
    """A request whose prompt is not computed whole."""

    request: R
    rest: int
    most: int
    """Of `rest`, what a step can compute at most."""
    waits: bool


class CapacityThenBatch(Composition[R]):
    """Who has been let in and gets no token in this step holds nothing, and is asked again."""

    def __init__(
        self,
        running: Running[R],
        growth: Growth[R],
        entrance: Entrance[R],
        params: TwoStage,
        chunking: Chunking,
    ) -> None:
        self._running = running
        self._growth = growth
        self._entrance = entrance
        self._params = params
        self._chunking = chunking

    def compose(self, draft: Draft[R]) -> None:
        departures = self._running.departures
        decodes, prompts = self._with_blocks(draft)
        decodes = decodes[: draft.budget]
        room = draft.budget - len(decodes)
        if self._running.departures == departures:
            self._let_in(prompts, room, draft)
        sizes = self._divide(prompts, room)
        if prompts and not decodes and not any(sizes):
            sizes[0] = min(prompts[0].most, room)  # longer than any step, or a unit is
        for prompt, size in zip(prompts, sizes, strict=True):
            self._compute(prompt, size, draft)
        for request in decodes:
            draft.add(request, 1)

    def _with_blocks(self, draft: Draft[R]) -> tuple[list[R], list[Prompt[R]]]:
        """Running requests that have blocks for this step: decodes, and those with more to do."""
        decodes, prompts = list[R](), list[Prompt[R]]()
        self._growth.prepare(self._running.requests, draft)
        for request in list(self._running.requests):
            wanted = draft.room(request, request.num_computed)
            if wanted == 0 or request.row is None:
                continue
            if not self._growth.reach(request, request.num_computed + wanted, draft):
                break
            if draft.behind(request):
                rest = len(request.tokens) - request.num_computed
                most = draft.wants(request, request.num_computed)
                prompts.append(Prompt(request, rest, most, waits=False))
            else:
                decodes.append(request)
        decodes = [request for request in decodes if request.row is not None]
        return decodes, [prompt for prompt in prompts if prompt.request.row is not None]

    def _let_in(self, prompts: list[Prompt[R]], room: int, draft: Draft[R]) -> None:
        """Add waiting requests that have capacity, as far as the step may have tokens for them."""
        self._entrance.open()
        left = room - sum(self._divide(prompts, room))
        while left > 0 or (self._params.equal_progress and room > 0):
            candidate: Candidate[R] | None = self._entrance.next(room)
            if candidate is None:
                return
            most = draft.wants(candidate.request, candidate.match.num_tokens)
            self._entrance.reserve(candidate, min(most, room))
            prompts.append(Prompt(candidate.request, candidate.rest, most, waits=True))
            size = self._divide(prompts[-1:], max(left, 0))[0]
            if size == 0 and not self._chunking.on:
                return
            left -= size

    def _divide(self, prompts: list[Prompt[R]], room: int) -> list[int]:
        """Each prompt's tokens in this step."""
        if not self._chunking.on:
            return _whole(prompts, room)
        if sum(prompt.most for prompt in prompts) <= room:
            return [prompt.most for prompt in prompts]
        divide = _equal if self._params.equal_progress else _in_turn
        return divide(prompts, room, self._params.unit_tokens)

    def _compute(self, prompt: Prompt[R], size: int, draft: Draft[R]) -> None:
        if size == 0:
            return
        if prompt.waits:
            self._entrance.start(prompt.request, size, draft)
            return
        tokens = min(size, draft.room(prompt.request, prompt.request.num_computed))
        if tokens > 0:
            draft.add(prompt.request, tokens)


def _whole(prompts: list[Prompt[R]], room: int) -> list[int]:
    """All of each, up to the first that does not fit."""
    sizes, ended = [], False
    for prompt in prompts:
        ended = ended or prompt.rest > min(room, prompt.most)
        sizes.append(0 if ended else prompt.rest)
        room -= sizes[-1]
    return sizes


def _in_turn(prompts: list[Prompt[R]], room: int, unit: int) -> list[int]:
    """FIRST_COME_FIRST_SERVED: what is left for each; one that is cut ends with a unit."""
    sizes = []
    for prompt in prompts:
        size = min(prompt.most, room)
        if size < prompt.most:
            size -= size % unit
        sizes.append(size)
        room -= size
    return sizes


def _equal(prompts: list[Prompt[R]], room: int, unit: int) -> list[int]:
    """EQUAL_PROGRESS: a unit for each in turn, as long as there is one that finds room for it."""
    sizes, grew = [0] * len(prompts), True
    while grew:
        grew = False
        for index, prompt in enumerate(prompts):
            more = min(unit, prompt.most - sizes[index])
            if 0 < more <= room:
                sizes[index] += more
                room -= more
                grew = True
    return sizes
