"""Memory of a process and all it started, sampled while it works."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

INTERVAL_S = 0.05


class Watch:
    """The highest sum of resident memory seen so far, as MiB; pages that processes share count in
    each of them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self._peak_bytes / 2**20

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._peak_bytes = max(self._peak_bytes, sum(map(resident_bytes, tree(self._pid))))


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # gone meanwhile
                found += map(int, task.read_text().split())
    return found


def resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
