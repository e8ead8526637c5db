"""The masks of a step: one row of bits for each constrained request that samples in it.

They are filled when the step before has settled, while the step's forward pass runs.
"""

from __future__ import annotations

import numpy as np

from treadle.engine.guide import only
from treadle.engine.request import Request
from treadle.sampling.masks import WORD_BITS, RowMasks
from treadle.schedule.draft import Flight


class StepMasks:
    """One buffer: a step's masks were read before those of the next are filled, since these depend
    on its tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // WORD_BITS)
        self._words = np.zeros((0, self._num_words), np.uint32)

    def of(self, flight: Flight[Request]) -> RowMasks | None:
        """None where nobody is constrained. A request that has ended, or whose token is known, is
        sampled for in vain."""
        works = [
            (request, work)
            for request, work in zip(flight.requests, flight.plan.work, strict=True)
            if work.sample and request.guide is not None and not request.finished
        ]
        if not works:
            return None
        if len(works) > len(self._words):
            self._words = np.zeros((2 * len(works), self._num_words), np.uint32)
        words = self._words[: len(works)]
        for row, (request, work) in zip(words, works, strict=True):
            assert request.guide is not None
            if work.output_index < request.num_output:
                # Penalties of the row count it, so it must be the same.
                only(request.tokens[request.num_prompt + work.output_index], row)
            else:
                request.guide.fill(row)
        return RowMasks([work.row for _, work in works], words)
