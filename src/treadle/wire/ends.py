"""What either side asks of a channel, whatever carries it. Imports no transport: an engine in one's
own process needs none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from treadle.wire.messages import FromEngine, ToEngine


class Address(msgspec.Struct, frozen=True):
    """Where the text side listens, and the key that admits the engine."""

    url: str
    server_key: str
    """Public CURVE key: any local user could connect, but only the engine is told this."""


class Sender(Protocol):
    """What the text side sends through. `send` never blocks."""

    def send(self, messages: Sequence[ToEngine]) -> None: ...


class Channel(Sender, Protocol):
    """The text side's end."""

    async def run(self, take: Callable[[list[FromEngine]], None]) -> None:
        """Hand over what comes, frame by frame, for ever; ends by what `take` raises. Others in
        the event loop get their turn however much there is."""
        ...

    def close(self) -> None: ...


class EngineEnd(Protocol):
    """The engine's end. `receive` returns all that has arrived; with `block`, at least one."""

    def send(self, messages: Sequence[FromEngine]) -> None: ...

    def receive(self, *, block: bool) -> list[ToEngine]: ...
