"""An engine that answers by script, in the real engine's process: `python -m fake_engine`.

An answer repeats its prompt, token after token. The first token of a prompt may be a command.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from treadle.config.settings import EngineSettings
from treadle.engine.process import run
from treadle.errors import StartError
from treadle.wire.messages import (
    Abort,
    Bye,
    Delta,
    Done,
    Failed,
    Finish,
    FromEngine,
    Generate,
    Pause,
    Progress,
    Ready,
    ResetCache,
    Resume,
    Stats,
    Timings,
    ToEngine,
    TokenLogprob,
)

EOS = 2
VOCAB_SIZE = 49152
WINDOW = 512
KV_TOKENS = 400
ROWS = 1024

HOLD = 1000
"""Never a token, as in an endless prefill."""
CRASH = 1001
"""The engine raises after two tokens."""
REFUSE = 1002
"""The request fails, with 400, after two tokens."""
REFUSE_AT_ONCE = 1003
DIE = 1004
"""The process is gone after two tokens."""
SLOW = 1005
"""A token every few milliseconds."""
UNLIKELY = 1006
"""Log-probabilities of minus infinity."""
BURST = 1007
"""Three tokens per step."""

SLOW_TOKEN_S = 0.005

TIMINGS = Timings(queue_s=0.25, prefill_s=0.5, decode_s=2.0)
"""Every request's."""


