"""The row tables: what the runner remembers of each running request between steps.

A plan says only what changes; from the tables and the plan's works this module fills the flat
arrays of one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.kernels.ops import StepInputs
from treadle.wire.plan import RowWork


class RowTables:
    """Block tables per KV group (they are the step inputs' own) and the token table: the newest
    sampled token of each row."""

    def __init__(self, inputs: StepInputs, block_sizes: Sequence[int]) -> None:
        self._inputs = inputs
        self._block_sizes = block_sizes
        self._tokens = np.zeros(inputs.limits.rows, np.int32)

    def edit(self, work: RowWork) -> None:
        for edit in work.edits:
            end = edit.index + len(edit.blocks)
            self._inputs.tables[edit.group][work.row, edit.index : end] = edit.blocks

    def sampled(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        # A step in flight may compute one token more for a row that had NO_TOKEN; any will do.
        self._tokens[list(rows)] = np.maximum(tokens, 0)

    def fill(self, works: Sequence[RowWork]) -> tuple[int, int]:
        """Fill the step inputs; returns the numbers of tokens and of logit rows."""
        inputs = self._inputs
        num_rows = len(works)
        rows = np.array([work.row for work in works], np.int32)
        counts = np.array([work.num_tokens for work in works], np.int32)
        starts = inputs.row_starts[: num_rows + 1]
        np.cumsum(counts, out=starts[1:])
        num_tokens = int(starts[num_rows])
        inputs.table_rows[:num_rows] = rows
        self._fill_tokens(works, rows, starts)
        firsts = np.array([work.start for work in works], np.int32)
        positions = inputs.positions[:num_tokens]
        positions[:] = np.arange(num_tokens, dtype=np.int32)
        positions += np.repeat(firsts - starts[:-1], counts)
        self._fill_slots(np.repeat(rows, counts), num_tokens)
        return num_tokens, self._fill_logit_tokens(works, starts)

    def _fill_tokens(self, works: Sequence[RowWork], rows: np.ndarray, starts: np.ndarray) -> None:
        ids = self._inputs.token_ids
        ids[starts[:-1]] = self._tokens[rows]
        for work, start in zip(works, starts.tolist(), strict=False):
            if work.tokens is not None:
                ids[start : start + len(work.tokens)] = work.tokens

    def _fill_logit_tokens(self, works: Sequence[RowWork], starts: np.ndarray) -> int:
        """Work by work: the tokens whose logits score, then the one that is sampled from."""
        wanted = self._inputs.logit_tokens
        if not any(work.targets for work in works):
            sampling = np.array([work.sample for work in works], np.bool_)
            num_logits = int(np.count_nonzero(sampling))
            wanted[:num_logits] = starts[1:][sampling] - 1
            return num_logits
        num_logits = 0
        for work, start in zip(works, starts.tolist(), strict=False):
            first = start + work.score_at - work.start
            tokens = list(range(first, first + len(work.targets)))
            tokens += [start + work.num_tokens - 1] * work.sample
            wanted[num_logits : num_logits + len(tokens)] = tokens
            num_logits += len(tokens)
        return num_logits

    def _fill_slots(self, rows: np.ndarray, num_tokens: int) -> None:
        positions = self._inputs.positions[:num_tokens]
        for group, size in enumerate(self._block_sizes):
            blocks = self._inputs.tables[group][rows, positions // size]
            self._inputs.slots[group][:num_tokens] = blocks * size + positions % size
