"""Each form of the context, filled from random plans, against a naive walk over blocks."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from treadle.kernels.contexts import BlockLists, BlockOffsets, ContextForm, TokenTables
from treadle.kernels.ops import KVSpec, StepInputs, StepLimits
from treadle.runner.rows import RowTables, split
from treadle.wire.plan import BlockEdit, RowWork

ROWS, POSITIONS, NUM_BLOCKS = 6, 60, 500
SPECS = [KVSpec(3, 1, 8, 4, "f32"), KVSpec(1, 1, 8, 1, "f32")]


class Desk:
    """Random rows that grow, are taken by others, and have blocks changed behind them."""

    def __init__(self, form: ContextForm, seed: int) -> None:
        self.rng = random.Random(seed)
        blocks = tuple(-(-POSITIONS // spec.block_size) for spec in SPECS)
        self.inputs = StepInputs(
            StepLimits(ROWS * POSITIONS, ROWS, blocks, context_form=form, row_tokens=POSITIONS)
        )
        self.tables = RowTables(self.inputs, SPECS)
        self.blocks: list[list[list[int]]] = [[[] for _ in SPECS] for _ in range(ROWS)]
        self.lengths = [0] * ROWS

    def step(self) -> list[RowWork]:
        works = [self._work(row) for row in self.rng.sample(range(ROWS), self.rng.randint(1, ROWS))]
        for work in works:
            self.tables.edit(work)
        self.tables.fill(works, split(works, set()))
        return works

    def _work(self, row: int) -> RowWork:
        if self.lengths[row] > POSITIONS - 10 or self.rng.random() < 0.1:
            self.blocks[row], self.lengths[row] = [[] for _ in SPECS], 0
        start = self.lengths[row]
        end = self.lengths[row] = start + self.rng.choice([1, 1, 2, 9])
        edits = [self._edit(row, group, end) for group in range(len(SPECS))]
        return RowWork(
            row=row,
            start=start,
            tokens=[5] * (end - start),
            edits=[edit for edit in edits if edit.blocks],
            sample=False,
            output_index=0,
        )

    def _edit(self, row: int, group: int, end: int) -> BlockEdit:
        """What is missing, and sometimes the last block anew."""
        mine = self.blocks[row][group]
        index = max(len(mine) - (self.rng.random() < 0.2), 0)
        count = max(-(-end // SPECS[group].block_size) - index, 0)
        new = [self.rng.randrange(NUM_BLOCKS) for _ in range(count)]
        mine[index : index + count] = new
        return BlockEdit(group, index, new)

    def walk(self, work: RowWork, group: int) -> list[tuple[int, int]]:
        """(block, place) of each position of the work's context."""
        size = SPECS[group].block_size
        end = work.start + work.num_tokens
        return [(self.blocks[work.row][group][p // size], p % size) for p in range(end)]


@pytest.mark.parametrize("form", get_args(ContextForm))
@pytest.mark.parametrize("seed", range(3))
def test_every_form_says_where_every_position_lies(form: ContextForm, seed: int) -> None:
    desk = Desk(form, seed)
    for _ in range(40):
        works = desk.step()
        for group in range(len(SPECS)):
            for at, work in enumerate(works):
                assert found(desk.inputs, group, at) == desk.walk(work, group)
                check_written(desk, works, at, group)


def found(inputs: StepInputs, group: int, at: int) -> list[tuple[int, int]]:
    """What the form says of row `at` of the step."""
    size, layers = SPECS[group].block_size, SPECS[group].layers
    row = inputs.table_rows[at]
    match inputs.contexts[group]:
        case TokenTables(slots, lengths):
            return [divmod(int(slot), size) for slot in slots[row, : lengths[at]]]
        case BlockLists(starts, blocks, last_counts):
            mine = blocks[starts[at] : starts[at + 1]].tolist()
            counts = [size] * (len(mine) - 1) + [int(last_counts[at])]
            return [(b, p) for b, count in zip(mine, counts, strict=True) for p in range(count)]
        case BlockOffsets(offsets, lengths):
            k, v = offsets[row].tolist()
            places = [(k[p // size], v[p // size], p % size) for p in range(lengths[at])]
            assert all(b == a + 1 and a % (2 * layers) == 0 for a, b, _ in places)
            return [(a // (2 * layers), place) for a, _, place in places]
        case None:
            table = inputs.tables[group][row]
            end = int(inputs.positions[inputs.row_starts[at + 1] - 1]) + 1
            return [(int(table[p // size]), p % size) for p in range(end)]


def check_written(desk: Desk, works: list[RowWork], at: int, group: int) -> None:
    """Slots, positions and row starts are the same for every form."""
    inputs, work, size = desk.inputs, works[at], SPECS[group].block_size
    start = sum(each.num_tokens for each in works[:at])
    assert inputs.row_starts[at : at + 2].tolist() == [start, start + work.num_tokens]
    new = desk.walk(work, group)[work.start :]
    span = slice(start, start + work.num_tokens)
    assert inputs.slots[group][span].tolist() == [block * size + place for block, place in new]
    assert inputs.positions[span].tolist() == list(range(work.start, work.start + len(new)))
