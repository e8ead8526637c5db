"""How compare.py talks to an engine without a server: lines of JSON through a pipe.

A driver prints {"ready": true} once it can answer. Each line it then reads is {"prompts": [[id, …],
…], "output_len": n, "cached_len": k}: all prompts are asked at once, and the first k tokens, which
they share, have been computed before the clock starts. It answers with {"duration_s", "requests":
[{"ttft_s", "latency_s", "prompt_tokens", "completion_tokens"}, …]}. It runs with the engine's own
Python, and so imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Asked(NamedTuple):
    prompts: Sequence[Sequence[int]]
    output_len: int
    cached_len: int

    @property
    def prefix(self) -> Sequence[int]:
        """What is to be in the cache before the clock starts."""
        return self.prompts[0][: self.cached_len]


Ask = Callable[[Asked, "Times"], None]
"""Answers every prompt with so many tokens: prepares, starts the clock, notes each token."""


class Times:
    """When each request's tokens came, after the start."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._lengths = [len(prompt) for prompt in prompts]
        self._tokens: list[list[float]] = [[] for _ in prompts]
        self._began = time.perf_counter()

    def start(self) -> None:
        self._began = time.perf_counter()

    def note(self, at: int, num_tokens: int = 1) -> None:
        self._tokens[at] += [time.perf_counter() - self._began] * num_tokens

    def report(self) -> dict[str, Any]:
        """Requests without any token are told as such: times of 0, and none completed."""
        requests = [
            {
                "ttft_s": times[0] if times else 0.0,
                "latency_s": times[-1] if times else 0.0,
                "prompt_tokens": length,
                "completion_tokens": len(times),
            }
            for length, times in zip(self._lengths, self._tokens, strict=True)
        ]
        return {"duration_s": time.perf_counter() - self._began, "requests": requests}


Answer = Callable[[Sequence[Sequence[int]], int, Times], None]
"""Answers prompts with so many tokens each, and notes them."""


def asking(answer: Answer) -> Ask:
    """For an engine that keeps prefixes by itself: one answer of a token puts them there."""

    def ask(asked: Asked, times: Times) -> None:
        if asked.cached_len:
            answer([asked.prefix], 1, Times([asked.prefix]))
        times.start()
        answer(asked.prompts, asked.output_len, times)

    return ask


def run(load: Callable[..., Ask]) -> None:
    """Load the model that the arguments name, with so many threads, then answer until the end.

    `load` gets the model, the threads, and what arguments there are beside them.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    ask = load(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        asked = Asked(**json.loads(line))
        times = Times(asked.prompts)
        ask(asked, times)
        print(json.dumps(times.report()), file=out, flush=True)
