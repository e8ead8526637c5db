"""vLLM's admission: blocks are taken step by step, and a request starts once all of it fits now."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule import policy
from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission

R = TypeVar("R", bound=Schedulable)


class Stepwise(Admission[R]):
    """Nothing is set aside for the answer: when it finds no block, somebody gives way."""

    def __init__(self, running: Running[R], params: policy.Stepwise) -> None:
        self._running = running
        self._params = params
        self._spare = [int(params.watermark * count) for count in running.kv.num_blocks]

    def admits(self, request: R, match: KVMatch, num_tokens: int) -> bool:
        kv, whole = self._running.kv, self._params.whole_prompt
        tokens = len(request.tokens) if whole else match.num_tokens + num_tokens
        if not self._running.requests or not any(self._spare):
            return kv.fits(match, tokens)
        parts = zip(kv.price(match, tokens), self._spare, kv.available, strict=True)
        return all(price + spare <= available for price, spare, available in parts)
