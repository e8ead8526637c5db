"""An engine and the text sides that share it, in one process: what `LLM`, `AsyncLLM` and `Engine`
stand on.

    engine's thread    build ─▶ receive, step, send ─▶ …            (engine.process.EngineService)
    an event loop      Frontend: checks, detokenizes, wakes its consumers; one for each loop

Owns the threads, and who is told when they end. Never looks into requests.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from treadle.config.given import engine_settings
from treadle.config.settings import EngineSettings
from treadle.engine.build import build_engine
from treadle.engine.loop import Engine
from treadle.engine.loop_thread import LoopThread
from treadle.engine.process import EngineService
from treadle.errors import EngineError, StartError, TreadleError
from treadle.models.source import resolve_model
from treadle.text.frontend import Frontend
from treadle.text.load import ModelText, load_text
from treadle.text.observe import Observers
from treadle.wire.local import LocalChannel
from treadle.wire.messages import FromEngine, Progress, Ready


class Session:
    """Once closed, or after the engine failed, every call in progress and every later one raises.

    Of no use in a child that the process forks: threads do not survive that, so calls raise there.
    """

    engine: Engine
    text: ModelText
    ready: Ready

    def __init__(self, model: str | None, settings: Mapping[str, object]) -> None:
        """Without a model it is that of the settings' file, or the default. Raises StartError when
        the model, a setting or the machine does not fit."""
        resolved = engine_settings({"model": model, **settings})
        self.model = resolved.model.model
        path = resolve_model(self.model)
        self.startup: list[Progress] = []
        self._pid = os.getpid()
        self._channel = LocalChannel()
        self._frontends: dict[asyncio.AbstractEventLoop, Frontend] = {}
        self._lock = threading.RLock()
        self._loop: LoopThread | None = None
        self._end: TreadleError | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(resolved, path, started), name="treadle-engine", daemon=True
        )
        atexit.register(self.close)  # a daemon must not run while the interpreter is taken down
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self.stop()
            raise

    @property
    def end(self) -> TreadleError | None:
        """Why calls fail, once they do."""
        return self._end

    def require_open(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                "this engine was made before the process forked, and its threads are not in the "
                "child; make it in the child, or start children with 'spawn'"
            )
        if self._end is not None:
            raise self._end.with_traceback(None)  # raised many times

    def frontend(self) -> Frontend:
        """The text side of the running event loop."""
        loop = asyncio.get_running_loop()
        self.require_open()
        with self._lock:
            if loop not in self._frontends:
                for other in [other for other in self._frontends if other.is_closed()]:
                    del self._frontends[other]
                self._frontends[loop] = self._connect(loop)
            return self._frontends[loop]

    async def join(self) -> Frontend:
        return self.frontend()

    @property
    def loop(self) -> LoopThread:
        """An event loop for callers that have none."""
        self.require_open()
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread(self.require_open)
            return self._loop

    def everywhere(self, act: Callable[[Frontend], object]) -> None:
        """Have each text side do something in its own event loop, soon."""
        with self._lock:
            for loop, frontend in self._frontends.items():
                with contextlib.suppress(RuntimeError):  # closed
                    loop.call_soon_threadsafe(act, frontend)

    def stop(self, error: TreadleError | None = None) -> None:
        """End all calls with `error`, then the threads. Never waits, so any thread may call it,
        also the garbage collector in one."""
        if os.getpid() != self._pid or self._end is not None:
            return
        ended = self._end = error or EngineError("the engine is closed")
        self._channel.say_bye()
        self.everywhere(lambda frontend: frontend.fail(ended))
        if self._loop is not None:
            self._loop.stop()

    def close(self) -> None:
        """`stop`, and wait until threads and memory are given back."""
        self.stop()
        if os.getpid() != self._pid:
            return
        threads = [self._thread, *([self._loop.thread] if self._loop is not None else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _serve(self, settings: EngineSettings, path: Path, started: Future[None]) -> None:
        """The life of the engine's thread."""
        try:
            with ThreadPoolExecutor(1, "treadle-text-load") as beside:
                # The engine's loading leaves Python to others most of the time.
                text = beside.submit(_load_text, settings, path)
                try:
                    engine = build_engine(settings, path, self._report)
                    began = time.monotonic()
                    wait([text])
                    self._report(Progress("load tokenizer", time.monotonic() - began, "the rest"))
                except BaseException as error:
                    started.set_exception(error)
                    return
            with contextlib.closing(engine):
                self._run(engine, text, started)
        finally:
            atexit.unregister(self.close)

    def _run(self, engine: Engine, text: Future[ModelText], started: Future[None]) -> None:
        try:
            self.text = text.result()
            self.engine, self.ready = engine, engine.ready()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        service = EngineService(engine, self._channel)
        service.run()
        if service.failure is not None:
            self.stop(EngineError(service.failure))

    def _report(self, ended: Progress) -> None:
        if self._end is not None:
            raise StartError("the start was interrupted")
        self.startup.append(ended)

    def _connect(self, loop: asyncio.AbstractEventLoop) -> Frontend:
        def deliver(messages: list[FromEngine]) -> None:
            loop.call_soon_threadsafe(take, messages)

        def take(messages: list[FromEngine]) -> None:
            try:
                frontend.take(messages)
            except Exception as error:
                frontend.fail(EngineError(f"bug: {error!r}"))
                raise

        port = self._channel.connect(deliver)
        frontend = Frontend(
            port, [self.text.name], observer=Observers([]), announce=self.startup.append
        )
        frontend.set_text(self.text)
        frontend.take([self.ready])
        return frontend


def _load_text(settings: EngineSettings, path: Path) -> ModelText:
    with_defaults = settings.model.generation_config == "auto"
    return load_text(path, with_defaults=with_defaults, chat_template=settings.model.chat_template)