class FakeEngine:
    """Every request ends in one final Delta or one Failed."""

    def __init__(self, window: int, rows: int) -> None:
        self._window = window
        self._rows = rows
        self._num_steps = 0
        self._requests: dict[str, Generate] = {}
        self._outputs: dict[str, list[int]] = {}
        self._outbox: list[FromEngine] = []
        self._num_prompt_tokens = 0
        self._num_tokens = 0
        self._seen: set[tuple[int, ...]] = set()
        self._cached: dict[str, int] = {}
        self._hits = 0
        self._paused = False

    @property
    def has_work(self) -> bool:
        return bool(self._outbox or (self._requests and not self._paused))

    def handle(self, message: ToEngine) -> None:
        match message:
            case Generate():
                self._accept(message)
            case Abort(request_id):
                self._end(request_id, "abort")
            case Bye():
                self._paused = False
                for request_id in list(self._requests):
                    self._end(request_id, "abort")
            case Pause(call, mode):
                if mode == "abort":
                    for request_id in list(self._requests):
                        self._end(request_id, "abort")
                # Waiting for requests is for the real engine; here they stand still.
                self._paused = True
                self._outbox.append(Done(call, ok=mode != "wait" or not self._requests))
            case Resume(call):
                self._paused = False
                self._outbox.append(Done(call, ok=True))
            case ResetCache(call):
                ok = not self._requests
                if ok:
                    self._seen.clear()
                self._outbox.append(Done(call, ok=ok))

    def step(self) -> list[FromEngine]:
        num_before = self._num_tokens
        running = list(self._requests.values())[: self._rows]
        for request in [] if self._paused else running:
            self._advance(request)
        self._num_steps += self._num_tokens != num_before
        if any(request.prompt[0] in (SLOW, HOLD) for request in self._requests.values()):
            time.sleep(SLOW_TOKEN_S)
        outbox, self._outbox = self._outbox, []
        return outbox

    def fail_all(self, message: str) -> list[FromEngine]:
        return [Failed(request_id=name, status=500, message=message) for name in self._requests]

    def warm(self) -> None:
        pass

    def ready(self) -> Ready:
        return Ready(
            max_model_len=self._window,
            vocab_size=VOCAB_SIZE,
            kv_capacity_tokens=KV_TOKENS,
            eos_token_ids=[EOS],
            resolved={
                "preset": "treadle",
                "max_num_batched_tokens": 512,
                "max_num_seqs": self._rows,
                "block_size": 16,
                "kv_dtype": "f32",
                "num_blocks": [25],
                "prefix_cache": "radix",
            },
        )

    def stats(self) -> Stats:
        return Stats(
            running=min(len(self._requests), self._rows),
            waiting=max(len(self._requests) - self._rows, 0),
            kv_usage=0.0,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_tokens,
            prefix_queries=self._num_prompt_tokens,
            prefix_hits=self._hits,
            preemptions=0,
            steps=self._num_steps,
            step_tokens=self._num_tokens,
            paused=self._paused,
        )

    def close(self) -> None: ...

    def _accept(self, request: Generate) -> None:
        self._requests[request.request_id] = request
        self._outputs[request.request_id] = []
        self._num_prompt_tokens += len(request.prompt)
        key = tuple(request.prompt)
        self._cached[request.request_id] = len(key) - 1 if key in self._seen else 0
        self._hits += self._cached[request.request_id]
        self._seen.add(key)
        if request.prompt[0] == REFUSE_AT_ONCE:
            self._refuse(request)
        elif request.params.prompt_logprobs is not None:
            # In two parts, as a prompt computed in chunks is scored.
            scores = self._prompt_scores(request)
            for part in (scores[: len(scores) // 2], scores[len(scores) // 2 :]):
                self._outbox.append(
                    Delta(request_id=request.request_id, tokens=[], prompt_logprobs=part)
                )

    def _advance(self, request: Generate) -> None:
        command = request.prompt[0]
        num_done = len(self._outputs[request.request_id])
        if command == HOLD:
            return
        if num_done == 2:
            if command == CRASH:
                raise RuntimeError("scripted crash")
            if command == REFUSE:
                self._refuse(request)
                return
            if command == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
        self._emit(request, 3 if command == BURST else 1)

    def _emit(self, request: Generate, num_tokens: int) -> None:
        output = self._outputs[request.request_id]
        params = request.params
        assert params.max_tokens is not None
        tokens: list[int] = []
        finish: Finish | None = "length" if params.max_tokens == 0 else None
        stop_token = None
        for _ in range(0 if finish else num_tokens):
            # Choices differ in where they begin.
            token = request.prompt[(len(output) + request.choice) % len(request.prompt)]
            tokens.append(token)
            output.append(token)
            self._num_tokens += 1
            if token in params.stop_token_ids:
                finish, stop_token = "stop", token
            elif token == EOS and not params.ignore_eos:
                finish = "stop"
            elif len(output) == params.max_tokens:
                finish = "length"
            if finish:
                break
        self._outbox.append(
            Delta(
                request_id=request.request_id,
                tokens=tokens,
                logprobs=self._logprobs(request, tokens),
                finish=finish,
                stop_token=stop_token,
                cached_tokens=self._cached[request.request_id],
                timings=TIMINGS if finish else None,
            )
        )
        if finish:
            self._forget(request.request_id)

    def _logprobs(self, request: Generate, tokens: list[int]) -> list[TokenLogprob] | None:
        num_top = request.params.logprobs
        if num_top is None:
            return None
        value = float("-inf") if request.prompt[0] == UNLIKELY else -0.5
        return [self._score(request, token, value, num_top) for token in tokens]

    def _prompt_scores(self, request: Generate) -> list[TokenLogprob]:
        """Minus the position, for every token but the first."""
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        first = max(request.params.prompt_logprobs_start, 1)
        lowest = float("-inf") if request.prompt[0] == UNLIKELY else 0.0
        return [
            self._score(request, request.prompt[at], lowest or -float(at), num_top)
            for at in range(first, len(request.prompt))
        ]

    def _score(self, request: Generate, token: int, value: float, num_top: int) -> TokenLogprob:
        top = [(token + i, value - i) for i in range(num_top)]
        asked = [(one, -one / 4) for one in request.params.logprob_token_ids or []]
        return TokenLogprob(token, value, 1, top, asked)

    def _refuse(self, request: Generate) -> None:
        self._forget(request.request_id)
        self._outbox.append(
            Failed(request_id=request.request_id, status=400, message="scripted refusal")
        )

    def _end(self, request_id: str, finish: Finish) -> None:
        if request_id in self._requests:
            self._forget(request_id)
            self._outbox.append(Delta(request_id=request_id, tokens=[], finish=finish))

    def _forget(self, request_id: str) -> None:
        del self._requests[request_id]


def build(settings: EngineSettings, path: Path, report: Callable[[Progress], None]) -> FakeEngine:
    """The served name may be a command, too."""
    report(Progress("find pid", 0.0, str(os.getpid())))
    name = next(iter(settings.model.served_model_name), None)
    if name == "refuse-to-start":
        raise StartError(f"{path}: scripted refusal to start")
    if name == "load-for-ever":
        signal.pause()
    if name == "break-while-loading":
        raise RuntimeError("scripted bug while loading")
    rows = settings.schedule.max_num_seqs or ROWS
    return FakeEngine(settings.model.max_model_len or WINDOW, rows)


if __name__ == "__main__":
    sys.exit(run(lambda: build))
