"""Server-sent events, and noticing that a client has gone, at any moment of its request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.server.errors import error_body, error_response

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


class EventStream(Response):
    """Streams `events`, and closes them however the response ends.

    The status waits for the first event, so that a request that fails before it is answered with
    an error status; later failures become one event, the last.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        always = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        self.init_headers({**always, **(headers or {})})

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
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _send_piece(send, first)
        try:
            async for piece in self._events:
                await _send_piece(send, piece)
        except TreadleError as error:
            await _send_piece(send, event(error_body(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_piece(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})
