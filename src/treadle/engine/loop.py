"""The loop: press the treadle and it goes round once more.

    depth 0   plan 1 · forward 1 · sample 1 · settle 1 │ plan 2 · forward 2 · sample 2 · settle 2
    depth 1   plan 2 · forward 2 · settle 1 · sample 2 │ plan 3 · forward 3 · settle 2 · sample 3

One function serves both: steps in flight stand in a deque, and before a step is sampled and after
it, the oldest are settled until as many are left as the depth allows. At depth 1 the next step is
planned and launched before the last one's tokens are known; they pass from step to step through
the runner's token table.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

from treadle.cache.fence import Fence
from treadle.cache.kv import KVCache
from treadle.engine.request import Request
from treadle.errors import InvalidRequest, PromptTooLong, RequestError
from treadle.runner.executor import Executor
from treadle.schedule.draft import Flight
from treadle.schedule.scheduler import Scheduler
from treadle.wire.messages import (
    Abort,
    Bye,
    Delta,
    Failed,
    Finish,
    FromEngine,
    Generate,
    Ready,
    Stats,
    ToEngine,
    TokenLogprob,
)
from treadle.wire.plan import RowWork, StepResult


@dataclasses.dataclass(frozen=True)
class Served:
    """What the engine must know of the model and its own size to accept and end requests."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    overlap_depth: int


class Engine:
    """Every Generate handled here ends in exactly one Delta with a finish, or one Failed."""

    def __init__(
        self,
        served: Served,
        scheduler: Scheduler[Request],
        kv: KVCache,
        fence: Fence,
        executor: Executor,
    ) -> None:
        self._served = served
        self._scheduler = scheduler
        self._kv = kv
        self._fence = fence
        self._executor = executor
        self._requests: dict[str, Request] = {}
        self._in_flight: deque[tuple[Flight[Request], Callable[[], StepResult]]] = deque()
        self._outbox: list[FromEngine] = []
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._in_flight or self._outbox)

    def step(self) -> list[FromEngine]:
        """Run one step, if any request can; returns all messages that are due."""
        flight = self._scheduler.plan()
        if flight is not None:
            self._fence.launch(flight.plan.step)
            self._executor.forward(flight.plan)
        depth = self._served.overlap_depth if flight is not None else 0
        self._settle_down_to(max(depth - 1, 0))
        if flight is not None:
            self._in_flight.append((flight, self._executor.sample(flight.plan)))
            self._settle_down_to(depth)
        return self._take_outbox()

    def handle(self, message: ToEngine) -> None:
        match message:
            case Generate():
                self._accept(message)
            case Abort(request_id):
                if request := self._requests.get(request_id):
                    self._end(request, [], None, "abort")
            case Bye():
                for request in list(self._requests.values()):
                    self._end(request, [], None, "abort")

    def fail_all(self, message: str) -> list[FromEngine]:
        """The engine cannot go on: answer everybody."""
        failed = [Failed(request_id=key, status=500, message=message) for key in self._requests]
        self._requests.clear()
        return [*self._take_outbox(), *failed]

    def ready(self) -> Ready:
        return Ready(
            max_model_len=self._served.max_model_len,
            vocab_size=self._served.vocab_size,
            kv_capacity_tokens=self._kv.capacity_tokens,
            eos_token_ids=sorted(self._served.eos_token_ids),
        )

    def stats(self) -> Stats:
        counters = self._scheduler.counters
        return Stats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting,
            kv_usage=self._kv.usage,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_generation_tokens,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            steps=self._fence.next_step - 1,
        )

    def close(self) -> None:
        self._executor.close()

    def _accept(self, message: Generate) -> None:
        try:
            if message.request_id in self._requests:
                raise InvalidRequest("this request id is in use", param="request_id")
            request = Request.of(message, self._max_tokens(message))
        except RequestError as error:
            self._outbox.append(
                Failed(
                    request_id=message.request_id,
                    status=error.status,
                    message=error.message,
                    code=error.code,
                    param=error.param,
                )
            )
            return
        self._num_prompt_tokens += request.num_prompt
        self._requests[request.request_id] = request
        self._scheduler.add(request)

    def _max_tokens(self, message: Generate) -> int:
        """The most tokens the answer may have. Raises when window or pool can never hold them."""
        message.params.check(self._served.vocab_size)
        num_prompt, asked = len(message.prompt), message.params.max_tokens
        if num_prompt == 0:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if min(message.prompt) < 0 or max(message.prompt) >= self._served.vocab_size:
            limit = self._served.vocab_size - 1
            raise InvalidRequest(f"prompt token ids run from 0 to {limit}", param="prompt")
        for what, limit in (
            ("the model's window", self._served.max_model_len),
            ("the KV cache", self._kv.capacity_tokens),
        ):
            if num_prompt + (asked or 1) > limit:
                raise PromptTooLong(
                    f"{what} holds {limit} tokens; the prompt has {num_prompt}"
                    + (f" and max_tokens is {asked}" if asked else ""),
                    param="prompt" if num_prompt >= limit else "max_tokens",
                )
        return asked or min(self._served.max_model_len, self._kv.capacity_tokens) - num_prompt

    def _settle_down_to(self, left: int) -> None:
        while len(self._in_flight) > left:
            flight, result = self._in_flight.popleft()
            self._settle(flight, result())

    def _settle(self, flight: Flight[Request], result: StepResult) -> None:
        self._fence.settle(flight.plan.step)
        sampled = zip(result.tokens, result.logprobs, strict=True)
        for request, work in zip(flight.requests, flight.plan.work, strict=True):
            self._scheduler.settle(request, work)
            if work.sample:
                self._take_token(request, work, *next(sampled))

    def _take_token(
        self, request: Request, work: RowWork, token: int, logprob: TokenLogprob | None
    ) -> None:
        request.num_pending -= 1
        if request.finished:
            return  # ended while this step was in flight: one wasted row
        assert work.output_index == request.num_output
        request.tokens.append(token)
        self._num_generation_tokens += 1
        finish, stop_token = self._finish(request, token)
        if finish is not None:
            self._end(request, [token], logprob, finish, stop_token)
        else:
            self._send(request, [token], logprob)

    def _finish(self, request: Request, token: int) -> tuple[Finish | None, int | None]:
        params = request.params
        if request.num_output >= params.min_tokens:
            if not params.ignore_eos and token in self._served.eos_token_ids:
                return "stop", None
            if token in params.stop_token_ids:
                return "stop", token
        return ("length" if request.num_output >= request.max_tokens else None), None

    def _end(
        self,
        request: Request,
        tokens: list[int],
        logprob: TokenLogprob | None,
        finish: Finish,
        stop_token: int | None = None,
    ) -> None:
        del self._requests[request.request_id]
        self._scheduler.finish(request)
        self._send(request, tokens, logprob, finish, stop_token)

    def _send(
        self,
        request: Request,
        tokens: list[int],
        logprob: TokenLogprob | None,
        finish: Finish | None = None,
        stop_token: int | None = None,
    ) -> None:
        self._outbox.append(
            Delta(
                request_id=request.request_id,
                tokens=tokens,
                logprobs=None if logprob is None else [logprob],
                finish=finish,
                stop_token=stop_token,
                cached_tokens=request.cached_tokens or 0,
            )
        )

    def _take_outbox(self) -> list[FromEngine]:
        outbox, self._outbox = self._outbox, []
        return outbox
