"""vLLM's admission: blocks are taken step by step, and a request starts once all of it fits now."""

from __future__ import annotations

from treadle.schedule.ports import KV, KVMatch, Schedulable


class Stepwise:
    """Nothing is set aside for the answer: when it finds no block, somebody gives way."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv

    def open(self) -> None:
        """Nothing was charged."""

    def admits(self, request: Schedulable, match: KVMatch) -> bool:
        return self._kv.fits(match, len(request.tokens))

    def charge(self, request: Schedulable) -> None:
        """What it takes now, it has; the rest is not thought of."""
