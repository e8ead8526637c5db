"""The channel between processes: one pair of connected sockets, and how messages travel on it.

A frame is a msgpack list of messages behind its length, so batching is the channel's affair and no
message has a twin for many. The pair is made by the parent and inherited: there is no address, so
no stranger can connect. Nobody ever waits for a slow reader: what its socket does not take waits
with the sender, without a limit, and nothing is dropped while both live. When one side dies, the
channel says nothing; whoever supervises the processes does.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from treadle.wire.ends import EngineEnds
from treadle.wire.messages import FromEngine, ToEngine
from treadle.wire.routes import ForWorker, Routes

Message = TypeVar("Message")

LINGER_S = 1.0
"""How long a closing process waits for its last frames to leave."""

FRAMES_AT_ONCE = 8
"""Taken in before the rest of the event loop gets its turn."""

_HEAD_BYTES = 4
_MOST_BYTES = 1 << 16
"""Of one read; more costs more memory than it saves calls."""


class Link:
    """One end of a pair of sockets: whole frames in and out, in order, never waiting. Once the
    other end is gone nothing comes, and what is sent is forgotten."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._read = bytearray()
        self._unsent = bytearray()
        self.is_open = True
        self.num_sent = 0
        """Frames; those that came are counted beside."""
        self.num_received = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, messages: Sequence[Any]) -> None:
        frame = msgspec.msgpack.encode(messages)
        self.num_sent += 1
        self._unsent += len(frame).to_bytes(_HEAD_BYTES, "little") + frame
        self.flush()

    def flush(self) -> None:
        """Send on, as far as the socket takes it."""
        try:
            while self._unsent and self.is_open:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False
        if not self.is_open:
            self._unsent.clear()

    def frames(self) -> Iterator[bytearray]:
        """Those that have arrived; more may come while they are taken."""
        while (frame := self._next()) is not None or self._fill():
            if frame is not None:
                self.num_received += 1
                yield frame

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> bytearray | None:
        read = self._read
        end = _HEAD_BYTES + int.from_bytes(read[:_HEAD_BYTES], "little")
        if len(read) < max(end, _HEAD_BYTES + 1):
            return None
        frame = read[_HEAD_BYTES:end]
        del read[:end]
        return frame

    def _fill(self) -> bool:
        """Whether anything was there."""
        try:
            data = self._socket.recv(_MOST_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.is_open &= bool(data)
        self._read += data
        return bool(data)


class TextChannel(Generic[Message]):
    """A channel's end in an event loop; `Message` is what comes.

    Frames are taken in the callback that the loop has for a readable socket: a task or a future for
    each would cost more than all else that a token costs here.
    """

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(
            list[incoming]
        )
        self.link = Link(end)
        self._reading: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.AbstractEventLoop | None = None

    def send(self, messages: Sequence[ToEngine]) -> None:
        self.link.send(messages)
        if self.link.has_unsent and self._writing is None:
            self._writing = asyncio.get_running_loop()
            self._writing.add_writer(self.link, self._flush)

    async def run(self, take: Callable[[list[Message]], None]) -> None:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()
        again: asyncio.Handle | None = None

        def look_again() -> None:
            nonlocal again
            again = None
            look()

        def look() -> None:
            nonlocal again
            if failed.done() or again is not None:
                return
            try:
                for number, frame in enumerate(self.link.frames(), 1):
                    take(self._decoder.decode(frame))
                    if number == FRAMES_AT_ONCE:
                        again = loop.call_soon(look_again)
                        return
            except Exception as error:
                failed.set_exception(error)
            if not self.link.is_open:
                self._stop_reading()

        self._reading = loop
        loop.add_reader(self.link, look)
        try:
            look()  # what was read along with an earlier frame is not told again
            await failed
        finally:
            self._stop_reading()

    def close(self) -> None:
        """The other side is gone or going: nothing is worth waiting for."""
        self._stop_reading()
        self._stop_writing()
        self.link.close()

    def _flush(self) -> None:
        self.link.flush()
        if not self.link.has_unsent:
            self._stop_writing()

    def _stop_reading(self) -> None:
        loop, self._reading = self._reading, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.link)

    def _stop_writing(self) -> None:
        loop, self._writing = self._writing, None
        if loop is not None and not loop.is_closed():
            loop.remove_writer(self.link)


class EngineChannel:
    """The engine's end, of the text side and of the processes that make texts for it, if there are
    any. Used by one thread only."""

    def __init__(self, ends: EngineEnds) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[ToEngine])
        self.text = Link(socket.socket(fileno=ends.text))
        self.workers = [Link(socket.socket(fileno=number)) for number in ends.workers]
        self._links = [self.text, *self.workers]
        self._routes = Routes(len(self.workers)) if self.workers else None

    def send(self, messages: Sequence[FromEngine]) -> None:
        if self._routes is None:
            self.text.send(messages)
            return
        told, by_worker = self._routes.part(messages)
        if told:
            self.text.send(told)
        self._tell_workers(by_worker)

    def receive(self, *, block: bool) -> list[ToEngine]:
        """All messages that have arrived; with `block`, waits for the first. Without the text side
        there is none to come: whoever watches over the process ends it."""
        messages: list[ToEngine] = []
        while True:
            for link in self._links:
                if link.has_unsent:
                    link.flush()
            for frame in self.text.frames():
                messages += self._decoder.decode(frame)
            if messages or not block:
                break
            wait(self._links, self.text)
        if self._routes is not None:
            self._tell_workers(self._routes.admit(messages))
        return messages

    def close(self) -> None:
        close_slowly(self._links)

    def _tell_workers(self, parcels: Sequence[Sequence[ForWorker]]) -> None:
        for link, parcel in zip(self.workers, parcels, strict=True):
            if parcel:
                link.send(parcel)


def wait(links: Sequence[Link], source: Link | None, seconds: float | None = None) -> None:
    """Until `source` has news, or one of the links takes what it has not taken yet."""
    poll = select.poll()
    for link in links:
        wanted = select.POLLOUT if link.has_unsent else 0
        if link is source and link.is_open:
            wanted |= select.POLLIN
        if wanted:
            poll.register(link, wanted)
    poll.poll(None if seconds is None else 1000 * seconds)


def close_slowly(links: Sequence[Link]) -> None:
    """Let the last frames leave, as long as it takes but no longer than it may."""
    end = time.monotonic() + LINGER_S
    while any(link.has_unsent for link in links) and time.monotonic() < end:
        wait(links, None, end - time.monotonic())
        for link in links:
            link.flush()
    for link in links:
        with contextlib.suppress(OSError):
            link.close()
