"""An event loop in a thread of its own, for callers that have none.

They wait outside of it, so Ctrl-C interrupts the waiting and never what goes on inside, and it does
not matter whether the caller's thread runs a loop of its own (a notebook's does).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from treadle.errors import EngineError

T = TypeVar("T")


class LoopThread:
    """What was begun here has ended when the thread ends."""

    def __init__(self, require_open: Callable[[], None]) -> None:
        """`require_open` raises where nothing can be run any more."""
        self._require_open = require_open
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._awaited: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._live, name="treadle-text", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        return self._thread

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine and wait for it; it is cancelled if the caller is interrupted."""
        self._require_open()
        outcome: Future[T] = Future()
        self._awaited.add(outcome)
        try:
            self._hand_over(work, outcome)
            return outcome.result()
        except CancelledError:
            raise EngineError("the engine is closed") from None
        except BaseException:
            outcome.cancel()
            raise
        finally:
            self._awaited.discard(outcome)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of an asynchronous iterator. Closing it closes the source, without waiting."""
        try:
            while True:
                try:
                    yield self.run(lambda: _next_of(source))
                except _Exhausted:
                    return
        finally:
            # Perhaps the garbage collector's doing, in whatever thread: nothing may be waited for.
            self.begin(source.aclose)

    def begin(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine that nobody waits for; not at all if the loop has ended."""
        self._hand_over(work, Future())

    def stop(self) -> None:
        """End once all tasks have; they must be about to. Never waits."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_when_done)

    def _live(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            for outcome in list(self._awaited):  # handed over too late to be begun
                outcome.cancel()

    def _stop_when_done(self) -> None:
        for task in self._tasks:
            task.add_done_callback(lambda _: self._stop_when_done())
            return
        self._loop.stop()

    def _hand_over(self, work: Callable[[], Coroutine[Any, Any, T]], outcome: Future[T]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin, work, outcome)
        except RuntimeError:  # the loop has ended
            outcome.cancel()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]], outcome: Future[T]) -> None:
        if outcome.cancelled():
            return
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(done, outcome))
        outcome.add_done_callback(lambda outcome: self._cancel_too(task, outcome))

    def _end(self, task: asyncio.Task[T], outcome: Future[T]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            outcome.cancel()
        elif outcome.set_running_or_notify_cancel():
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

    def _cancel_too(self, task: asyncio.Task[T], outcome: Future[T]) -> None:
        if outcome.cancelled() and not task.done():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(task.cancel)


class _Exhausted(Exception):
    """The source has no further item. StopAsyncIteration cannot pass through a future."""


async def _next_of(source: AsyncGenerator[T, None]) -> T:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise _Exhausted from None
