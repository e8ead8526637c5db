"""A server's life: accept connections, start the engine, serve, and end with everything.

    listen ─▶ engine process imports, loads ───────────────────▶ Ready ┐
           └▶ HTTP answers (503 while loading) ─▶ tokenizer, template ─┴▶ serving
    SIGTERM ─▶ refuse new requests ─▶ grace ─▶ Bye: the rest end with "abort" ─▶ exit 0
    engine, or a process that makes texts, dies or is stuck ─▶ every request gets an error ─▶ exit 1

Owns the event loop and the order of starting and stopping; never looks into requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from treadle.config.settings import Bounds, EngineSettings, ServerSettings
from treadle.errors import EngineError, OverloadError, TreadleError
from treadle.server.app import create_app
from treadle.server.http import Http
from treadle.server.http_metrics import HttpMetrics
from treadle.server.info import Configuration
from treadle.server.listen import url_of
from treadle.server.load_log import RequestLog, StatsLog
from treadle.server.log import adopt_libraries, say
from treadle.server.metrics import Metrics
from treadle.server.watchdog import Watchdog
from treadle.text.frontend import Frontend
from treadle.text.load import load_text
from treadle.text.observe import Observer, Observers
from treadle.text.workers import FromWorker, Worker
from treadle.wire.channel import TextChannel
from treadle.wire.child import EXIT_NOT_STARTED
from treadle.wire.messages import FromEngine, Progress, Ready

T = TypeVar("T")

LAST_WORDS_S = 2.0
"""How long the engine may take to end, and answers to leave, once nothing more is computed."""

ABORT_S = 0.5
"""How long request handlers may take once their connections are cut."""

FAREWELL_S = 0.2
"""How long after a process's exit its last messages may take to arrive."""


STACKS_S = 0.2
"""How long a stuck engine may take to write its stacks."""


