"""What the ends of channels are told and asked, whatever carries them. Imports no transport: an
engine in one's own process needs none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from treadle.wire.messages import FromEngine, ToEngine


class EngineEnds(msgspec.Struct, frozen=True):
    """The sockets that the engine inherits, by number."""

    text: int
    """To the text side."""
    workers: tuple[int, ...] = ()
    """To each process that makes texts."""


class WorkerStart(msgspec.Struct, frozen=True):
    """What a process that makes texts is told, and the sockets that it inherits, by number."""

    path: str
    engine: int
    text: int


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
