"""Where K and V of every block of every row lie in the pool: an edit of blocks becomes offsets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.kernels.contexts import BlockOffsets
from treadle.wire.plan import BlockEdit, RowWork


class OffsetFiller:
    """A block is 2 * layers halves long."""

    def __init__(self, offsets: BlockOffsets, layers: int) -> None:
        self._offsets = offsets
        self._halves = 2 * layers

    def edit(self, row: int, edit: BlockEdit) -> None:
        k = np.array(edit.blocks, np.int32) * self._halves
        end = edit.index + len(edit.blocks)
        self._offsets.offsets[row, :, edit.index : end] = k, k + 1

    def fill(self, works: Sequence[RowWork]) -> None:
        self._offsets.lengths[: len(works)] = [work.start + work.num_tokens for work in works]
