"""Processes that each burn a core: what an engine shares its machine with, at its worst.

Owns the processes; measures nothing. They end with this process, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

_BURN = f"""
import os
while os.getppid() == {{parent}}:
    for _ in range({10**6}):
        pass
"""


class Burners:
    """They are stopped except within `burning`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Burners:
        command = [sys.executable, "-I", "-S", "-c", _BURN.format(parent=os.getpid())]
        for _ in range(self._count):
            self._processes.append(subprocess.Popen(command))  # noqa: S603 - arguments are ours
        self._send(signal.SIGSTOP)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    @contextmanager
    def burning(self) -> Iterator[None]:
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)
