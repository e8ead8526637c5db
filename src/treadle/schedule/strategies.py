"""The axes of scheduling: what each strategy is asked, and when. One small file a strategy.

    plan    composition ── gives running requests tokens ──▶ growth ─ no block ─▶ shortage
                │                                                                 who gives way?
                └──────── asks for waiting ones, in turn ──▶ entrance
                                                              ├─▶ order        who is next?
                                                              ├─▶ publication  does it come soon?
                                                              └─▶ admission    may it start now?
    settle  publication ── shows what was computed

A strategy settles its own axis and knows of no other. What all share stands in `running`. What most
strategies of an axis leave alone has its answer here.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def open(self, set_aside: int = 0) -> None:  # noqa: ARG002
        """A step begins to look at waiting requests: what was charged in the last is forgotten. So
        many tokens of running requests are in the step, and have no blocks yet."""
        return

    def admits(self, request: R_contra, match: KVMatch, num_tokens: int) -> bool:
        """`num_tokens` is what it would compute in this step at most."""
        ...

    def charge(self, request: R_contra, match: KVMatch, num_tokens: int) -> None:  # noqa: ARG002
        """It is admitted with `num_tokens`, and has no blocks for them yet; perhaps it does not
        start in this step after all."""
        return

    def goes_on(self, request: R_contra, num_tokens: int) -> int:  # noqa: ARG002
        """How many of `num_tokens` a running request may compute of its prompt in this step."""
        return num_tokens

    def went_on(self, request: R_contra, num_tokens: int) -> None:  # noqa: ARG002
        """It computes so many, for which it has blocks."""
        return

    def rest(self) -> None:
        """Nobody runs or waits."""
        return


class Shortage(Protocol[R]):
    """Who gives way when running requests do not find their blocks."""

    looks_ahead: bool = False
    """Whether `excess` is worth asking."""
    shows_kv: bool = True
    """Whether others may find what the victim had computed, and so the victim itself."""
    to_front: bool = True
    """Whether it waits before all others, or queues up anew."""

    def excess(self, wants: Sequence[tuple[R, int]]) -> R | None:  # noqa: ARG002
        """Before blocks are handed out: requests, and up to how many tokens they want KV. Who gives
        way so that there is enough for the rest? Asked until nobody must."""
        return None

    def victim(self, request: R) -> R | None:
        """This one finds no block. A running request, perhaps itself; None if nobody gives way."""
        ...


class Publication(Protocol[R_contra]):
    """When others find what a request computes."""

    @property
    def keeps_order(self) -> bool:
        """Whether those behind a postponed request wait with it."""
        ...

    def postpones(self, request: R_contra, num_matched: int, starting: Sequence[R_contra]) -> bool:
        """Whether a waiting request should wait for what another is about to show, one that runs or
        is `starting` in this step; it finds `num_matched` tokens now."""
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
