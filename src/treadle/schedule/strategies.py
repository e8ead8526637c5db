"""The axes of scheduling: what each strategy is asked, and when. One small file a strategy.

    plan    composition ── gives running requests tokens ──▶ growth ─ no block ─▶ shortage
                │                                                                 who gives way?
                └──────── asks for waiting ones, in turn ──▶ entrance
                                                              ├─▶ order        who is next?
                                                              ├─▶ publication  does it come soon?
                                                              └─▶ admission    may it start now?
    settle  publication ── shows what was computed

A strategy settles its own axis and knows of no other. What all share stands in `running`.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from treadle.schedule.draft import Draft
from treadle.schedule.ports import KVMatch, Schedulable

R = TypeVar("R", bound=Schedulable)
R_contra = TypeVar("R_contra", bound=Schedulable, contravariant=True)


class Composition(Protocol[R]):
    """Who computes how many tokens in a step."""

    def compose(self, draft: Draft[R]) -> None:
        """Add work to the draft, start waiting requests, and stop running ones if it must be."""
        ...


class Admission(Protocol[R_contra]):
    """Whether a waiting request may start now, by the KV it takes and will take."""

    def open(self) -> None:
        """A step begins to look at waiting requests: what was charged in the last is forgotten."""
        ...

    def admits(self, request: R_contra, match: KVMatch) -> bool: ...

    def charge(self, request: R_contra) -> None:
        """It was admitted, and has its blocks for this step."""
        ...


class Shortage(Protocol[R]):
    """Who gives way when a running request finds no block."""

    def victim(self, request: R) -> R | None:
        """A running request, perhaps this one; None if nobody gives way."""
        ...


class Publication(Protocol[R_contra]):
    """When others find what a request computes."""

    @property
    def keeps_order(self) -> bool:
        """Whether those behind a postponed request wait with it."""
        ...

    def postpones(self, request: R_contra, num_matched: int) -> bool:
        """Whether a waiting request should wait for what another is about to show; it finds
        `num_matched` tokens now."""
        ...

    def planned(self, request: R_contra, start: int, end: int) -> None:
        """Tokens from `start` to `end` were added to the step that is being composed."""
        ...

    def undone(self, request: R_contra, start: int, end: int) -> None:
        """They were taken out again."""
        ...

    def settled(self, request: R_contra, end: int, *, decode: bool) -> None:
        """Tokens up to `end` have KV; `decode` says that the last was sampled in this row."""
        ...

    def failed(self, request: R_contra, start: int) -> None:
        """Nothing came of the step for this row: what it wrote from `start` on is for nobody."""
        ...
