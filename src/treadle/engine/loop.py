"""The loop: press the treadle and it goes round once more.

    depth 0   plan 1 · forward 1 · sample 1 · settle 1 │ plan 2 · forward 2 · sample 2 · settle 2
    depth 1   plan 2 · forward 2 · settle 1 · sample 2 │ plan 3 · forward 3 · settle 2 · sample 3

One function serves both: steps in flight stand in a deque, and before a step is sampled and after
it, the oldest are settled until as many are left as the depth allows. At depth 1 the next step is
planned and launched before the last one's tokens are known; they pass from step to step through
the runner's token table. Where grammars rule tokens out, the masks are filled between settling and
sampling: they are all that waits for the last step's tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from treadle.cache.fence import Fence
from treadle.cache.kv import KVCache
from treadle.engine.admission import Served, out_of_kv
from treadle.engine.compiling import Compiling
from treadle.engine.constrain import StepMasks
from treadle.engine.harvest import Harvest
from treadle.engine.reception import Reception
from treadle.engine.replies import Replies
from treadle.engine.request import Request
from treadle.runner.executor import Executor
from treadle.schedule.draft import Flight
from treadle.schedule.scheduler import Scheduler
from treadle.wire.messages import (
    Abort,
    Bye,
    FromEngine,
    Generate,
    Pause,
    Ready,
    ResetCache,
    Resume,
    Stats,
    ToEngine,
)
from treadle.wire.plan import StepResult


class Engine:
    """Every Generate handled here ends in exactly one Delta with a finish, or one Failed."""

    def __init__(
        self,
        served: Served,
        scheduler: Scheduler[Request],
        kv: KVCache,
        fence: Fence,
        executor: Executor,
        compiling: Compiling | None = None,
    ) -> None:
        self._served = served
        self._scheduler = scheduler
        self._kv = kv
        self._fence = fence
        self._executor = executor
        self._compiling = Compiling() if compiling is None else compiling
        self._masks = StepMasks(served.vocab_size)
        self._in_flight: deque[tuple[Flight[Request], Callable[[], StepResult]]] = deque()
        self._replies = Replies()
        self._reception = Reception(
            served, scheduler, kv.capacity_tokens, self._compiling, self._replies
        )
        self._roster = self._reception.roster
        self._harvest = Harvest(served, scheduler, self._roster, self._replies)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to say."""
        can_start = bool(self._roster) and not self._reception.is_shut
        return bool(can_start or self._compiling or self._in_flight or self._replies)

    def step(self) -> list[FromEngine]:
        """Run one step, if any request can; returns all messages that are due."""
        self._reception.take_compiled(in_flight=bool(self._in_flight))
        self._end_expired()
        flight = None if self._reception.is_shut else self._plan()
        if flight is not None:
            self._fence.launch(flight.plan.step)
            self._executor.forward(flight.plan)
        depth = self._served.overlap_depth if flight is not None else 0
        self._settle_down_to(max(depth - 1, 0))
        if flight is not None:
            masks = self._masks.of(flight)
            self._in_flight.append((flight, self._executor.sample(flight.plan, masks)))
            self._settle_down_to(depth)
        return self._replies.take()

    def handle(self, message: ToEngine) -> None:
        match message:
            case Generate():
                self._reception.accept(message)
            case Abort(request_id):
                self._roster.abort(request_id)
            case Bye():
                self._roster.abort_all()
            case Pause():
                self._reception.pause(message)
            case Resume(call):
                self._reception.resume(call)
            case ResetCache(call):
                self._settle_down_to(0)
                free = not self._scheduler.running
                if free:
                    self._kv.reset()
                self._replies.done(call, ok=free)

    def fail_all(self, message: str) -> list[FromEngine]:
        """The engine cannot go on: answer everybody."""
        return [*self._replies.take(), *self._roster.fail_all(message)]

    def warm(self) -> None:
        """Do beforehand what would make others wait when the first request wants it."""
        self._compiling.warm()

    def ready(self) -> Ready:
        return Ready(
            max_model_len=self._served.max_model_len,
            vocab_size=self._served.vocab_size,
            kv_capacity_tokens=self._kv.capacity_tokens,
            lengths=self._served.lengths,
            eos_token_ids=list(self._served.eos_token_ids),
            resolved=self._served.resolved,
            inputs=self._served.inputs,
        )

    def stats(self) -> Stats:
        counters = self._scheduler.counters
        return Stats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting + self._reception.num_held,
            kv_usage=self._kv.usage,
            prompt_tokens=self._reception.num_prompt_tokens,
            generation_tokens=self._harvest.num_tokens,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            retractions=counters.retractions,
            displacements=counters.displacements,
            pauses=counters.pauses,
            chunks=counters.chunks,
            postponements=counters.postponements,
            evicted_tokens=self._kv.num_evicted_tokens,
            steps=self._fence.next_step - 1,
            step_tokens=counters.computed_tokens,
            paused=self._reception.is_shut,
            compiling=len(self._compiling),
            forced_tokens=self._harvest.num_forced,
        )

    def close(self) -> None:
        self._compiling.close()
        self._executor.close()

    def _end_expired(self) -> None:
        limits = self._served.limits
        for request in limits.expired(self._scheduler.running, time.monotonic()):
            self._roster.fail(request, limits.took_too_long())

    def _plan(self) -> Flight[Request] | None:
        flight = self._scheduler.plan()
        for request in self._scheduler.take_given_up():
            self._roster.fail(request, out_of_kv(len(request.tokens)))
        if flight is not None and flight.plan.joins:
            now = time.monotonic()
            for request in flight.requests:
                request.times.started = request.times.started or now
        return flight

    def _settle_down_to(self, left: int) -> None:
        while len(self._in_flight) > left:
            flight, result = self._in_flight.popleft()
            arrived = result()
            self._fence.settle(flight.plan.step)
            self._harvest.take(flight, arrived)
