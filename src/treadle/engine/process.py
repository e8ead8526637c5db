"""What runs in the engine's process: receive, step, send.

What a step does is `engine.loop`'s; how a child lives, `wire.child`'s.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from treadle.config.settings import EngineSettings
from treadle.errors import StartError
from treadle.wire.child import EXIT_FAILED, EXIT_NOT_STARTED, EXIT_ORPHANED, become_child, read_line
from treadle.wire.ends import EngineEnd, EngineEnds
from treadle.wire.messages import Bye, Done, Failed, FromEngine, Progress, Ready, Stats, ToEngine

STATS_EVERY_S = 0.2
"""Gauges are as old as this; what looks at them, an autoscaler say, looks less often."""


class Start(msgspec.Struct, frozen=True):
    """The one line that the parent writes."""

    settings: EngineSettings
    path: str
    ends: EngineEnds


class Engine(Protocol):
    """What the process asks of an engine."""

    @property
    def has_work(self) -> bool: ...

    def handle(self, message: ToEngine) -> None: ...

    def step(self) -> list[FromEngine]: ...

    def fail_all(self, message: str) -> list[FromEngine]: ...

    def stats(self) -> Stats: ...

    def ready(self) -> Ready: ...

    def warm(self) -> None: ...

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

    channel = EngineChannel(start.ends)
    try:
        engine = build(start.settings, Path(start.path), lambda ended: channel.send([ended]))
    except StartError as error:
        channel.send([Failed(request_id="", status=error.status, message=error.message)])
        channel.close()
        return EXIT_NOT_STARTED
    gc.freeze()  # what was made so far stays: no collection need look through it again
    channel.send([engine.ready(), engine.stats()])
    engine.warm()  # after the word: starting stays as quick
    try:
        return EngineService(engine, channel).run()
    finally:
        channel.close()
        engine.close()


def run(load: Callable[[], Build]) -> int:
    """The process's life. `load` does the expensive imports, before the parent says what to do."""
    become_child()
    build = load()
    line = read_line()
    if not line:
        return EXIT_ORPHANED
    return serve(msgspec.json.decode(line, type=Start), build)


def _load_build() -> Build:
    from treadle.engine.build import build_engine

    return build_engine


if __name__ == "__main__":
    sys.exit(run(_load_build))
