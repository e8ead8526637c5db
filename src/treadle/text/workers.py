"""Processes that make the texts of answers in the API's place: what they say, and how they are
seen from there."""

from __future__ import annotations

import msgspec

from treadle.text.choice import ChoiceDelta
from treadle.wire.messages import Failed, Progress, Stats


class Told(msgspec.Struct, tag=True):
    """Worker → API: the next part of an answer. Its index is for the API to say."""

    request_id: str
    part: ChoiceDelta
    early: bool
    """Whether the answer ends here and not in the engine, which is to be told."""


FromWorker = Told | Failed | Stats | Progress
"""Failed and Stats as the engine sent them. The only Progress says that it has loaded, and a Failed
of no request why it has not."""


class Worker:
    """One of them. It keeps up if it has handed on the engine's latest Stats, which come after all
    that the engine said before."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready = False
        self.num_signs = 0
        """Of life: frames that came from it."""
        self._steps = 0

    def handed_on(self, stats: Stats) -> None:
        self._steps = stats.steps

    def is_behind(self, stats: Stats | None) -> bool:
        return stats is not None and self._steps < stats.steps
