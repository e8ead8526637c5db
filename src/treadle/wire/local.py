"""The channel between the engine and the text sides of one process: queues in memory.

Several text sides may share the engine, one for each event loop that asks it; each gets what its
own requests bring, and all get what concerns everybody. Messages pass as they are, neither copied
nor encoded: nobody changes one that was sent.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterable, Sequence

import msgspec

from treadle.errors import InvalidRequest
from treadle.wire.messages import (
    Abort,
    Bye,
    Delta,
    Done,
    Failed,
    FromEngine,
    Generate,
    Pause,
    ResetCache,
    Resume,
    ToEngine,
)

Deliver = Callable[[list[FromEngine]], None]
"""Takes messages over to a text side, without waiting for it. Called in the engine's thread; raises
RuntimeError once the text side is gone."""


class Port:
    """A text side's end."""

    def __init__(
        self, arrivals: queue.SimpleQueue[tuple[Port, Sequence[ToEngine]]], deliver: Deliver
    ) -> None:
        self._arrivals = arrivals
        self.deliver = deliver

    def send(self, messages: Sequence[ToEngine]) -> None:
        """Never blocks; any thread may call it, also the garbage collector in one."""
        self._arrivals.put((self, messages))


class LocalChannel:
    """The engine's end. Only its thread receives and sends; any thread may connect."""

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[tuple[Port, Sequence[ToEngine]]] = queue.SimpleQueue()
        self._ports: list[Port] = []
        self._owners: dict[str, Port] = {}
        self._calls: dict[int, tuple[Port, int]] = {}
        self._numbers = itertools.count()

    def connect(self, deliver: Deliver) -> Port:
        port = Port(self._arrivals, deliver)
        self._ports.append(port)
        return port

    def say_bye(self) -> None:
        """Have the engine end its requests, and its service."""
        self._arrivals.put((Port(self._arrivals, _ignore), [Bye()]))

    def receive(self, *, block: bool) -> list[ToEngine]:
        """All messages that have arrived; with `block`, waits for the first."""
        messages: list[ToEngine] = []
        try:
            while True:
                port, sent = self._arrivals.get(block and not messages)
                messages += self._admit(port, sent)
        except queue.Empty:
            return messages

    def send(self, messages: Sequence[FromEngine]) -> None:
        parcels: dict[Port, list[FromEngine]] = {}
        for message in messages:
            addressed, ports = self._address(message)
            for port in ports:
                parcels.setdefault(port, []).append(addressed)
        for port, parcel in parcels.items():
            self._deliver(port, parcel)

    def _admit(self, port: Port, messages: Sequence[ToEngine]) -> Iterable[ToEngine]:
        """What the engine is to see of a port's messages, whose answers will go to that port."""
        for message in messages:
            match message:
                case Generate(request_id=name) if name in self._owners:
                    error = InvalidRequest("this request id is in use", param="request_id")
                    self._deliver(port, [_refusal(name, error)])
                    continue
                case Generate(request_id=name):
                    self._owners[name] = port
                    yield message
                case Pause() | Resume() | ResetCache():
                    # Ports number their calls on their own.
                    number = next(self._numbers)
                    self._calls[number] = port, message.call
                    yield msgspec.structs.replace(message, call=number)
                case _:
                    yield message

    def _address(self, message: FromEngine) -> tuple[FromEngine, Sequence[Port]]:
        """The message as its receivers know it, and these."""
        match message:
            case Delta(request_id=name, finish=None):
                owner = self._owners.get(name)
            case Delta(request_id=name):
                owner = self._owners.pop(name, None)
            case Failed(request_id=name) if name:
                owner = self._owners.pop(name, None)
            case Done(call=number):
                owner, call = self._calls.pop(number)
                return msgspec.structs.replace(message, call=call), [owner]
            case _:
                return message, self._ports
        return message, [] if owner is None else [owner]

    def _deliver(self, port: Port, parcel: list[FromEngine]) -> None:
        try:
            port.deliver(parcel)
        except RuntimeError:  # its event loop is closed
            self._disconnect(port)

    def _disconnect(self, port: Port) -> None:
        port.deliver = _ignore
        if port in self._ports:
            self._ports.remove(port)
        port.send([Abort(name) for name, owner in self._owners.items() if owner is port])


def _ignore(parcel: list[FromEngine]) -> None:
    """For a text side that is gone."""


def _refusal(request_id: str, error: InvalidRequest) -> Failed:
    return Failed(
        request_id=request_id, status=error.status, message=error.message, param=error.param
    )
