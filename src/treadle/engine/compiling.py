"""Requests whose grammar is being compiled: they stand before the scheduler, and harm nobody.

    accepted ── start ──▶ compiling ── take_ready ──▶ scheduler, or the gate while it is shut
                              └─ drop ─▶ the request left

Threads and caches are the compiler's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from treadle.engine.guide import Guide
from treadle.engine.request import Request
from treadle.errors import InvalidRequest, RequestError, TreadleError
from treadle.grammars.backends import refuse_none
from treadle.grammars.ports import Grammar
from treadle.wire.constraint import Constraint

IDLE_WAIT_S = 0.005
"""How long messages may go unread while nothing but a compilation is under way."""


class Compilation(Protocol):
    """See `grammars.compiler.Compiling`."""

    def poll(self) -> Grammar | None: ...
    def drop(self) -> None: ...


class Compiler(Protocol):
    """See `grammars.compiler.GrammarCompiler`."""

    def start(self, constraint: Constraint) -> Compilation: ...
    def warm(self) -> None: ...
    def close(self) -> None: ...


class Compiling:
    """In order of arrival. A request is here from `start` until it is taken or dropped."""

    def __init__(
        self,
        compiler: Compiler | None = None,
        news: threading.Event | None = None,
        *,
        expected: bool = False,
    ) -> None:
        """`news` is set when a compilation ends; without a compiler, constraints are refused.
        Only where they are expected is the library loaded before the first: it takes 50 MB for
        49,000 tokens, 190 MB for 262,000."""
        self._compiler = compiler
        self._expected = expected
        self._news = news or threading.Event()
        self._requests: dict[Request, Compilation] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    def start(self, request: Request, guide: Guide) -> None:
        """Raises what a grammar cannot be compiled for at all."""
        if self._compiler is None:
            raise InvalidRequest(refuse_none().message, param=guide.field)
        self._requests[request] = self._compiler.start(guide.constraint)

    def take_ready(self, *, idle: bool) -> list[tuple[Request, TreadleError | None]]:
        """Those whose grammar is there, or cannot be; the others stay. With nothing else to do,
        waits a little for one."""
        if not self._requests:
            return []
        if idle:
            self._news.wait(IDLE_WAIT_S)
        self._news.clear()  # before looking: what ends meanwhile is news
        ready = []
        for request, compilation in list(self._requests.items()):
            error = self._try_begin(request, compilation)
            if error is not None or (request.guide is not None and request.guide.is_ready):
                self.drop(request)
                ready.append((request, error))
        return ready

    def drop(self, request: Request) -> None:
        """The request does not wait here any more, if it did."""
        compilation = self._requests.pop(request, None)
        if compilation is not None:
            compilation.drop()

    def warm(self) -> None:
        """Have the grammar library loaded, if a constraint is expected."""
        if self._compiler is not None and self._expected:
            self._compiler.warm()

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()

    def _try_begin(self, request: Request, compilation: Compilation) -> TreadleError | None:
        guide = request.guide
        assert guide is not None
        try:
            grammar = compilation.poll()
            if grammar is not None:
                guide.begin(grammar)
        except RequestError as error:
            return InvalidRequest(f"{guide.field}: {error.message}", param=guide.field)
        except TreadleError as error:
            return error
        return None
