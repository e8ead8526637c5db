"""Writing a response's body from a callback, which ASGI's `send` cannot: it must be awaited, so a
task would have to wake for every token.

The connection offers a Sink with each request, as an extension of the ASGI scope. Start and end of
a response go through `send` as ever; an application that ignores the extension loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "treadle.sink"


class Writes(Protocol):
    """What becomes of a connection whose client reads again."""

    on_room: Callable[[], None] | None


class Sink:
    """Takes pieces of one response's body between its start and its end. Never waits: whoever
    writes while it is full makes the process keep what the client does not read."""

    def __init__(self, cycle: RequestResponseCycle, flow: FlowControl, connection: Writes) -> None:
        self._cycle = cycle
        self._flow = flow
        self._connection = connection

    @property
    def is_full(self) -> bool:
        return self._flow.write_paused

    def listen(self, on_room: Callable[[], None] | None) -> None:
        """Call `on_room` whenever the sink has been full and is not any more."""
        self._connection.on_room = on_room

    def write(self, piece: bytes) -> None:
        cycle = self._cycle
        # A failed write closes the transport at once, but the protocol is told only when the event
        # loop comes round: asyncio logs each write until then.
        if cycle.disconnected or cycle.transport.is_closing():
            return
        if cycle.chunked_encoding:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        cycle.transport.write(piece)


def sink_of(scope: Scope) -> Sink | None:
    """None where another server runs the application."""
    sink: Sink | None = scope.get("extensions", {}).get(EXTENSION)
    return sink
