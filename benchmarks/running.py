"""An engine that is up, behind HTTP or a driver's pipe: a plan goes in, figures come out.

Both draw the same prompts from the same ids, and count whole answers only.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from treadle.bench.completion import Measured
from treadle.bench.drive import Measurement, Plan
from treadle.bench.figures import Figures, figures
from treadle.bench.serve import Server, measure
from treadle.bench.workloads import Prompts, conversations


class Unable(Exception):
    """The peer cannot do this; told in the table, and the run goes on."""


class Running(Protocol):
    """A peer that can be asked."""

    def ask(self, plan: Plan) -> Figures: ...


class Served:
    """A server: asked as `treadle bench serve` does."""

    def __init__(self, url: str, tokenizer: Path) -> None:
        self._url = url
        self._tokenizer = tokenizer

    def ask(self, plan: Plan) -> Figures:
        server = Server(url=self._url, tokenizer=self._tokenizer)
        report = asyncio.run(measure(server, plan, {}, lambda: None))
        return _checked(report.figures)


class Driven:
    """An engine behind protocol.py. All prompts are asked at once, or one after the other."""

    def __init__(
        self, process: subprocess.Popen[str], ids: Sequence[int], *, shares_prefixes: bool
    ) -> None:
        self._process = process
        self._shares_prefixes = shares_prefixes
        self._ids = ids
        if self._read() != {"ready": True}:
            raise Unable("said something else than that it is ready")

    def ask(self, plan: Plan) -> Figures:
        asked = plan.workload
        if plan.cached_prefix and not self._shares_prefixes:
            raise Unable("answers from no prefix that was computed before")
        prompts = Prompts(self._ids, asked.seed)
        for (prompt,) in conversations(asked, prompts, plan.num_warmup):
            self._exchange([prompt], asked.output_len)
        work = [prompt for (prompt,) in conversations(asked, prompts)]
        cached_len = asked.prefix_len if plan.cached_prefix else 0
        size = asked.concurrency
        batches = [work[at : at + size] for at in range(0, len(work), size)]
        parts = [self._exchange(batch, asked.output_len, cached_len) for batch in batches]
        whole = Measurement(
            duration_s=sum(part.duration_s for part in parts),
            client_cpu_s=0.0,
            requests=[one for part in parts for one in part.requests],
        )
        return _checked(figures(whole, {}))

    def _exchange(
        self, prompts: Sequence[Sequence[int]], output_len: int, cached_len: int = 0
    ) -> Measurement:
        assert self._process.stdin is not None
        asked = {"prompts": prompts, "output_len": output_len, "cached_len": cached_len}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = self._read()
        return Measurement(
            duration_s=answer["duration_s"],
            client_cpu_s=0.0,
            requests=[
                Measured(
                    conversation=at,
                    turn=0,
                    input_len=len(prompts[at]),
                    output_len=output_len,
                    **one,
                )
                for at, one in enumerate(answer["requests"])
            ],
        )

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unable(f"ended with status {self._process.wait()}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def _checked(found: Figures) -> Figures:
    """A comparison counts whole answers only."""
    if found.failed or found.num_short or found.num_off_length:
        raise Unable(
            f"{found.failed} failed, {found.num_short} short answers,"
            f" {found.num_off_length} prompts of another length: {', '.join(found.errors)}"
        )
    return found
