"""rope_store and attention against float64 over the whole context, without pages or pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contexts import no_rope, rope_table, rounded
from treadle.kernels.ops import KVSpec


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_rows_of_different_contexts(rows: Any, block_size: int, kind: Any) -> None:
    """Prompts around the piece of 64 tokens in one step, then a decode step of all of them."""
    lengths = [1, 63, 64, 65, 130]
    spec = KVSpec(2, 2, 16, block_size, kind)
    batch = rows(spec, 4, [n + 1 for n in lengths], no_rope(16, 131))
    prefill = batch.run([(row, 0, n) for row, n in enumerate(lengths)])
    decode = batch.run([(row, n, n + 1) for row, n in enumerate(lengths)])
    for row in range(len(lengths)):
        result = np.concatenate([prefill[row], decode[row]])
        batch.check(row, result)


@pytest.mark.parametrize("ratio", [1, 3, 4])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
def test_shared_kv_heads(rows: Any, ratio: int, head_dim: int) -> None:
    spec = KVSpec(1, 2, head_dim, 16, "f32")
    batch = rows(spec, 2 * ratio, [70, 9], rope_table(head_dim, 70))
    for row, result in enumerate(batch.run([(0, 0, 70), (1, 0, 9)])):
        np.testing.assert_allclose(result, batch.expected(row), atol=1e-5)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotary", [2, 16, 32])
def test_rope(rows: Any, interleaved: bool, rotary: int) -> None:
    """Whole and partial rotation of a head of 32, in a step that starts at a later position."""
    spec = KVSpec(1, 1, 32, 16, "f32")
    batch = rows(spec, 2, [90], rope_table(rotary, 90, interleaved=interleaved))
    (first,), (second,) = batch.run([(0, 0, 50)]), batch.run([(0, 50, 90)])
    np.testing.assert_allclose(np.concatenate([first, second]), batch.expected(0), atol=1e-5)


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_chunks_equal_the_whole(rows: Any, kind: Any, chunk: int) -> None:
    spec = KVSpec(1, 3, 24, 16, kind)
    batch = rows(spec, 9, [150], rope_table(24, 150))
    (whole,) = batch.run([(0, 0, 150)])
    pieces = [batch.run([(0, at, min(at + chunk, 150))])[0] for at in range(0, 150, chunk)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=2e-6)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_this_steps_values_are_read_as_stored(rows: Any, kind: Any) -> None:
    """A first token attends to itself alone, so its output is its v, rounded."""
    spec = KVSpec(1, 2, 16, 16, kind)
    batch = rows(spec, 2, [1], no_rope(16, 1))
    (result,) = batch.run([(0, 0, 1)])
    v = batch.qkv[0][:, -2 * 16 :]
    assert (result != v).any()
    np.testing.assert_array_equal(result, rounded(v, kind))


def test_large_scores(rows: Any) -> None:
    """Scores in the thousands: exp must not overflow, whichever piece holds the largest."""
    spec = KVSpec(1, 1, 16, 16, "f32")
    batch = rows(spec, 1, [200], no_rope(16, 200))
    batch.qkv[0] *= np.linspace(1, 60, 200, dtype=np.float32)[:, None]
    (result,) = batch.run([(0, 0, 200)])
    np.testing.assert_allclose(result, batch.expected(0), rtol=1e-3, atol=1e-2)


def test_logit_rows_of_a_mixed_step(rows: Any) -> None:
    """Only the last token of each row is selected, as in serving."""
    spec = KVSpec(1, 1, 16, 16, "f32")
    batch = rows(spec, 3, [20, 33], rope_table(16, 33))
    steps = [(batch.qkv[row], 0, batch.tables[row]) for row in (0, 1)]
    result = batch.program.step(steps, kept=[52, 19])
    expected = [batch.expected(1)[-1], batch.expected(0)[-1]]
    np.testing.assert_allclose(result, expected, atol=1e-5)
