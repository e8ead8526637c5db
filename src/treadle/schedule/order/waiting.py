"""The waiting queue, as the scheduler uses it, and what an order may look at.

    add, put_back ──▶ waiting ── candidates: one at a time, the preferred first ──▶ remove
                        ▲                       │
                        └──── passed over ──────┘

Whoever composes a step walks the candidates as far as it likes. It may remove the one that it
holds, which then starts, or go on to the one behind it, which leaves it waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, TypeVar

from treadle.schedule.ports import KVMatch, Schedulable

R = TypeVar("R", bound=Schedulable)


class Outlook(Protocol[R]):
    """What surrounds the waiting requests. Nothing is looked up before an order asks for it."""

    @property
    def running(self) -> Sequence[R]: ...
    @property
    def prefilled(self) -> int:
        """Tokens computed since the start, of all requests together, beside decodes."""
        ...

    def match(self, request: R) -> KVMatch:
        """What the cache has of a waiting request."""
        ...

    def path(self, request: R) -> Sequence[object]:
        """The same as the nodes of the index from its root on; empty where it is no tree."""
        ...


class WaitingOrder(Collection[R], Protocol[R]):
    """Requests that hold nothing yet; each is here at most once. As a collection they are in no
    order that means anything."""

    def add(self, request: R) -> None:
        """It arrives, or queues again behind all others."""
        ...

    def put_back(self, request: R) -> None:
        """It gave way while it ran, and is before all others where the order does not decide."""
        ...

    def remove(self, request: R) -> bool:
        """It starts, or has ended; whether it was there."""
        ...

    def candidates(self, outlook: Outlook[R]) -> Iterator[R]:
        """Those who wait, the preferred first. An earlier walk ends where a new one begins."""
        ...
