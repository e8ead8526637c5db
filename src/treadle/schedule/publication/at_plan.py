"""Blocks are shown to others as soon as a step is to compute them, as vLLM does.

Within a step every layer writes the K and V of all rows before it reads any, and later steps run
behind it, so whoever finds a planned block reads what stands there by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.ports import Fence, Schedulable
from treadle.schedule.running import Running

R = TypeVar("R", bound=Schedulable)


class AtPlan(Generic[R]):
    """What is found is computed, or is in a step that is composed or in flight. Nobody waits."""

    keeps_order = True

    def __init__(self, running: Running[R], fence: Fence) -> None:
        self._running = running
        self._fence = fence

    def postpones(self, request: R, num_matched: int, starting: Sequence[R]) -> bool:  # noqa: ARG002
        return False

    def planned(self, request: R, start: int, end: int) -> None:  # noqa: ARG002
        """A block whose last token is in flight has no name yet; a later step shows it."""
        known = min(end, len(request.tokens))
        self._running.kv.show(request.lease, request.tokens, known)

    def undone(self, request: R, start: int, end: int) -> None:  # noqa: ARG002
        """Nobody has found it yet: who starts in a step does so when nobody gives way any more."""
        self._running.kv.hide(request.lease, request.tokens, start)

    def settled(self, request: R, end: int, *, decode: bool) -> None:
        """Only a window has something to do: it slides over what is computed."""
        kv = self._running.kv
        request.num_settled = end
        published = kv.publish(request.lease, request.tokens, end, decode=decode)
        if published.surplus:
            self._fence.defer(lambda: kv.free(published.surplus))

    def failed(self, request: R, start: int) -> None:
        self._running.kv.hide(request.lease, request.tokens, start)
