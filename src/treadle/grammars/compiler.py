"""Constraints to grammars beside the engine's loop: a few threads, a cache, and limits.

    start(constraint) ─▶ Compiling ──poll() each round──▶ None · Grammar · raises RequestError
                                   └─drop()──────────────▶ this request does not wait any more

Requests with equal constraints wait for one compilation; what was refused is remembered like what
was compiled. Never touches requests.
"""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable

from treadle.errors import InvalidRequest, OverloadError, RequestError
from treadle.grammars.limits import CompilerLimits
from treadle.grammars.ports import Grammar, GrammarBackend
from treadle.wire.constraint import Constraint

_REFUSAL_BYTES = 4096
"""What remembering a refusal costs, roughly."""


class _Job:
    """One compilation, ahead, under way or done. `refusal` is set when it took too long."""

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[Grammar]
        self.num_waiting = 0
        self.began_s: float | None = None
        """When a thread took it up: what waits for a thread is not slow."""
        self.refusal: str | None = None

    @property
    def is_done(self) -> bool:
        return self.refusal is not None or self.future.done()

    @property
    def num_bytes(self) -> int:
        if self.refusal is not None or self.future.exception() is not None:
            return _REFUSAL_BYTES
        return self.future.result().num_bytes


class Compiling:
    """One request's wait for a grammar; `drop` is called exactly once, got or not."""

    def __init__(self, job: _Job, take_too_long: Callable[[_Job], None]) -> None:
        self._job = job
        self._take_too_long = take_too_long
        self._waits = True
        job.num_waiting += 1

    def poll(self) -> Grammar | None:
        """The grammar, None while it is compiled; raises what the compilation ended in."""
        job = self._job
        if not job.is_done:
            self._take_too_long(job)
        if job.refusal is not None:
            raise InvalidRequest(job.refusal)
        if not job.future.done():
            return None
        error = job.future.exception()
        if error is None:
            return job.future.result()
        if isinstance(error, InvalidRequest):
            raise InvalidRequest(error.message, param=error.param)
        raise error if isinstance(error, RequestError) else InvalidRequest(_failed(error))

    def drop(self) -> None:
        """A compilation that nobody waits for, and no thread has taken up, does not take place."""
        assert self._waits, "dropped twice"
        self._waits = False
        self._job.num_waiting -= 1
        if not self._job.num_waiting:
            self._job.future.cancel()


def _failed(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"the grammar library failed on this constraint: {lines[0]:.200}"


class GrammarCompiler:
    """Its methods are called by one thread, the engine's; only compilations run in others.

    `make_backend` imports the library and reads the vocabulary: it runs in the first compilation,
    or in `warm` before it.
    `wake` is called in a compilation's thread when it has ended.
    """

    def __init__(
        self,
        make_backend: Callable[[], GrammarBackend],
        limits: CompilerLimits | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_backend = make_backend
        self._limits = limits or CompilerLimits()
        self._wake = wake
        self._clock = clock
        self._threads = concurrent.futures.ThreadPoolExecutor(
            self._limits.num_threads, thread_name_prefix="grammar"
        )
        self._backend: GrammarBackend | None = None
        self._making = threading.Lock()
        self._jobs: collections.OrderedDict[Constraint, _Job] = collections.OrderedDict()
        """Least recently wanted first."""
        self._has_grown = False
        """Whether a job was added, or its size became known, since the limits were looked at."""

    @property
    def num_compiling(self) -> int:
        """Compilations ahead or under way."""
        return sum(not job.is_done for job in self._jobs.values())

    def start(self, constraint: Constraint) -> Compiling:
        """Wait for a constraint's grammar; a known one is there at the first poll."""
        job = self._jobs.get(constraint)
        if job is None or job.future.cancelled():
            if self.num_compiling >= self._limits.max_waiting:
                raise OverloadError(
                    f"{self._limits.max_waiting} grammars are being compiled or wait for it; "
                    "try again later"
                )
            job = _Job()
            job.future = self._threads.submit(self._compile, constraint, job)
            job.future.add_done_callback(self._note_end)
            self._jobs[constraint] = job
            self._has_grown = True
        self._jobs.move_to_end(constraint)
        if self._has_grown:
            self._has_grown = False
            self._forget()
        return Compiling(job, self._take_too_long)

    def warm(self) -> None:
        """Make the backend now, in a compilation's thread, rather than in the first compilation.
        What it fails with, that compilation meets again."""
        self._threads.submit(self._made_backend)

    def close(self) -> None:
        """Compilations under way end by themselves; none is waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: Constraint, job: _Job) -> Grammar:
        backend = self._made_backend()
        job.began_s = self._clock()
        return backend.compile(constraint)

    def _made_backend(self) -> GrammarBackend:
        with self._making:
            if self._backend is None:
                self._backend = self._make_backend()
            return self._backend

    def _note_end(self, _: concurrent.futures.Future[Grammar]) -> None:
        """In a compilation's thread."""
        self._has_grown = True
        self._wake()

    def _take_too_long(self, job: _Job) -> None:
        limit = self._limits.max_compile_s
        if job.began_s is not None and self._clock() - job.began_s > limit:
            job.refusal = f"compiling this constraint takes longer than {limit:g} seconds"

    def _forget(self) -> None:
        """Keep the cache within its limits."""
        idle = [key for key, job in self._jobs.items() if job.is_done and not job.num_waiting]
        for key in [key for key in idle if self._jobs[key].future.cancelled()]:
            idle.remove(key)
            del self._jobs[key]
        size = sum(self._jobs[key].num_bytes for key in idle)
        limits = self._limits
        for key in idle:
            if size <= limits.max_cached_bytes and len(self._jobs) <= limits.max_cached:
                break
            size -= self._jobs.pop(key).num_bytes
