"""SGLang's new-token ratio: which share of what requests may generate they will, as expected."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.schedule.policy import Estimate
from treadle.schedule.ports import Schedulable


class NewTokenRatio:
    """Between `least` and 1. It falls while decoding finds its blocks, and is estimated anew when
    somebody had to give way."""

    def __init__(self, params: Estimate) -> None:
        self.initial = min(params.initial_ratio * params.conservativeness, 1.0)
        self.least = min(params.least_ratio * self.initial, 1.0)
        self.value = self.initial
        self._decay = (self.initial - self.least) / params.decay_steps
        self._headroom = params.headroom_tokens

    def decay(self) -> None:
        self.value = max(self.value - self._decay, self.least)

    def reset(self) -> None:
        self.value = self.initial

    def estimate(self, stay: Sequence[Schedulable]) -> None:
        """From those that stay; whatever it was before."""
        generated = sum(request.generated for request in stay)
        allowed = sum(request.max_tokens for request in stay)
        self.value = min(1.0, (generated + self._headroom * len(stay)) / (allowed + 1))
