"""Writing to a client that has gone, before the server has been told."""

from __future__ import annotations

import asyncio
import logging
import socket
import types
from typing import Any, cast

import pytest

from treadle.server.sink import Sink


class Connection:
    on_room = None


async def transport_to(peer: socket.socket) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    reader, _ = await loop.connect_accepted_socket(asyncio.Protocol, peer)
    return cast("asyncio.Transport", reader)


def test_nothing_is_said_of_writes_to_who_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncio"):
        asyncio.run(write_to_who_has_gone())
    assert not caplog.records


async def write_to_who_has_gone() -> None:
    ours, theirs = socket.socketpair()
    transport = await transport_to(ours)
    cycle = types.SimpleNamespace(disconnected=False, chunked_encoding=True, transport=transport)
    flow = types.SimpleNamespace(write_paused=False)
    sink = Sink(cast("Any", cycle), cast("Any", flow), Connection())
    sink.write(b"heard")
    assert theirs.recv(64) == b"5\r\nheard\r\n"
    theirs.close()
    for _ in range(20):  # asyncio logs from the fifth on
        sink.write(b"unheard")
    assert transport.is_closing()
    transport.abort()
    await asyncio.sleep(0)
