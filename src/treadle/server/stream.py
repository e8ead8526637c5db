"""Server-sent events, and noticing that a client has gone, at any moment of its request.

A stream of events is pulled from a generator, or pushed: written when the engine's news come in,
by whoever brings them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.server.errors import error_body, error_response
from treadle.server.sink import Sink, sink_of
from treadle.text.choice import ChoiceDelta
from treadle.text.inbox import Inbox

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client closed its connection; nothing can be answered."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. If the client goes first, `work` is cancelled and ClientGone raised."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_until_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(value: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class EventStream(Response):
    """Streams `events`, and closes them however the response ends.

    The status waits for the first event, so that a request that fails before it is answered with
    an error status; later failures become one event, the last.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._events):
            with contextlib.suppress(ClientGone):
                await unless_gone(receive, self._deliver(scope, receive, send))

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._events)
        except TreadleError as error:
            await error_response(error)(scope, receive, send)
            return
        await _send_start(send, self)
        await _send_piece(send, first)
        try:
            async for piece in self._events:
                await _send_piece(send, piece)
        except TreadleError as error:
            await _send_piece(send, event(error_body(error)))
        await _send_end(send)


class Source(Protocol):
    """What a pushed stream tells. `tell` is called in order, and never for two at a time."""

    def open(self) -> AbstractContextManager[Inbox]: ...

    def tell(self, parts: list[ChoiceDelta]) -> bytes:
        """The events that tell these parts; there may be none."""
        ...

    def last(self) -> bytes:
        """What is told once all answers have ended."""
        ...


class PushedStream(Response):
    """Streams a source's events, and closes it however the response ends; status and failures as
    those of EventStream. A client that does not read holds up its own parts, which merge."""

    media_type = "text/event-stream"

    def __init__(self, source: Source, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self._source = source
        self.init_headers({**_HEADERS, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await unless_gone(receive, self._deliver(scope, receive, send))

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            with self._source.open() as inbox:
                piece = b""
                while not piece and inbox.num_open:
                    piece = self._source.tell(await inbox.take())
                begun = True
                await _send_start(send, self)
                await _send_piece(send, piece)
                await self._follow(inbox, sink_of(scope), send)
            piece = self._source.last()
        except TreadleError as error:
            if not begun:
                await error_response(error)(scope, receive, send)
                return
            piece = event(error_body(error))
        await _send_piece(send, piece)
        await _send_end(send)

    async def _follow(self, inbox: Inbox, sink: Sink | None, send: Send) -> None:
        if sink is not None and inbox.num_open:
            await self._push(inbox, sink)
        while inbox.num_open:
            await _send_piece(send, self._source.tell(await inbox.take()))

    async def _push(self, inbox: Inbox, sink: Sink) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell = self._source.tell

        def push() -> None:
            if sink.is_full or ended.done():
                return
            try:
                piece = tell(inbox.take_now())
            except Exception as error:
                ended.set_exception(error)
                return
            if piece:
                sink.write(piece)
            if not inbox.num_open:
                ended.set_result(None)

        sink.listen(push)
        try:
            inbox.listen(push)
            await ended
        finally:
            sink.listen(None)


async def _send_start(send: Send, response: Response) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )


async def _send_piece(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _send_end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
