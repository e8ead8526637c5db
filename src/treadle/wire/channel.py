"""The channel between the text side and the engine: one ZMQ pair, and how messages travel on it.

A frame is a msgpack list of messages, so batching is the channel's affair and no message has a
twin for many. The text side binds, the engine connects. Queues are unbounded: the engine never
waits for a slow text side, and nothing is dropped while both live. When one side dies, the channel
says nothing; whoever supervises the processes does.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from treadle.wire.ends import Address
from treadle.wire.messages import FromEngine, ToEngine

LINGER_MS = 1000
"""How long a closing engine waits for its last frames to leave."""

FRAMES_AT_ONCE = 8
"""Taken in before the rest of the event loop gets its turn."""

HAS_ABSTRACT_NAMES = sys.platform == "linux"
"""Whether a local socket can have a name without a file."""


def encode(messages: Sequence[ToEngine] | Sequence[FromEngine]) -> bytes:
    return msgspec.msgpack.encode(messages)


class TextChannel:
    """The text side's end of a ZMQ channel. Binds at once; however the process ends, it leaves
    nothing in the file system.

    The event loop watches the socket's descriptor, and frames are taken in its callback: a task or
    a future for each would cost more than all else that a token costs here.
    """

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        _lift_limits(self._socket)
        public, secret = zmq.curve_keypair()
        self._socket.curve_secretkey = secret
        self._socket.curve_server = True
        self.address = Address(self._bind(), public.decode())
        self._look_again: Callable[[], object] | None = None

    def send(self, messages: Sequence[ToEngine]) -> None:
        try:
            self._socket.send(encode(messages), zmq.NOBLOCK)
        except zmq.Again:  # queues have no limit, so there is no engine: not yet, or not any more
            return
        if self._look_again is not None:
            self._look_again()  # sending may swallow the signal that something has come

    async def run(self, take: Callable[[list[FromEngine]], None]) -> None:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def look() -> None:
            if failed.done():
                return
            try:
                for _ in range(FRAMES_AT_ONCE):
                    take(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return  # the descriptor tells of what comes next
            except Exception as error:
                failed.set_exception(error)
            else:
                loop.call_soon(look)

        descriptor = int(self._socket.get(zmq.FD))
        self._look_again = functools.partial(loop.call_soon, look)
        loop.add_reader(descriptor, look)
        try:
            look()  # what came before is not told again
            await failed
        finally:
            self._look_again = None
            loop.remove_reader(descriptor)

    def close(self) -> None:
        self._socket.close(0)  # the engine is gone or going: nothing is worth waiting for
        self._context.term()

    def _bind(self) -> str:
        if HAS_ABSTRACT_NAMES:
            url = f"ipc://@treadle-{secrets.token_hex(16)}"
            try:
                self._socket.bind(url)
                return url
            except zmq.ZMQError:  # a sandbox may forbid them
                pass
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}"


class EngineChannel:
    """The engine's end. Used by one thread only."""

    def __init__(self, address: Address) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[ToEngine])
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        _lift_limits(self._socket)
        self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.curve_serverkey = address.server_key.encode()
        self._socket.connect(address.url)

    def send(self, messages: Sequence[FromEngine]) -> None:
        self._socket.send(encode(messages), zmq.NOBLOCK)

    def receive(self, *, block: bool) -> list[ToEngine]:
        """All messages that have arrived; with `block`, waits for the first."""
        messages: list[ToEngine] = []
        if block:
            self._socket.poll()
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages += self._decoder.decode(frame)

    def close(self) -> None:
        self._socket.close(LINGER_MS)
        self._context.term()


def _lift_limits(socket: zmq.Socket[Any]) -> None:
    socket.set_hwm(0)
