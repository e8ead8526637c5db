"""The gate: whether steps start, and the requests that stand before it while they do not.

    open ──Pause wait──▶ draining ──the last inside ends──▶ shut
     │  ──Pause abort, keep─────────────────────────────────▶ │
     └◀───────────────────────Resume──────────────────────────┘

Requests that arrive while it is not open are held, and join the others with Resume. Decides about
nothing else: ending requests on "abort" is the loop's.
"""

from __future__ import annotations

from typing import Literal

from treadle.engine.request import Request


class Gate:
    """`held`, in order of arrival, is empty while the gate is open."""

    def __init__(self) -> None:
        self._state: Literal["open", "draining", "shut"] = "open"
        self.held: dict[Request, None] = {}
        self._calls: list[int] = []

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    @property
    def is_shut(self) -> bool:
        """No step starts."""
        return self._state == "shut"

    def shut(self) -> None:
        self._state = "shut"

    def drain(self, call: int) -> None:
        """Shut once the requests inside have ended; `call` is then answered."""
        self._calls.append(call)
        if self._state == "open":
            self._state = "draining"

    def drained(self) -> list[int]:
        """Nobody is inside any more: the calls that waited for it, once."""
        if self._state == "draining":
            self._state = "shut"
        calls, self._calls = self._calls, []
        return calls

    def reopen(self) -> tuple[list[Request], list[int]]:
        """The requests held, and the calls that will not see the others end."""
        self._state = "open"
        held, self.held = list(self.held), {}
        calls, self._calls = self._calls, []
        return held, calls
