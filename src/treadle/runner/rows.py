"""The row tables: what the runner remembers of each running request between steps.

A plan says only what changes; from the tables and the plan's works this module fills the flat
arrays of one step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from treadle.kernels.ops import KVSpec, StepInputs
from treadle.runner.forms.form import build_fillers
from treadle.wire.plan import RowWork


class LogitRows(NamedTuple):
    """The rows of logits of a step: work after work those that score, then those that are sampled
    from, then those of which only the likeliest token is wanted."""

    scoring: list[RowWork]
    sampling: list[RowWork]
    likeliest: list[RowWork]

    @property
    def num_scores(self) -> int:
        return sum(len(work.targets) for work in self.scoring)

    @property
    def num_logits(self) -> int:
        return self.num_scores + len(self.sampling)


def split(works: Sequence[RowWork], plain: Set[int]) -> LogitRows:
    """`plain` are the rows that want no more than the likeliest token."""
    chosen = [work for work in works if work.sample]
    return LogitRows(
        [work for work in works if work.targets],
        [work for work in chosen if work.row not in plain],
        [work for work in chosen if work.row in plain],
    )


class RowTables:
    """Block tables per KV group (they are the step inputs' own) and the token table: the newest
    sampled token of each row."""

    def __init__(self, inputs: StepInputs, specs: Sequence[KVSpec]) -> None:
        self._inputs = inputs
        self._block_sizes = [spec.block_size for spec in specs]
        self._fillers = build_fillers(inputs, specs)
        self._tokens = np.zeros(inputs.limits.rows, np.int32)

    def edit(self, work: RowWork) -> None:
        for edit in work.edits:
            end = edit.index + len(edit.blocks)
            self._inputs.tables[edit.group][work.row, edit.index : end] = edit.blocks
            if filler := self._fillers.get(edit.group):
                filler.edit(work.row, edit)

    def sampled(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        # A step in flight may compute one token more for a row that had NO_TOKEN; any will do.
        for row, token in zip(rows, tokens, strict=True):
            self._tokens[row] = max(token, 0)

    def fill(self, works: Sequence[RowWork], logit_rows: LogitRows) -> int:
        """Fill the step inputs; returns the number of tokens."""
        inputs = self._inputs
        num_rows = len(works)
        counts = [work.num_tokens for work in works]
        starts = list(itertools.accumulate(counts, initial=0))
        num_tokens = starts[-1]
        inputs.row_starts[: num_rows + 1] = starts
        inputs.table_rows[:num_rows] = [work.row for work in works]
        self._fill_tokens(works, starts)
        for filler in self._fillers.values():
            filler.fill(works)
        if num_tokens == num_rows:
            self._fill_single_places(works)
        else:
            self._fill_places(works, counts, starts)
        self._fill_logit_tokens(works, starts, logit_rows)
        return num_tokens

    def _fill_tokens(self, works: Sequence[RowWork], starts: Sequence[int]) -> None:
        ids, newest = self._inputs.token_ids, self._tokens
        for work, start in zip(works, starts, strict=False):
            if work.tokens is None:
                ids[start] = newest[work.row]
            else:
                ids[start : start + len(work.tokens)] = work.tokens

    def _fill_single_places(self, works: Sequence[RowWork]) -> None:
        """Positions and slots where each work is one token: an array operation each would take
        longer than all of this, as a forward pass leaves nothing of them in the caches."""
        inputs, count = self._inputs, len(works)
        inputs.positions[:count] = [work.start for work in works]
        for group, size in enumerate(self._block_sizes):
            block_at = inputs.tables[group].item
            inputs.slots[group][:count] = [
                block_at(work.row, work.start // size) * size + work.start % size for work in works
            ]

    def _fill_places(
        self, works: Sequence[RowWork], counts: Sequence[int], starts: Sequence[int]
    ) -> None:
        """Positions and slots."""
        positions = self._inputs.positions[: starts[-1]]
        positions[:] = np.arange(starts[-1], dtype=np.int32)
        offsets = [work.start - start for work, start in zip(works, starts, strict=False)]
        positions += np.repeat(np.array(offsets, np.int32), counts)
        rows = np.repeat(self._inputs.table_rows[: len(works)], counts)
        for group, size in enumerate(self._block_sizes):
            blocks = self._inputs.tables[group][rows, positions // size]
            blocks *= size
            blocks += positions % size
            self._inputs.slots[group][: len(positions)] = blocks

    def _fill_logit_tokens(
        self, works: Sequence[RowWork], starts: Sequence[int], logit_rows: LogitRows
    ) -> None:
        first = {work.row: start for work, start in zip(works, starts, strict=False)}
        wanted: list[int] = []
        for work in logit_rows.scoring:
            at = first[work.row] + work.score_at - work.start
            wanted += range(at, at + len(work.targets))
        for work in itertools.chain(logit_rows.sampling, logit_rows.likeliest):
            wanted.append(first[work.row] + work.num_tokens - 1)
        self._inputs.logit_tokens[: len(wanted)] = wanted
