"""The blocks of a step's rows in one list, gathered anew for every step from the block tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from treadle.kernels.contexts import BlockLists, IntArray
from treadle.wire.plan import BlockEdit, RowWork


class ListFiller:
    """`table` is the runner's block table of the group, which knows of every edit."""

    def __init__(self, lists: BlockLists, table: IntArray, block_size: int) -> None:
        self._lists = lists
        self._table = table
        self._size = block_size

    def edit(self, row: int, edit: BlockEdit) -> None:
        """The block table has it."""

    def fill(self, works: Sequence[RowWork]) -> None:
        lists, size = self._lists, self._size
        lengths = [work.start + work.num_tokens for work in works]
        counts = [-(-length // size) for length in lengths]
        starts = list(itertools.accumulate(counts, initial=0))
        lists.starts[: len(starts)] = starts
        lists.last_counts[: len(works)] = [(length - 1) % size + 1 for length in lengths]
        for work, start, count in zip(works, starts, counts, strict=False):
            lists.blocks[start : start + count] = self._table[work.row, :count]
