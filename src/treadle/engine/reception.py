"""The way of requests to the scheduler: checked, then past the compiler and the gate.

    Generate ── accept ──▶ compiling ──▶ gate, while it is not open ──▶ scheduler
                              (only those held to a grammar)

Pauses are carried out here too: they decide who may pass.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from treadle.engine.admission import Served, longest_answer
from treadle.engine.compiling import Compiling
from treadle.engine.gate import Gate
from treadle.engine.limits import gave_way
from treadle.engine.replies import Replies
from treadle.engine.request import Request
from treadle.engine.roster import Roster
from treadle.errors import InvalidRequest, TreadleError
from treadle.schedule.scheduler import Scheduler
from treadle.wire.messages import Generate, Pause


class Reception:
    """A request it let in stands in one place: at the compiler, before the gate, or in the
    scheduler; at the compiler and before the gate if it came to both."""

    def __init__(
        self,
        served: Served,
        scheduler: Scheduler[Request],
        capacity_tokens: int,
        compiling: Compiling,
        replies: Replies,
    ) -> None:
        self._served = served
        self._scheduler = scheduler
        self._capacity_tokens = capacity_tokens
        self._compiling = compiling
        self._replies = replies
        self._gate = Gate()
        self.roster = Roster(scheduler, self._gate, compiling, replies)
        self.num_prompt_tokens = 0
        """Of all requests let in."""

    @property
    def is_shut(self) -> bool:
        """No step starts."""
        return self._gate.is_shut

    @property
    def num_held(self) -> int:
        """Requests that stand before the scheduler."""
        return len(self._held())

    def accept(self, message: Generate) -> None:
        """Let the request in, or answer it with why not."""
        try:
            if message.request_id in self.roster:
                raise InvalidRequest("this request id is in use", param="request_id")
            longest = longest_answer(message, self._served, self._capacity_tokens)
            rank = self._served.priorities.rank(message.priority)
            request = Request.of(message, longest, time.monotonic(), rank)
            worse = self._less_important(request)
            if request.guide is not None:
                self._compiling.start(request, request.guide)
        except TreadleError as error:
            self._replies.failure(message.request_id, error)
            return
        if worse is not None:
            self.roster.fail(worse, gave_way())
        self.num_prompt_tokens += request.num_prompt
        self.roster.enter(request)
        if not self._gate.is_open:
            self._gate.held[request] = None
        elif request not in self._compiling:
            self._scheduler.add(request)

    def take_compiled(self, *, in_flight: bool) -> None:
        """Those whose grammar is there go on; those that can have none end."""
        scheduler = self._scheduler
        can_run = not self.is_shut and (scheduler.running or scheduler.num_waiting)
        idle = not (can_run or in_flight or self._replies)
        for request, error in self._compiling.take_ready(idle=idle):
            if error is not None:
                self.roster.fail(request, error)
            elif self._gate.is_shut:
                self._gate.held[request] = None
            elif request not in self._gate.held:
                scheduler.add(request)

    def pause(self, message: Pause) -> None:
        if message.mode == "wait":
            self._gate.drain(message.call)
            self.roster.answer_drained()
            return
        if message.mode == "abort":
            self.roster.abort_all()
        self._gate.shut()
        self._replies.done(message.call, ok=True)

    def resume(self, call: int) -> None:
        held, waiting = self._gate.reopen()
        for request in held:
            if request not in self._compiling:
                self._scheduler.add(request)
        for each in waiting:
            self._replies.done(each, ok=False)
        self._replies.done(call, ok=True)

    def _less_important(self, request: Request) -> Request | None:
        """Who leaves a full queue for the request. Who waits is gathered only where it can end."""
        limits = self._served.limits
        if limits.max_queued is None:
            return None
        return limits.displaced(request, self._waiting(), self._scheduler.free_rows)

    def _held(self) -> Collection[Request]:
        return {**self._gate.held, **dict.fromkeys(self._compiling)}

    def _waiting(self) -> Collection[Request]:
        """All who wait where one that comes now would."""
        waiting = self._scheduler.waiting if self._gate.is_open else self._gate.held
        return {**dict.fromkeys(waiting), **dict.fromkeys(self._compiling)}
