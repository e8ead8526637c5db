"""Notices an engine, or a process that makes texts, that is alive and gets nowhere.

Work at hand and no sign of progress, for so long: then it is stuck. Time counts in ticks, so that a
machine that slept, or an event loop that was held up, is not taken for a stuck engine. Decides
only; what is done about it is the server's.
"""

from __future__ import annotations

import asyncio

from treadle.errors import EngineError
from treadle.text.frontend import Frontend

TICK_S = 1.0


class Stall:
    """How long something has had work and given no sign."""

    def __init__(self) -> None:
        self._seen = 0
        self._seconds = 0.0

    def add(self, seconds: float, signs: int, *, has_work: bool) -> float:
        """After so many seconds more; the sum."""
        moved, self._seen = signs != self._seen, signs
        self._seconds = self._seconds + seconds if has_work and not moved else 0.0
        return self._seconds


class Watchdog:
    """Stuck for `timeout_s`, summed over ticks of which none counts more than twice its length."""

    def __init__(self, frontend: Frontend, timeout_s: float) -> None:
        self._frontend = frontend
        self._timeout_s = timeout_s
        self._tick_s = min(TICK_S, timeout_s / 4)
        self._engine = Stall()
        self._workers = [Stall() for _ in frontend.workers]

    async def run(self) -> EngineError:
        """Watch until something is stuck; the error that says so."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._tick_s)
            now = loop.time()
            stuck = self.tick(now - last)
            if stuck is not None:
                return EngineError(
                    f"the {stuck} is stuck: no progress for {self._timeout_s:g} s with "
                    f"{self._frontend.num_open} answers to compute"
                )
            last = now

    def tick(self, seconds: float) -> str | None:
        """What is stuck, after a tick that took so long."""
        frontend, counted = self._frontend, min(seconds, 2 * self._tick_s)
        has_work = bool(frontend.has_engine and frontend.num_open and not frontend.paused)
        # First: when all it has to do stands before a worker, the engine moves no more either.
        for worker, stall in zip(frontend.workers, self._workers, strict=True):
            is_behind = worker.is_behind(frontend.stats)
            if stall.add(counted, worker.num_signs, has_work=is_behind) >= self._timeout_s:
                return worker.name
        if self._engine.add(counted, frontend.num_signs, has_work=has_work) >= self._timeout_s:
            return "engine"
        return None
