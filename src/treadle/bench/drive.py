"""Sends a workload to a server: who is due when, how many at once, and what each is asked.

Everything is drawn and built before the clock starts; while it runs the client only sends and
receives. Computes no statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from treadle.bench.completion import Answer, Measured, complete
from treadle.bench.connection import Connections
from treadle.bench.target import Target
from treadle.bench.workloads import Prompts, Workload, arrivals, conversations

Units = list[int] | list[str]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, and what is done beside it."""

    workload: Workload
    num_warmup: int = 1
    """Requests before the clock starts, of the workload's shape but with tokens of their own."""
    cached_prefix: bool = False
    """Whether the prefix that all prompts share was sent before the clock starts."""
    constrained: bool = False
    """Whether answers are to be JSON by a schema."""
    timeout_s: float = 600.0


class Measurement(msgspec.Struct, kw_only=True):
    """What came of a plan."""

    duration_s: float
    """From the start to the last answer's end."""
    client_cpu_s: float
    """Processor time that this process took meanwhile."""
    requests: list[Measured]


async def drive(
    connections: Connections, target: Target, plan: Plan, progress: Callable[[], object]
) -> Measurement:
    """`progress` is called after each answer, those of the warm-up not counted."""
    driver = _Driver(connections, target, plan)
    await driver.prepare()
    return await driver.run(progress)


class _Driver:
    """One run. The clock starts when `run` does."""

    def __init__(self, connections: Connections, target: Target, plan: Plan) -> None:
        self._connections = connections
        self._target = target
        self._plan = plan
        self._asked = plan.workload
        pool: Sequence[Any] = target.ids or target.words
        prompts: Prompts[Any] = Prompts(pool, self._asked.seed)
        self._warmup = conversations(self._asked, prompts, plan.num_warmup)
        self._conversations: list[list[Units]] = conversations(self._asked, prompts)
        self._limit = asyncio.Semaphore(self._asked.concurrency)
        self._began = 0.0

    async def prepare(self) -> None:
        """Warm up, and open the connections. A failure shows in the measured requests, too."""
        for units in self._warmup:
            await self._converse(0, 0.0, units)
        if self._plan.cached_prefix:
            prefix = self._conversations[0][0][: self._asked.prefix_len]
            record = Measured(conversation=0, turn=0, input_len=len(prefix), output_len=1)
            await self._ask(_prompt(prefix), record)
        await self._connections.warm(min(self._asked.concurrency, self._asked.num_requests))

    async def run(self, progress: Callable[[], object]) -> Measurement:
        due = list(arrivals(self._asked))
        self._began = time.perf_counter()
        cpu = time.process_time()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._arrive(at, due[at], progress))
                for at in range(self._asked.num_requests)
            ]
        return Measurement(
            duration_s=time.perf_counter() - self._began,
            client_cpu_s=time.process_time() - cpu,
            requests=[record for task in tasks for record in task.result()],
        )

    async def _arrive(
        self, at: int, due_s: float, progress: Callable[[], object]
    ) -> list[Measured]:
        await asyncio.sleep(max(self._began + due_s - time.perf_counter(), 0))
        async with self._limit:
            return await self._converse(at, due_s, self._conversations[at], progress)

    async def _converse(
        self,
        at: int,
        due_s: float,
        turns: Sequence[Units],
        progress: Callable[[], object] | None = None,
    ) -> list[Measured]:
        """Ask turn by turn, each prompt beginning with all that was said before it. An answer that
        failed ends the conversation."""
        records: list[Measured] = []
        history: list[Any] = []
        length: int | None = 0
        for turn, added in enumerate(turns):
            history += added
            length = None if length is None else length + len(added)
            record = Measured(
                conversation=at,
                turn=turn,
                input_len=None if length is None else length + self._target.num_special,
                output_len=self._asked.output_len,
                arrival_s=due_s,
                sent_s=time.perf_counter() - self._began if self._began else 0.0,
            )
            records.append(record)
            answer = await self._ask(_prompt(history), record)
            if progress is not None:
                progress()
            if record.error:
                break
            if turn + 1 < len(turns):
                said = await self._said(answer)
                history += said
                length = length + len(said) if length is not None and self._target.ids else None
                due_s = time.perf_counter() - self._began
        return records

    async def _ask(self, prompt: list[int] | str, record: Measured) -> Answer:
        body: dict[str, Any] = {
            "model": self._target.model,
            "prompt": prompt,
            "max_tokens": record.output_len,
            "min_tokens": record.output_len,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._plan.constrained:
            body["response_format"] = _endless(record.output_len)
        if self._asked.turns > 1:
            body["return_token_ids"] = True
        return await complete(self._connections, body, record, self._plan.timeout_s)

    async def _said(self, answer: Answer) -> list[Any]:
        """An answer as a part of the next prompt."""
        if not self._target.ids:
            return [answer.text]
        if answer.token_ids:
            return list(answer.token_ids)
        assert self._target.counter is not None
        return list(await self._target.counter(answer.text, special=False))


def _endless(num_tokens: int) -> dict[str, Any]:
    """JSON that is not complete before the answer has its tokens: each item takes several."""
    texts = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": num_tokens}
    return {"type": "json_schema", "json_schema": {"name": "texts", "schema": texts}}


def _prompt(units: Sequence[Any]) -> list[int] | str:
    """Ids as they are; words, which bring their own spaces, as one text."""
    if units and isinstance(units[0], str):
        return "".join(units)
    return list(units)
