"""A child process: the parent's handle on it, and how the child lives.

The parent writes one line to the child's standard input and keeps the pipe open: its end is the
child's lifeline. What happens to requests is told on channels, never by exit codes alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

EXIT_FAILED = 1
"""The child raised while it served."""

EXIT_NOT_STARTED = 2
"""A setting, the machine or the model does not fit; the reason went over the channel."""

EXIT_ORPHANED = 3
"""The parent is gone."""

REAP_S = 5.0
"""How long a killed process may take to end."""

_PR_SET_PDEATHSIG = 1


class Child:
    """The parent's handle: the child never outlives the parent, nor `terminate`.

    To be created by a thread that lives as long as the process (Linux sends the child its death
    signal when that thread ends).
    """

    def __init__(self, module: str, inherits: Sequence[socket.socket]) -> None:
        """The child has its own copies of the sockets it inherits, under the same numbers."""
        # -P: a file in the current folder must not be taken for one of the child's imports.
        # The child's standard output goes to our standard error: ours is for answers.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=2,
            pass_fds=[end.fileno() for end in inherits],
        )

    def start(self, line: msgspec.Struct) -> None:
        """Say what to do. The child has been importing since it was created."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already; `wait` tells
            self._process.stdin.write(msgspec.json.encode(line) + b"\n")
            self._process.stdin.flush()

    async def wait(self) -> int:
        """The exit status, as soon as there is one; negative for a signal."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def watch() -> None:
            status = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop may be gone by now
                loop.call_soon_threadsafe(_settle, ended, status)

        threading.Thread(target=watch, name="child-watch", daemon=True).start()
        return await ended

    def dump_stacks(self) -> None:
        """Have it write to standard error what each of its threads does, if it still can."""
        self._process.send_signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """Kill at once, if it still lives, and reap."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # held by the kernel; init reaps it
            self._process.wait(REAP_S)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


def _settle(future: asyncio.Future[int], status: int) -> None:
    if not future.done():
        future.set_result(status)


def become_child() -> None:
    """To be called first: signals, and stacks on standard error when asked for or in a crash."""
    # A terminal or a service manager signals the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        # Holds even when this process is stopped or stuck; the lifeline covers the rest.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # works while Python hangs


def read_line() -> bytes:
    """What the parent says, unbuffered; empty when it is gone. From then on this process ends with
    its parent."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return b""
        line += piece
    threading.Thread(target=_watch_lifeline, name="lifeline", daemon=True).start()
    return line


def _watch_lifeline() -> None:
    while os.read(0, 1):
        pass
    os._exit(EXIT_ORPHANED)
