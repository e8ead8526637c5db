"""Who is told what, where processes of their own make the texts. Decides only; sends nothing.

What concerns a request goes to the worker that has it, so that its parts and its end stay in order;
all else goes to the text side. Stats go to everybody: whoever hands them on shows that it lives.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from treadle.wire.messages import Delta, Failed, FromEngine, Generate, Stats, ToEngine

ForWorker = Generate | Delta | Failed | Stats
"""A Generate comes without what the engine alone reads, ahead of all else on its request."""


class Routes:
    """Each request has one worker, the next in turn, until its final message."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._turns = itertools.cycle(range(num_workers))
        self._workers: dict[str, int] = {}

    def admit(self, messages: Sequence[ToEngine]) -> list[list[ForWorker]]:
        """What each worker is to know of the messages that came for the engine."""
        parcels = self._parcels()
        for message in messages:
            if type(message) is Generate:
                worker = self._workers[message.request_id] = next(self._turns)
                known = msgspec.structs.replace(message, prompt=[], bad_words=[], constraint=None)
                parcels[worker].append(known)
        return parcels

    def part(
        self, messages: Sequence[FromEngine]
    ) -> tuple[list[FromEngine], list[list[ForWorker]]]:
        """What the text side is told, and each worker."""
        told: list[FromEngine] = []
        parcels = self._parcels()
        for message in messages:
            match message:
                case Delta(request_id=name, finish=None):
                    parcels[self._workers[name]].append(message)
                case Delta(request_id=name):
                    parcels[self._workers.pop(name)].append(message)
                case Failed(request_id=name) if name:
                    parcels[self._workers.pop(name)].append(message)
                case Stats():
                    told.append(message)
                    for parcel in parcels:
                        parcel.append(message)
                case _:
                    told.append(message)
        return told, parcels

    def _parcels(self) -> list[list[ForWorker]]:
        return [[] for _ in range(self._num_workers)]
