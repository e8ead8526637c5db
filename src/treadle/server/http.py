"""Connections: uvicorn's HTTP/1.1, and what it leaves open about clients that are slow, silent, too
many, half gone or eager to upgrade. Knows no route; never waits for a client without a limit.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from treadle.config.settings import ServerSettings
from treadle.server.errors import JSON, RETRY_AFTER_S, plain_error
from treadle.server.listen import BACKLOG
from treadle.server.sink import EXTENSION, Sink

MAX_HEAD_BYTES = 64 << 10

ACCEPT_BATCH = 16
"""Connections taken in one go. asyncio takes some batches before it has handed over the first, so
only small ones keep a flood from using up the process's files before anybody can refuse."""

RESERVED_FILES = 16 * ACCEPT_BATCH
"""Files for connections being taken and being refused, for the engine, and for the model."""

MOST_FILES = 1 << 16

LINGER_S = 2.0
"""How long a refused client may take to read why; closing while it still sends would destroy it."""

PROBE_S = 0.1
MAX_PROBE_S = 5.0

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")

Phase = Literal["head", "body", "answer", "idle", "linger"]


@dataclass(frozen=True)
class Limits:
    """What a connection may take of time, and all together of the process's files."""

    http_timeout_s: float
    keep_alive_s: float
    max_connections: int


