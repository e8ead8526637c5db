"""A step plan while it is being composed, and the step in flight that it becomes."""

from __future__ import annotations

import dataclasses
from typing import Generic, Protocol, TypeVar

from treadle.schedule.ports import Schedulable
from treadle.wire.plan import BlockCopy, BlockEdit, RowJoin, RowWork, StepPlan

R = TypeVar("R", bound=Schedulable)
R_contra = TypeVar("R_contra", bound=Schedulable, contravariant=True)


@dataclasses.dataclass(frozen=True)
class Flight(Generic[R]):
    """A launched step: the plan, and the request behind each of its works."""

    plan: StepPlan
    requests: list[R]


class Watcher(Protocol[R_contra]):
    """Who is told of work as it is added and taken out again; see `strategies.Publication`."""

    def planned(self, request: R_contra, start: int, end: int) -> None: ...
    def undone(self, request: R_contra, start: int, end: int) -> None: ...


class Draft(Generic[R]):
    """Work is added once per request; `budget` is how many tokens the step still has room for,
    `scores` how many prompt tokens it may still score. Dropped work leaves no trace."""

    def __init__(self, budget: int, scores: int, watcher: Watcher[R]) -> None:
        self.budget = budget
        self.scores = scores
        self._watcher = watcher
        self._requests: list[R] = []
        self._work: list[RowWork] = []
        self._before: list[tuple[int, bool]] = []
        """Of each work's request: `next_score` and `in_token_table` without it."""
        self._joins: list[RowJoin] = []

    @property
    def is_empty(self) -> bool:
        return not self._work

    def join(self, request: R, row: int, edits: list[BlockEdit]) -> None:
        request.row = row
        request.in_token_table = False
        request.edits = edits
        self._joins.append(request.join(row))

    def wants(self, request: R, num_computed: int) -> int:
        """How many tokens behind `num_computed` a step can compute for the request, whatever else
        is in it; 0 when it needs none, since those in flight complete it."""
        known = len(request.tokens) + request.num_pending
        if known - request.num_prompt >= max(request.max_tokens, 1):
            return 0
        wants = known - num_computed
        if request.next_score < request.num_prompt:
            first = max(num_computed, request.next_score - 1)
            wants = min(wants, first + self.scores - num_computed)
        return wants

    def room(self, request: R, num_computed: int) -> int:
        """Of what it wants, what this step can compute."""
        return min(self.wants(request, num_computed), self.budget)

    def add(self, request: R, num_tokens: int) -> None:
        """Compute the request's next `num_tokens` tokens, for which it has blocks."""
        assert request.row is not None
        assert num_tokens > 0, "logits need at least one computed token"
        start, end = request.num_computed, request.num_computed + num_tokens
        sample = end == len(request.tokens) + request.num_pending and request.max_tokens > 0
        before = request.next_score, request.in_token_table
        score_at, targets = self._score(request, start, end)
        from_table = num_tokens == 1 and sample and request.in_token_table
        assert from_table or end <= len(request.tokens), "a token in flight is only in the table"
        work = RowWork(
            row=request.row,
            start=start,
            tokens=None if from_table else request.tokens[start:end],
            edits=request.edits,
            sample=sample,
            output_index=end - request.num_prompt,
            score_at=score_at,
            targets=targets,
        )
        self._requests.append(request)
        self._work.append(work)
        self._before.append(before)
        self.budget -= num_tokens
        request.edits = []
        request.num_computed = end
        if sample:
            request.num_pending += 1
            request.in_token_table = True
        self._watcher.planned(request, start, end)

    def drop(self, request: R) -> bool:
        """Take the request's work out again, if there is any: its tokens are not computed, and
        others may have their room. Its row keeps nothing, so it must leave; returns whether it had
        joined only here."""
        joins = [join for join in self._joins if join.row != request.row]
        joined = len(joins) < len(self._joins)
        self._joins = joins
        if request in self._requests:
            self._take_out(request)
        return joined

    def _take_out(self, request: R) -> None:
        index = self._requests.index(request)
        del self._requests[index]
        work = self._work.pop(index)
        self.budget += work.num_tokens
        self.scores += len(work.targets)
        request.num_computed = work.start
        request.num_pending -= work.sample
        request.next_score, request.in_token_table = self._before.pop(index)
        self._watcher.undone(request, work.start, work.start + work.num_tokens)

    def _score(self, request: R, start: int, end: int) -> tuple[int, list[int]]:
        """Which prompt tokens the positions from `start` to `end` score, and the first position
        that does. What was scored before a preemption is not scored again."""
        if request.next_score >= request.num_prompt:
            return 0, []
        first = max(start, request.next_score - 1)
        last = min(end, request.num_prompt - 1)
        if last <= first:
            return 0, []
        request.next_score = last + 1
        self.scores -= last - first
        return first, request.tokens[first + 1 : last + 1]

    @property
    def prefilled(self) -> int:
        """Tokens of the step that are no decode of a row's newest."""
        return sum(work.num_tokens for work in self._work if work.tokens is not None)

    @property
    def chunks(self) -> int:
        """How many of its works end before what their request has to compute does."""
        pairs = zip(self._work, self._requests, strict=True)
        return sum(
            not work.sample and request.num_computed < request.known for work, request in pairs
        )

    def behind(self, request: R) -> bool:
        """Whether more is to be computed for the request than its newest token."""
        return request.known - request.num_computed > 1

    def finish(self, step: int, leaves: list[int], copies: list[BlockCopy]) -> Flight[R]:
        """`leaves` are rows given up before, whose requests have no work here; `copies` are what
        those who join begin with."""
        plan = StepPlan(step=step, leaves=leaves, joins=self._joins, copies=copies, work=self._work)
        return Flight(plan, self._requests)
