"""The processes behind a server: the engine's, and where the API does not make the texts itself,
those that do. Owns the sockets between them; never looks into what passes.

    api ⇄ engine                        no text workers
    api → engine → worker → api         some: the engine also tells the api what concerns no request
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from treadle.config.settings import EngineSettings
from treadle.engine.process import Start
from treadle.wire.child import Child
from treadle.wire.ends import EngineEnds, WorkerStart


class Ended(NamedTuple):
    """A process that is no more."""

    name: str
    status: int
    """Negative for a signal."""


class Crew:
    """All of them live, or `wait` tells of the first that does not; none outlives `terminate`."""

    def __init__(
        self,
        num_workers: int = 0,
        *,
        engine: str = "treadle.engine.process",
        worker: str = "treadle.text.process",
    ) -> None:
        """The engine first: it takes longest to begin."""
        here, there = socket.socketpair()
        fed = [socket.socketpair() for _ in range(num_workers)]
        tell = [socket.socketpair() for _ in range(num_workers)]
        self.end = here
        """Of the engine's channel; to be taken over, like those of the workers'."""
        self.worker_ends = [ours for ours, _ in tell]
        self._engine = Child(engine, [there, *(ours for ours, _ in fed)])
        self._engine_ends = EngineEnds(there.fileno(), tuple(ours.fileno() for ours, _ in fed))
        self._worker_ends = [
            (theirs.fileno(), api.fileno()) for (_, theirs), (_, api) in zip(fed, tell, strict=True)
        ]
        self._workers = [
            Child(worker, [theirs, api]) for (_, theirs), (_, api) in zip(fed, tell, strict=True)
        ]
        _close([there, *(end for both in fed for end in both), *(api for _, api in tell)])

    @property
    def names(self) -> list[str]:
        """The engine's, then the workers'."""
        if len(self._workers) == 1:
            return ["engine", "detokenizer"]
        return ["engine", *(f"detokenizer {number}" for number in range(1, len(self._workers) + 1))]

    def start(self, settings: EngineSettings, path: Path) -> None:
        """Say what to serve."""
        self._engine.start(Start(settings, str(path), self._engine_ends))
        for child, (fed, tell) in zip(self._workers, self._worker_ends, strict=True):
            child.start(WorkerStart(str(path), fed, tell))

    async def wait(self) -> Ended:
        """The first to end."""
        waits = [asyncio.ensure_future(child.wait()) for child in self._children]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        first = next(index for index, each in enumerate(waits) if each in done)
        for each in waits:
            each.cancel()
        return Ended(self.names[first], waits[first].result())

    def dump_stacks(self) -> None:
        for child in self._children:
            child.dump_stacks()

    def terminate(self) -> None:
        for child in self._children:
            child.terminate()

    @property
    def _children(self) -> list[Child]:
        return [self._engine, *self._workers]


def _close(ends: Sequence[socket.socket]) -> None:
    """Ours of a child's: it ends with the child, so that the other end notices."""
    for end in ends:
        end.close()
