"""Notices an engine that is alive and gets nowhere.

Work at hand and no sign of progress, for so long: then it is stuck. Time counts in ticks, so that a
machine that slept, or an event loop that was held up, is not taken for a stuck engine. Decides
only; what is done about it is the server's.
"""

from __future__ import annotations

import asyncio

from treadle.errors import EngineError
from treadle.text.frontend import Frontend

TICK_S = 1.0


class Watchdog:
    """Stuck for `timeout_s`, summed over ticks of which none counts more than twice its length."""

    def __init__(self, frontend: Frontend, timeout_s: float) -> None:
        self._frontend = frontend
        self._timeout_s = timeout_s
        self._tick_s = min(TICK_S, timeout_s / 4)
        self._seen = 0
        self._stuck_s = 0.0

    async def run(self) -> EngineError:
        """Watch until the engine is stuck; the error that says so."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._tick_s)
            now = loop.time()
            if self.tick(now - last):
                return EngineError(
                    f"the engine is stuck: no progress for {self._timeout_s:g} s with "
                    f"{self._frontend.num_open} answers to compute"
                )
            last = now

    def tick(self, seconds: float) -> bool:
        """Whether the engine is stuck, after a tick that took so long."""
        frontend = self._frontend
        moved = frontend.num_signs != self._seen
        self._seen = frontend.num_signs
        if moved or frontend.paused or not frontend.num_open or not frontend.has_engine:
            self._stuck_s = 0.0
        else:
            self._stuck_s += min(seconds, 2 * self._tick_s)
        return self._stuck_s >= self._timeout_s
