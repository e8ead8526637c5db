"""Requests of random tokens to an engine in this process, and when their tokens came.

Drives the loop itself, so that no thread or channel stands between. Reports nothing.
"""

from __future__ import annotations

import random
import time

import msgspec

from treadle.engine.loop import Engine
from treadle.errors import EngineError, InvalidRequest, StartError
from treadle.wire.messages import Delta, Failed, Generate
from treadle.wire.sampling_params import SamplingParams


class Answer(msgspec.Struct):
    """When one request's tokens came, in seconds after all requests were handed over."""

    num_prompt: int
    num_output: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def time_per_token_s(self) -> float | None:
        """After the first token; None for answers of one."""
        if self.num_output < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_output - 1)


GREEDY = SamplingParams(temperature=0)


class Load:
    """Every request is answered before `run` returns, and never ended by an EOS token."""

    def __init__(self, engine: Engine, seed: int = 0, sampling: SamplingParams = GREEDY) -> None:
        """`sampling` says how tokens are chosen."""
        self.engine = engine
        self._sampling = sampling
        self._tokens = range(engine.ready().vocab_size)
        self._rng = random.Random(seed)  # noqa: S311 (nothing secret)
        self._serial = 0

    def prompt(self, length: int) -> list[int]:
        """Never twice the same, so that no cache helps unless it is meant to."""
        return self._rng.choices(self._tokens, k=length)

    def run(self, prompts: list[list[int]], num_output: int) -> list[Answer]:
        """All prompts at once; their answers, in order."""
        began = time.perf_counter()
        answers = self.start(prompts, num_output)
        while self.engine.has_work:
            messages = self.engine.step()
            now = time.perf_counter() - began
            for message in messages:
                _take(answers, message, now)
        return list(answers.values())

    def start(self, prompts: list[list[int]], num_output: int) -> dict[str, Answer]:
        """Hand requests over without a step; the answers to come by request id."""
        params = msgspec.structs.replace(self._sampling, max_tokens=num_output, ignore_eos=True)
        answers: dict[str, Answer] = {}
        for prompt in prompts:
            self._serial += 1
            key = str(self._serial)
            answers[key] = Answer(num_prompt=len(prompt))
            self.engine.handle(Generate(request_id=key, prompt=prompt, params=params, seed=0))
        return answers


def require_lengths(num_input: int, num_output: int, window: int) -> None:
    """Raises StartError when such requests do not fit the model's window."""
    if num_input + num_output > window:
        raise StartError(
            f"{num_input} tokens in and {num_output} out exceed the window of {window} tokens"
        )


def _take(answers: dict[str, Answer], message: object, now: float) -> None:
    if isinstance(message, Failed):
        kind = InvalidRequest if message.status < 500 else EngineError
        raise kind(message.message)
    assert isinstance(message, Delta)
    answer = answers[message.request_id]
    answer.num_output += len(message.tokens)
    answer.first_s = answer.first_s or now
    answer.last_s = now
