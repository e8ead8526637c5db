"""HTTP/1.1 for measuring: one request at a time on a connection, its answer's pieces handed on with
the time at which their bytes arrived.

On asyncio's protocols and the C parser that the server uses too, since general clients spend more
time per event than a fast engine does per token (docs/bench.md has the figures). Follows no
redirects and decodes no JSON.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httptools

from treadle.errors import InvalidRequest

Receive = Callable[[bytes, float], None]
"""A piece of the body, and when it came."""


def _ignore(piece: bytes, at: float) -> None:
    del piece, at


class Address:
    """Where a server is, and what every request to it says."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"{url}: an address is http://host:port or https://host:port")
        try:
            port = parts.port
        except ValueError:
            raise InvalidRequest(f"{url}: the port is no number up to 65535") from None
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.base = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self.base}"
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: treadle-bench\r\n"
        if api_key:
            if not api_key.isascii() or not api_key.isprintable():
                raise InvalidRequest("--api-key: a key is printable ASCII")
            self._head += f"Authorization: Bearer {api_key}\r\n"

    def request(self, path: str, body: bytes | None) -> bytes:
        """The bytes of a whole request: GET without a body, POST with one of JSON."""
        method = "GET" if body is None else "POST"
        head = f"{method} {self.base}{path} HTTP/1.1\r\n{self._head}"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode() + (body or b"")


class Connection(asyncio.Protocol):
    """At most one exchange is open; a connection that broke or was given up is never used again."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._reset(_ignore)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._status and not self._framed and exc is None:
            self._end(None)  # a body without length ends with its connection
        else:
            self._end(exc or ConnectionResetError("the server closed the connection"))

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, receive: Receive) -> int:
        """Send and wait for the whole answer; its status. Raises OSError when it breaks off."""
        assert self._transport is not None
        self._reset(receive)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            if not self._whole:
                self.close()
        return self._status

    @property
    def answered(self) -> bool:
        """Whether anything of an answer has come."""
        return self._began

    # What asyncio and the parser call:

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"not HTTP: {error}"))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        del value
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._receive(body, self._now)

    def on_message_complete(self) -> None:
        self._whole = True
        if not self._parser.should_keep_alive():
            self.close()
        self._end(None)

    def _reset(self, receive: Receive) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._receive = receive
        self._done = None
        self._status, self._now = 0, 0.0
        self._began = self._whole = self._framed = False

    def _end(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)


def reason_of(error: OSError) -> str:
    """In the system's words, where asyncio has put its own around them."""
    return str(error) if error.errno is None or error.errno < 0 else os.strerror(error.errno)


class Connections:
    """A pool for one address: as many connections as there are exchanges at once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []

    async def exchange(self, path: str, body: bytes | None, receive: Receive) -> int:
        """The answer's status. A connection that the server closed while idle is replaced."""
        request = self.address.request(path, body)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                try:
                    return await self._use(connection, request, receive)
                except OSError:
                    if connection.answered:
                        raise
        return await self._use(await self._connect(), request, receive)

    async def fetch(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """A whole answer: its status and its body."""
        pieces: list[bytes] = []
        status = await self.exchange(path, body, lambda piece, _: pieces.append(piece))
        return status, b"".join(pieces)

    async def warm(self, count: int) -> None:
        """Open connections ahead, so that no request's time holds the opening of one."""
        fresh = [await self._connect() for _ in range(count - len(self._idle))]
        self._idle += fresh

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        where = self.address
        _, connection = await loop.create_connection(
            Connection, where.host, where.port, ssl=where.tls
        )
        return connection

    async def _use(self, connection: Connection, request: bytes, receive: Receive) -> int:
        status = await connection.exchange(request, receive)
        if connection.usable:
            self._idle.append(connection)
        return status