class Http(uvicorn.Server):
    """uvicorn without its signal handling: what a signal means is decided elsewhere."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        limits = Limits(
            settings.http_timeout,
            settings.keep_alive_timeout,
            settings.max_connections or _what_files_allow(),
        )
        super().__init__(_Config(app, settings, limits))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio has made it as short as its batches

    async def on_tick(self, counter: int) -> bool:
        if counter % 5 == 0:
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Connection)
                connection.check_time()
        return await super().on_tick(counter)


class _Config(uvicorn.Config):
    def __init__(self, app: ASGIApp, settings: ServerSettings, limits: Limits) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=ACCEPT_BATCH,
        )
        # uvicorn's own timer forgets connections whose answer came before their request's end.
        self.timeout_keep_alive = settings.keep_alive_timeout  # type: ignore[assignment]
        self.limits = limits


class Connection(HttpToolsProtocol):
    """One client. In every phase but "answer" something ends it when the client does nothing."""

    def __init__(self, config: _Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._limits = config.limits
        self._phase: Phase = "head"
        self._since_s = self.loop.time()
        self._head_bytes = 0
        """As the parser tells of them; it tells of a header when it is whole."""
        self._unfinished_bytes = 0
        """Sent since the head began to be unfinished."""
        self._has_sent = False
        self._is_half_closed = False
        self._is_deaf = False
        """What comes now is not HTTP; the request before it still gets its answer."""
        self.on_room: Callable[[], None] | None = None
        """See Sink.listen."""

    def connection_made(self, transport: Any) -> None:
        others = len(self.connections)
        super().connection_made(transport)
        excess = others - self._limits.max_connections
        if excess >= ACCEPT_BATCH:
            transport.abort()  # so many cannot even be told
        elif excess >= 0 and not self._replace_idle():
            self._refuse(503, "there are too many connections; try again soon")

    def data_received(self, data: bytes) -> None:
        if self._phase == "linger" or self._is_deaf:
            return
        self._has_sent = True
        if self._phase == "idle":
            self._enter("head")
        elif self._phase == "body":
            self._since_s = self.loop.time()
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if self._head_bytes <= MAX_HEAD_BYTES:
                self._refuse_bytes()
        if max(self._head_bytes, self._unfinished_bytes) > MAX_HEAD_BYTES:
            self._refuse(431, f"the request's head is longer than {MAX_HEAD_BYTES} bytes")

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that sends no more may still read, if its request is whole. Whether it does, or
        has gone, only writing can tell. True keeps the connection open."""
        if self._phase != "answer" or self.scope["http_version"] != "1.1":
            return False
        if not self._is_half_closed:
            self._is_half_closed = True
            self.cycle.keep_alive = False
            self._probe(PROBE_S)
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._enter("head")
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():  # see _feed
            self._enter("body")
            self._unfinished_bytes = 0
            super().on_headers_complete()
            sink = Sink(self.cycle, self.flow, self)
            self.scope["extensions"] = {EXTENSION: sink}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._enter("idle" if self.cycle.response_complete else "answer")
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._phase == "answer" and not self.pipeline:
            self._enter("idle")
        super().on_response_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_room is not None:
            self.on_room()

    def check_time(self) -> None:
        """End the connection if its client has taken too long over what it does next."""
        if self._phase == "answer" or self.transport.is_closing():
            return
        if self._is_held_up():
            self._since_s = self.loop.time()
        passed_s, limits = self.loop.time() - self._since_s, self._limits
        if self._phase == "linger":
            if passed_s > LINGER_S:
                self.transport.abort()
        elif self._phase == "idle":
            if passed_s > limits.keep_alive_s:
                self.transport.close()
        elif passed_s > limits.http_timeout_s:
            if self._has_sent:
                self._refuse(408, f"no more of the {self._phase} came in {passed_s:.0f} s")
            else:
                self.transport.close()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since_s = self.loop.time()

    def _is_held_up(self) -> bool:
        """Whether it is we who do not read on, or still answer the request before."""
        if self._phase not in ("head", "body"):
            return False
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return (
            self.flow.read_paused or bool(self.pipeline) or (self._phase == "head" and is_answering)
        )

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too long")  # the parser stops

    def _feed(self, data: bytes) -> None:
        """Parse. An offer to speak another protocol is not taken: the head is read once more,
        without it, since the parser would not read the body of a request that has one."""
        self._unfinished_bytes += len(data) if self._phase == "head" else 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method = self.parser.get_method()
            if method == b"CONNECT":
                self._refuse(405, "CONNECT: this is no proxy")
                return
            lines = [method + b" " + self.url + b" HTTP/1.1"]
            lines += [
                name + b": " + value for name, value in self.headers if name not in _UPGRADE_HEADERS
            ]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"\r\n".join([*lines, b"", b""]) + data[offer.args[0] :])

    def _replace_idle(self) -> bool:
        """Close the connection that has been idle for longest, if there is one."""
        idle = [
            one
            for one in self.connections
            if isinstance(one, Connection) and one is not self and one.is_idle
        ]
        if not idle:
            return False
        min(idle, key=lambda one: one.idle_since_s).transport.close()
        return True

    @property
    def is_idle(self) -> bool:
        """Nothing has been asked, or all has been answered."""
        is_silent = self._phase == "head" and not self._has_sent
        return (self._phase == "idle" or is_silent) and not self.transport.is_closing()

    @property
    def idle_since_s(self) -> float:
        return self._since_s

    def _refuse(self, status: int, message: str) -> None:
        """Say why, and read no more."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:
                self.transport.abort()  # words would end up amid an answer
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = plain_error(status, message)
        head = [
            STATUS_LINE[status] + b"content-type: " + JSON.encode(),
            b"content-length: %d" % len(body),
            b"connection: close",
        ]
        if status == 503:
            head.append(b"retry-after: %d" % RETRY_AFTER_S)
        self.transport.write(b"\r\n".join([*head, b"", body]))
        self._enter("linger")
        self.transport.write_eof()

    def _refuse_bytes(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and not self.cycle.more_body and not self.pipeline:
            self._is_deaf = True
            self._enter("answer")
            self.cycle.keep_alive = False
        else:
            self._refuse(400, "this is not a valid HTTP request")

    def _probe(self, delay_s: float) -> None:
        """Send what means nothing, until the answer begins: one who has gone resets the
        connection, and that is a disconnect as any other."""
        if self.transport.is_closing() or self.cycle.response_started:
            return
        if not self.pipeline:
            self.transport.write(_CONTINUE)
        self.loop.call_later(delay_s, self._probe, min(2 * delay_s, MAX_PROBE_S))


def _what_files_allow() -> int:
    """The most connections for which there are files, once as many may be open as can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems have further limits
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(files - RESERVED_FILES, files // 2)
