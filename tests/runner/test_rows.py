"""From plans to the flat arrays of a step."""

from __future__ import annotations

import numpy as np

from treadle.kernels.ops import KVSpec, StepInputs, StepLimits
from treadle.runner.rows import RowTables, split
from treadle.wire.plan import BlockEdit, RowWork


def spec(block_size: int) -> KVSpec:
    return KVSpec(2, 1, 16, block_size, "f32")


def work(
    row: int,
    start: int,
    tokens: list[int] | None,
    *,
    edits: list[BlockEdit] | None = None,
    sample: bool = True,
    score_at: int = 0,
    targets: list[int] | None = None,
) -> RowWork:
    return RowWork(
        row=row,
        start=start,
        tokens=tokens,
        edits=edits or [],
        sample=sample,
        output_index=0,
        score_at=score_at,
        targets=targets or [],
    )


def test_a_mixed_step() -> None:
    """A first chunk of 5 tokens, a decode from the token table, and a last chunk of 2; two KV
    groups with blocks of 4 and of 1."""
    inputs = StepInputs(StepLimits(tokens=32, rows=4, table_blocks=(8, 32)))
    tables = RowTables(inputs, [spec(4), spec(1)])
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
    assert tables.fill(works, split(works, set())) == 8
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
    tables = RowTables(inputs, [spec(4)])
    tables.sampled([3, 0], [11, 22])
    tables.sampled([3], [33])
    works = [work(0, 1, None), work(3, 2, None)]
    tables.fill(works, split(works, set()))
    assert inputs.token_ids[:2].tolist() == [22, 33]
    assert inputs.token_ids.dtype == np.int32


def test_logit_rows_score_then_sample_then_want_a_token_alone() -> None:
    inputs = StepInputs(StepLimits(tokens=32, rows=6, table_blocks=(8,), extra_logits=8))
    tables = RowTables(inputs, [spec(4)])
    works = [
        work(4, 5, None),
        work(2, 4, [9, 9, 9], sample=False, score_at=5, targets=[9, 8]),
        work(1, 3, None),
        work(0, 0, [7, 7], score_at=0, targets=[7]),
        work(3, 2, [5], sample=False),
        work(5, 1, [6]),
    ]
    rows = split(works, plain={4, 0, 3})
    assert (rows.num_scores, rows.num_logits, len(rows.likeliest)) == (3, 5, 2)
    assert tables.fill(works, rows) == 9
    # Tokens of the works: 0, 1-3, 4, 5-6, 7, 8.
    assert inputs.logit_tokens[:7].tolist() == [2, 3, 5, 4, 8, 0, 6]
