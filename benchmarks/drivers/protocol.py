"""How compare.py talks to an engine without a server: lines of JSON through a pipe.

A driver prints {"ready": true} once it can answer. Each line it then reads is {"prompts": [[id, …],
…], "output_len": n}: all prompts are asked at once. It answers with {"duration_s", "requests":
[{"ttft_s", "latency_s", "prompt_tokens", "completion_tokens"}, …]}. It runs with the engine's own
Python, and so imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Ask = Callable[[Sequence[Sequence[int]], int, "Times"], None]
"""Answers every prompt with so many tokens, noting each token as it comes."""


class Times:
    """When each request's tokens came, after the start."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._lengths = [len(prompt) for prompt in prompts]
        self._tokens: list[list[float]] = [[] for _ in prompts]
        self._began = time.perf_counter()

    def note(self, at: int, num_tokens: int = 1) -> None:
        self._tokens[at] += [time.perf_counter() - self._began] * num_tokens

    def report(self) -> dict[str, Any]:
        requests = [
            {
                "ttft_s": times[0],
                "latency_s": times[-1],
                "prompt_tokens": length,
                "completion_tokens": len(times),
            }
            for length, times in zip(self._lengths, self._tokens, strict=True)
        ]
        return {"duration_s": time.perf_counter() - self._began, "requests": requests}


def run(load: Callable[[str, int], Ask]) -> None:
    """Load the model that the arguments name, with so many threads, then answer until the end."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    ask = load(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        times = Times(asked["prompts"])
        ask(asked["prompts"], asked["output_len"], times)
        print(json.dumps(times.report()), file=out, flush=True)
