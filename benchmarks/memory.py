"""Memory of a process and all it starts, from its start on."""

from __future__ import annotations

import threading

from treadle.bench.startup import high_water, process_tree

INTERVAL_S = 0.25
"""The system keeps each process's peak, so that it is looked up seldom."""


class Watch:
    """The sum of each process's highest resident memory, as MiB; pages that processes share count
    in each of them. A process that ends counts as it was last seen."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Once the processes have worked, while they still run."""
        self._stop.set()
        self._thread.join()
        self._look()
        return sum(self._peaks.values()) / 2**20

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        for pid in process_tree(self._pid):
            peak = high_water(pid)
            if peak is not None:
                self._peaks[pid] = peak