class Processes(Protocol):
    """The processes behind the server, as their parent sees them; engine.crew.Crew."""

    end: socket.socket
    worker_ends: list[socket.socket]

    @property
    def names(self) -> list[str]:
        """The engine's, then those of the processes that make texts."""
        ...

    def start(self, settings: EngineSettings, path: Path) -> None: ...

    async def wait(self) -> tuple[str, int]:
        """The name and the exit status of the first that ends."""
        ...

    def dump_stacks(self) -> None: ...

    def terminate(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Launch:
    """What to serve, and where the parts that are not the server's come from."""

    settings: EngineSettings
    names: tuple[str, ...]
    """What the model is called; the first is its name in answers, the others are understood."""
    locate: Callable[[], Path]
    """Finds the model's file; may download it, so it runs beside the event loop."""
    processes: Processes
    server: ServerSettings


def run_server(listener: socket.socket, launch: Launch) -> int:
    """Serve until a signal or the engine's end; the exit status."""
    return asyncio.run(_run(listener, launch))


async def _run(listener: socket.socket, launch: Launch) -> int:
    adopt_libraries()
    server = _Server(listener, launch)
    try:
        return await server.run()
    finally:
        await server.close()


class _Server:
    """One reason ends it, the first that comes; no process behind it survives `close`."""

    def __init__(self, listener: socket.socket, launch: Launch) -> None:
        self._launch = launch
        self._url = url_of(listener)
        processes = launch.processes
        self._channel: TextChannel[FromEngine] = TextChannel(processes.end, FromEngine)
        self._worker_channels: list[TextChannel[FromWorker]] = [
            TextChannel(end, FromWorker) for end in processes.worker_ends
        ]
        self._metrics = Metrics(launch.names[0], launch.server.metrics_names)
        self._frontend = Frontend(
            self._channel,
            launch.names,
            observer=_observer(self._metrics, launch.server),
            announce=_say_progress,
            max_queued=launch.server.max_queued_requests,
            workers=[Worker(name) for name in processes.names[1:]],
        )
        configuration = Configuration(launch.settings, launch.server)
        app = create_app(self._frontend, self._metrics, configuration)
        self._http = Http(HttpMetrics(app, self._metrics.registry), launch.server)
        self._reason: asyncio.Future[Exception | None] = asyncio.Future()
        self._hurry = asyncio.Event()
        self._serving = self._spawn(self._http.serve([listener]))
        self._engine = self._spawn(self._follow_processes())
        works = (*self._listen(), self._start(), *self._regular(launch.server))
        self._others = [self._spawn(work) for work in works]

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        reason = await self._reason
        if reason is None:
            await self._drain()
            return 0
        error = reason if isinstance(reason, TreadleError) else EngineError(f"bug: {reason!r}")
        self._frontend.fail(error)
        say(error.message)
        if error is not reason:
            raise reason
        return 1

    async def close(self) -> None:
        """Let answers leave, then end everything, come what may."""
        self._http.should_exit = True
        await self._wait_for(self._serving, LAST_WORDS_S)
        self._launch.processes.terminate()
        self._frontend.fail(OverloadError("the server has stopped"))
        await asyncio.wait([self._serving], timeout=ABORT_S)  # let the errors leave
        for connection in list(self._http.server_state.connections):
            connection.transport.abort()  # its client does not read; its request ends as gone
        self._http.force_exit = True
        await asyncio.wait([self._serving], timeout=ABORT_S)
        for ended in (self._serving, self._engine, *self._others):
            ended.cancel()
        self._channel.close()
        for channel in self._worker_channels:
            channel.close()

    def _listen(self) -> Iterator[Coroutine[Any, Any, None]]:
        frontend = self._frontend
        yield frontend.run(self._channel)
        for worker, channel in zip(frontend.workers, self._worker_channels, strict=True):
            yield channel.run(functools.partial(frontend.take_told, worker))

    def _regular(self, settings: ServerSettings) -> Iterator[Coroutine[Any, Any, None]]:
        """What is done now and then for as long as the server lives."""
        if settings.watchdog_timeout:
            yield self._watch(settings.watchdog_timeout)
        if settings.queue_timeout:
            limit = settings.queue_timeout
            yield _every(min(1.0, limit / 4), lambda: self._frontend.expire(limit))
        if settings.log_stats_interval:
            log = StatsLog()
            yield _every(settings.log_stats_interval, lambda: log.tick(self._frontend.stats))

    async def _watch(self, timeout_s: float) -> None:
        stuck = await Watchdog(self._frontend, timeout_s).run()
        self._frontend.fail(stuck)
        self._launch.processes.dump_stacks()
        await asyncio.sleep(STACKS_S)
        raise stuck

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._end(error)

    def _end(self, reason: Exception | None) -> None:
        if not self._reason.done():
            self._reason.set_result(reason)

    def _on_signal(self) -> None:
        if self._reason.done():
            self._hurry.set()
        self._end(None)

    async def _start(self) -> None:
        launch = self._launch
        path = await _in_thread(launch.locate)
        bounds = Bounds(launch.server.max_queued_requests, launch.server.running_timeout)
        settings = msgspec.structs.replace(launch.settings, bounds=bounds)
        launch.processes.start(settings, path)
        model = launch.settings.model
        text = await _in_thread(
            lambda: load_text(
                path,
                with_defaults=model.generation_config == "auto",
                chat_template=model.chat_template,
            )
        )
        self._frontend.set_text(text)
        ready = await self._frontend.ready()
        self._metrics.watch(ready, lambda: self._frontend.stats)
        for line in summary(ready):
            say(line)
        if text.sampling_defaults:
            shown = ", ".join(f"{name} {value}" for name, value in text.sampling_defaults.items())
            say(f"the model's own sampling defaults: {shown} (--generation-config none: ours)")
        # What was made so far stays: no collection need look through it again.
        gc.freeze()
        say(f"serving {launch.names[0]} at {self._url}")

    async def _follow_processes(self) -> None:
        name, status = await self._launch.processes.wait()
        # It may have said why, and to whom; what it sent last is still on its way.
        if status == EXIT_NOT_STARTED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._frontend.ready(), LAST_WORDS_S)  # raises it
        else:
            await asyncio.sleep(FAREWELL_S)
        error = EngineError(f"the {name}'s process ended ({_describe(status)})")
        self._frontend.fail(error)
        raise error

    async def _drain(self) -> None:
        """Refuse new requests; give those running their grace, then have the engine end them.
        Connections are taken until then, so that whoever comes is told, and health with them."""
        grace_s, loop = self._launch.server.shutdown_timeout, asyncio.get_running_loop()
        end = loop.time() + grace_s
        self._frontend.refuse(OverloadError("the server is shutting down"))
        if self._frontend.num_open:
            say(f"stopping; {self._frontend.num_open} answers may take {grace_s:g} s")
            await self._wait_for(self._spawn(self._frontend.finish()), grace_s)
        self._http.should_exit = True
        await self._wait_for(self._serving, max(end - loop.time(), 0.0))
        if self._frontend.has_engine:
            self._frontend.say_bye()
            await self._wait_for(self._engine, LAST_WORDS_S)

    async def _wait_for(self, task: asyncio.Task[None], seconds: float) -> None:
        """Until the task ends or time is up, or a second signal says that nobody wants to wait."""
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((task, hurry), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()


def summary(ready: Ready) -> list[str]:
    """The few values that most people ask about."""
    values = ready.resolved
    return [
        f"window {ready.max_model_len} tokens, {values['max_num_seqs']} requests at once, at most"
        f" {values['max_num_batched_tokens']} tokens a step",
        f"KV of {ready.kv_capacity_tokens} tokens as {values['kv_dtype']} in blocks of"
        f" {values['block_size']}, prefix cache {values['prefix_cache']}",
        f"preset {values['preset']}; treadle explain, or /server_info, says why",
    ]


def _observer(metrics: Metrics, settings: ServerSettings) -> Observer:
    return Observers([metrics, RequestLog()]) if settings.log_requests else metrics


async def _every(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        work()


async def _in_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but nothing waits for the thread when the server ends first."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not outcome.done():
            set_outcome()

    def run() -> None:
        try:
            set_outcome = functools.partial(outcome.set_result, work())
        except Exception as error:
            set_outcome = functools.partial(outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, set_outcome)

    threading.Thread(target=run, daemon=True).start()
    return await outcome


def _describe(status: int) -> str:
    if status < 0:
        return f"killed by signal {-status}"
    return f"exit status {status}"


def _say_progress(progress: Progress) -> None:
    detail = f": {progress.detail}" if progress.detail else ""
    say(f"{progress.phase} {progress.seconds:.2f} s{detail}")
