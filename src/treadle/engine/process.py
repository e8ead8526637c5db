"""The engine's process: the parent's handle on it, and what runs in it.

The parent writes one line to the child's standard input, a `Start`, and keeps the pipe open: its
end is the child's lifeline. What happens to requests is told on the channel, never by exit codes
alone. The loop here only receives, steps and sends; what a step does is `engine.loop`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from treadle.config.settings import EngineSettings
from treadle.errors import StartError
from treadle.wire.ends import Address, EngineEnd
from treadle.wire.messages import Bye, Done, Failed, FromEngine, Progress, Ready, Stats, ToEngine

STATS_EVERY_S = 0.2
"""Gauges are as old as this; what looks at them, an autoscaler say, looks less often."""

EXIT_FAILED = 1
"""The engine raised while it served."""

EXIT_NOT_STARTED = 2
"""A setting, the machine or the model does not fit; the reason went over the channel."""

EXIT_ORPHANED = 3
"""The parent is gone."""

REAP_S = 5.0
"""How long a killed process may take to end."""

_PR_SET_PDEATHSIG = 1


class Start(msgspec.Struct, frozen=True):
    """The one line that the parent writes."""

    settings: EngineSettings
    path: str
    address: Address


class EngineProcess:
    """The parent's handle: the child never outlives the parent, nor `terminate`.

    To be created by a thread that lives as long as the process (Linux sends the child its death
    signal when that thread ends).
    """

    def __init__(self, module: str = "treadle.engine.process") -> None:
        # -P: a file in the current folder must not be taken for one of the engine's imports.
        # The child's standard output goes to our standard error: ours is for answers.
        command = [sys.executable, "-P", "-m", module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2)  # noqa: S603

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, settings: EngineSettings, path: Path, address: Address) -> None:
        """Say what to serve. The child has been importing since it was created."""
        line = msgspec.json.encode(Start(settings, str(path), address)) + b"\n"
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already; `wait` tells
            self._process.stdin.write(line)
            self._process.stdin.flush()

    async def wait(self) -> int:
        """The exit status, as soon as there is one; negative for a signal."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def watch() -> None:
            status = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop may be gone by now
                loop.call_soon_threadsafe(_settle, ended, status)

        threading.Thread(target=watch, name="engine-watch", daemon=True).start()
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


class Engine(Protocol):
    """What the process asks of an engine."""

    @property
    def has_work(self) -> bool: ...

    def handle(self, message: ToEngine) -> None: ...

    def step(self) -> list[FromEngine]: ...

    def fail_all(self, message: str) -> list[FromEngine]: ...

    def stats(self) -> Stats: ...

    def ready(self) -> Ready: ...

    def close(self) -> None: ...


Build = Callable[[EngineSettings, Path, Callable[[Progress], None]], Engine]


class EngineService:
    """Serves one channel with one engine; every request the engine holds is answered."""

    def __init__(self, engine: Engine, channel: EngineEnd) -> None:
        self._engine = engine
        self._channel = channel
        self._stats_at = 0.0
        self.failure: str | None = None
        """What ended the service, where that was a failure."""

    def run(self) -> int:
        """Serve until Bye or failure; the exit status."""
        try:
            stopping = False
            while not stopping or self._engine.has_work:
                stopping |= self._turn()
        except Exception as error:
            traceback.print_exc()
            self.failure = f"the engine failed: {str(error) or type(error).__name__}"
            self._send(self._engine.fail_all(self.failure))
            return EXIT_FAILED
        return 0

    def _turn(self) -> bool:
        """Receive, step, send; whether a Bye came."""
        was_busy = self._engine.has_work
        messages = self._channel.receive(block=not was_busy)
        for message in messages:
            self._engine.handle(message)
        news = self._engine.step()
        # Stats first: whoever sees the end of an answer finds it counted.
        is_asked = any(isinstance(message, Done) for message in news)
        due = self._due_stats(was_busy=was_busy or bool(messages), is_asked=is_asked)
        self._send([*due, *news])
        return any(isinstance(message, Bye) for message in messages)

    def _send(self, messages: Sequence[FromEngine]) -> None:
        if messages:
            self._channel.send(messages)

    def _due_stats(self, *, was_busy: bool, is_asked: bool) -> list[Stats]:
        """Whoever had the engine pause or go on finds it told as well."""
        became_idle = was_busy and not self._engine.has_work
        now = time.monotonic()
        if not (became_idle or is_asked) and now - self._stats_at < STATS_EVERY_S:
            return []
        self._stats_at = now
        return [self._engine.stats()]


def serve(start: Start, build: Build) -> int:
    """Build the engine and serve until told to stop; the exit status."""
    from treadle.wire.channel import EngineChannel  # an engine in the caller's process needs none

    channel = EngineChannel(start.address)
    try:
        engine = build(start.settings, Path(start.path), lambda ended: channel.send([ended]))
    except StartError as error:
        channel.send([Failed(request_id="", status=error.status, message=error.message)])
        channel.close()
        return EXIT_NOT_STARTED
    gc.freeze()  # what was made so far stays: no collection need look through it again
    channel.send([engine.ready(), engine.stats()])
    try:
        return EngineService(engine, channel).run()
    finally:
        channel.close()
        engine.close()


def run(load: Callable[[], Build]) -> int:
    """The process's life. `load` does the expensive imports, before the parent says what to do."""
    _obey_parent_only()
    _tell_stacks()
    build = load()
    line = _read_line()
    if not line:
        return EXIT_ORPHANED
    _watch_lifeline()
    return serve(msgspec.json.decode(line, type=Start), build)


def _obey_parent_only() -> None:
    # A terminal or a service manager signals the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        # Holds even when this process is stopped or stuck; the lifeline covers the rest.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _tell_stacks() -> None:
    """To standard error: when asked, and when the process crashes. Works while Python hangs."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)


def _read_line() -> bytes:
    """The first line of standard input, unbuffered; empty when the parent is gone."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return b""
        line += piece
    return line


def _watch_lifeline() -> None:
    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _load_build() -> Build:
    from treadle.engine.build import build_engine

    return build_engine


if __name__ == "__main__":
    sys.exit(run(_load_build))
