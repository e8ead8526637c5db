"""From plans to the flat arrays of a step."""

from __future__ import annotations

import numpy as np

from treadle.kernels.ops import StepInputs, StepLimits
from treadle.runner.rows import RowTables
from treadle.wire.plan import BlockEdit, RowWork


def work(
    row: int,
    start: int,
    tokens: list[int] | None,
    *,
    edits: list[BlockEdit] | None = None,
    sample: bool = True,
) -> RowWork:
    return RowWork(
        row=row, start=start, tokens=tokens, edits=edits or [], sample=sample, output_index=0
    )


def test_a_mixed_step() -> None:
    """A first chunk of 5 tokens, a decode from the token table, and a last chunk of 2; two KV
    groups with blocks of 4 and of 1."""
    inputs = StepInputs(StepLimits(tokens=32, rows=4, table_blocks=(8, 32)))
    tables = RowTables(inputs, [4, 1])
    tables.sampled([1], [77])
    works = [
        work(
            2,
            0,
            [5, 6, 7, 8, 9],
            edits=[BlockEdit(0, 0, [10, 3]), BlockEdit(1, 0, [20, 21, 22, 23, 24])],
            sample=False,
        ),
        work(1, 6, None, edits=[BlockEdit(0, 1, [9]), BlockEdit(1, 6, [31])]),
        work(0, 3, [40, 41], edits=[BlockEdit(0, 0, [1, 2]), BlockEdit(1, 3, [7, 5])]),
    ]
    for item in works:
        tables.edit(item)
    assert tables.fill(works) == (8, 2)
    assert inputs.token_ids[:8].tolist() == [5, 6, 7, 8, 9, 77, 40, 41]
    assert inputs.positions[:8].tolist() == [0, 1, 2, 3, 4, 6, 3, 4]
    assert inputs.row_starts[:4].tolist() == [0, 5, 6, 8]
    assert inputs.table_rows[:3].tolist() == [2, 1, 0]
    assert inputs.logit_tokens[:2].tolist() == [5, 7]
    assert inputs.slots[0][:8].tolist() == [40, 41, 42, 43, 12, 9 * 4 + 2, 7, 8]
    assert inputs.slots[1][:8].tolist() == [20, 21, 22, 23, 24, 31, 7, 5]
    assert inputs.tables[0][2, :2].tolist() == [10, 3]


def test_sampled_tokens_stay_with_their_row() -> None:
    inputs = StepInputs(StepLimits(tokens=8, rows=4, table_blocks=(4,)))
    tables = RowTables(inputs, [4])
    tables.sampled([3, 0], [11, 22])
    tables.sampled([3], [33])
    tables.fill([work(0, 1, None), work(3, 2, None)])
    assert inputs.token_ids[:2].tolist() == [22, 33]
    assert inputs.token_ids.dtype == np.int32
