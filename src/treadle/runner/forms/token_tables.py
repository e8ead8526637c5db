"""A slot for every position of every row: an edit of blocks becomes slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.kernels.contexts import TokenTables
from treadle.wire.plan import BlockEdit, RowWork


class TokenFiller:
    """Positions behind a row's blocks hold whatever they held."""

    def __init__(self, tables: TokenTables, block_size: int) -> None:
        self._tables = tables
        self._size = block_size

    def edit(self, row: int, edit: BlockEdit) -> None:
        blocks = np.array(edit.blocks, np.int32)[:, None]
        slots = blocks * self._size + np.arange(self._size, dtype=np.int32)
        start = edit.index * self._size
        self._tables.slots[row, start : start + slots.size] = slots.reshape(-1)

    def fill(self, works: Sequence[RowWork]) -> None:
        self._tables.lengths[: len(works)] = [work.start + work.num_tokens for work in works]
