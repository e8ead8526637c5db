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
from collections.abc import Callable, Collection

from treadle.cache.fence import Fence
from treadle.cache.kv import KVCache
from treadle.engine.admission import Served, longest_answer, nothing_to_choose, out_of_kv
from treadle.engine.compiling import Compiling
from treadle.engine.constrain import StepMasks
from treadle.engine.ends import End, end_of
from treadle.engine.gate import Gate
from treadle.engine.limits import gave_way
from treadle.engine.replies import Replies
from treadle.engine.request import Request
from treadle.errors import InvalidRequest, TreadleError
from treadle.kernels.ops import NO_TOKEN
from treadle.runner.executor import Executor
from treadle.schedule.draft import Flight
from treadle.schedule.scheduler import Scheduler
from treadle.wire.messages import (
    Abort,
    Bye,
    Failed,
    Finish,
    FromEngine,
    Generate,
    Pause,
    Ready,
    ResetCache,
    Resume,
    Stats,
    ToEngine,
    TokenLogprob,
)
from treadle.wire.plan import RowWork, StepResult


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
        self._requests: dict[str, Request] = {}
        self._gate = Gate()
        self._compiling = Compiling() if compiling is None else compiling
        self._masks = StepMasks(served.vocab_size)
        self._in_flight: deque[tuple[Flight[Request], Callable[[], StepResult]]] = deque()
        self._replies = Replies()
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_forced_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to say."""
        can_start = bool(self._requests) and not self._gate.is_shut
        return bool(can_start or self._compiling or self._in_flight or self._replies)

    def step(self) -> list[FromEngine]:
        """Run one step, if any request can; returns all messages that are due."""
        self._take_compiled()
        for request in self._served.limits.expired(self._scheduler.running, time.monotonic()):
            self._fail(request, self._served.limits.took_too_long())
        flight = None if self._gate.is_shut else self._scheduler.plan()
        for request in self._scheduler.take_given_up():
            self._leave(request)
            self._replies.failure(request.request_id, out_of_kv(len(request.tokens)))
        if flight is not None:
            self._note_started(flight)
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
                self._accept(message)
            case Abort(request_id):
                if request := self._requests.get(request_id):
                    self._end(request, "abort")
            case Bye():
                self._end_all()
            case Pause():
                self._pause(message)
            case Resume(call):
                held, waiting = self._gate.reopen()
                for request in held:
                    if request not in self._compiling:
                        self._scheduler.add(request)
                for each in waiting:
                    self._replies.done(each, ok=False)
                self._replies.done(call, ok=True)
            case ResetCache(call):
                self._settle_down_to(0)
                free = not self._scheduler.running
                if free:
                    self._kv.reset()
                self._replies.done(call, ok=free)

    def fail_all(self, message: str) -> list[FromEngine]:
        """The engine cannot go on: answer everybody."""
        failed = [Failed(request_id=key, status=500, message=message) for key in self._requests]
        self._requests.clear()
        return [*self._replies.take(), *failed]

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
        num_compiling = sum(request not in self._gate.held for request in self._compiling)
        return Stats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting + len(self._gate.held) + num_compiling,
            kv_usage=self._kv.usage,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_generation_tokens,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            postponements=counters.postponements,
            evicted_tokens=self._kv.num_evicted_tokens,
            steps=self._fence.next_step - 1,
            step_tokens=counters.computed_tokens,
            paused=self._gate.is_shut,
            compiling=len(self._compiling),
            forced_tokens=self._num_forced_tokens,
        )

    def close(self) -> None:
        self._compiling.close()
        self._executor.close()

    def _accept(self, message: Generate) -> None:
        try:
            if message.request_id in self._requests:
                raise InvalidRequest("this request id is in use", param="request_id")
            longest = longest_answer(message, self._served, self._kv.capacity_tokens)
            rank = self._served.priorities.rank(message.priority)
            request = Request.of(message, longest, time.monotonic(), rank)
            worse = self._served.limits.displaced(
                request, self._waiting(), self._scheduler.free_rows
            )
            if request.guide is not None:
                self._compiling.start(request, request.guide)
        except TreadleError as error:
            self._replies.failure(message.request_id, error)
            return
        if worse is not None:
            self._fail(worse, gave_way())
        self._num_prompt_tokens += request.num_prompt
        self._requests[request.request_id] = request
        if not self._gate.is_open:
            self._gate.held[request] = None
        elif request not in self._compiling:
            self._scheduler.add(request)

    def _waiting(self) -> Collection[Request]:
        """All who wait where one that comes now would."""
        waiting = self._scheduler.waiting if self._gate.is_open else self._gate.held
        return {**dict.fromkeys(waiting), **dict.fromkeys(self._compiling)}

    def _take_compiled(self) -> None:
        scheduler = self._scheduler
        can_run = not self._gate.is_shut and (scheduler.running or scheduler.num_waiting)
        idle = not (can_run or self._in_flight or self._replies)
        for request, error in self._compiling.take_ready(idle=idle):
            if error is not None:
                self._fail(request, error)
            elif self._gate.is_shut:
                self._gate.held[request] = None
            elif request not in self._gate.held:
                scheduler.add(request)

    def _pause(self, message: Pause) -> None:
        if message.mode == "wait":
            self._gate.drain(message.call)
            self._answer_drained()
            return
        if message.mode == "abort":
            self._end_all()
        self._gate.shut()
        self._replies.done(message.call, ok=True)

    def _answer_drained(self) -> None:
        """Everybody inside the gate has ended: nothing that was held is among them."""
        if not self._gate.is_open and len(self._requests) == len(self._gate.held):
            for call in self._gate.drained():
                self._replies.done(call, ok=True)

    def _end_all(self) -> None:
        for request in list(self._requests.values()):
            self._end(request, "abort")

    def _note_started(self, flight: Flight[Request]) -> None:
        if flight.plan.joins:
            now = time.monotonic()
            for request in flight.requests:
                request.times.started = request.times.started or now

    def _settle_down_to(self, left: int) -> None:
        while len(self._in_flight) > left:
            flight, result = self._in_flight.popleft()
            self._settle(flight, result())

    def _settle(self, flight: Flight[Request], result: StepResult) -> None:
        self._fence.settle(flight.plan.step)
        sampled = zip(result.tokens, result.logprobs, strict=True)
        scores = iter(result.scores)
        for request, work in zip(flight.requests, flight.plan.work, strict=True):
            token, logprob = next(sampled) if work.sample else (None, None)
            self._scheduler.settle(request, work, failed=token == NO_TOKEN)
            if work.targets:
                self._take_scores(request, next(scores))
            if token is not None:
                self._take_token(request, work, token, logprob)
            elif request.max_tokens == 0 and work.start + work.num_tokens == request.num_prompt:
                self._end_prompt(request)

    def _take_scores(self, request: Request, scores: list[TokenLogprob]) -> None:
        if not request.finished:
            self._replies.scores(request, scores)

    def _end_prompt(self, request: Request) -> None:
        """Nothing more was asked for than the prompt."""
        if not request.finished:
            self._end(request, "length")

    def _take_token(
        self, request: Request, work: RowWork, token: int, logprob: TokenLogprob | None
    ) -> None:
        if request.finished or work.output_index < request.num_output:
            return  # ended, or went on without it, while this step was in flight: one wasted row
        request.num_pending -= 1
        assert work.output_index == request.num_output
        if token == NO_TOKEN or not (request.guide is None or request.guide.take(token)):
            self._stop_short(request)
            return
        request.times.first_token = request.times.first_token or time.monotonic()
        tokens, end = self._append(request, [token, *self._skipped(request)])
        self._num_forced_tokens += len(tokens) - 1
        if end is not None:
            self._leave(request)
            self._replies.end(request, end, tokens=tokens, logprob=logprob)
            self._answer_drained()
        else:
            self._replies.tokens(request, tokens, logprob)

    def _append(self, request: Request, tokens: list[int]) -> tuple[list[int], End | None]:
        """The tokens that the answer has of these: none behind its end."""
        for count, token in enumerate(tokens, 1):
            request.tokens.append(token)
            self._num_generation_tokens += 1
            end = end_of(request, self._served, ahead=len(tokens) - count)
            if end is not None:
                return tokens[:count], end
        return tokens, None

    def _skipped(self, request: Request) -> list[int]:
        """Tokens behind the one just sampled that the grammar leaves no choice for: known from now
        on. A step in flight already samples the first of them, so that one alone gains nothing; it
        computes what it was planned for, and its token is not waited for."""
        if request.guide is None:
            return []
        tokens = request.guide.skip(least=2 if request.num_pending else 1)
        if tokens:
            request.num_pending = 0
            request.in_token_table = False
        return tokens

    def _stop_short(self, request: Request) -> None:
        """There was nothing to choose."""
        # A step in flight computes a place for which no token ever came.
        request.num_computed = min(request.num_computed, len(request.tokens))
        if request.guide is not None and request.guide.may_end:
            self._end(request, "stop")  # min_tokens asks for more than the grammar has
            return
        self._fail(request, nothing_to_choose(request.params, request.guide))

    def _fail(self, request: Request, error: TreadleError) -> None:
        """The others are not touched."""
        self._leave(request)
        self._replies.failure(request.request_id, error)
        self._answer_drained()

    def _end(self, request: Request, finish: Finish) -> None:
        self._leave(request)
        self._replies.end(request, End(finish))
        self._answer_drained()

    def _leave(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._gate.held.pop(request, None)
        self._compiling.drop(request)
        self._scheduler.finish(request)
