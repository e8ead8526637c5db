"""Windows, capped scores, q and k norms, and rows without RoPE, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contexts import Layer, no_rope, rope_table
from treadle.kernels.ops import KVSpec, Masking

WINDOWS = [1, 63, 64, 65, 1000]


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_rows_of_different_contexts(context: Any, window: int, block_size: int) -> None:
    """Prompts around the pieces in one step, then a decode step of all of them."""
    lengths = [1, 64, 65, 129, 200]
    spec = KVSpec(2, 2, 16, block_size, "f16")
    layer = Layer(spec, 4, no_rope(16, 201), Masking(0.25, window))
    batch = context(layer, [n + 1 for n in lengths])
    prefill = batch.run([(row, 0, n) for row, n in enumerate(lengths)])
    decode = batch.run([(row, n, n + 1) for row, n in enumerate(lengths)])
    for row in range(len(lengths)):
        result = np.concatenate([prefill[row], decode[row]])
        np.testing.assert_allclose(result, batch.expected(row), atol=3e-6)


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("window", [1, 17, 63, 64, 65, 100])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_nothing_before_the_window_is_read(
    context: Any, kind: Any, window: int, block_size: int
) -> None:
    """Blocks before the window are gone from the table, and their last owner left NaN."""
    spec = KVSpec(1, 2, 16, block_size, kind)
    layer = Layer(spec, 6, no_rope(16, 240), Masking(0.25, window))
    batch = context(layer, [240])
    batch.run([(0, 0, 200)])
    for start, end in (200, 201), (201, 220), (220, 240):
        first = max(0, start - window + 1)
        batch.soil(0, first, np.nan)
        whole = batch.tables[0]
        batch.drop(0, first)
        (result,) = batch.run([(0, start, end)])
        batch.check(0, result, start=start)
        batch.tables[0] = whole


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("head_dim", "ratio"), [(256, 2), (80, 1), (24, 8)])
def test_capped_scores(context: Any, head_dim: int, ratio: int, window: int | None) -> None:
    spec = KVSpec(1, 2, head_dim, 16, "f32")
    masking = Masking(1.5 / np.sqrt(head_dim), window, softcap=2.0)
    batch = context(Layer(spec, 2 * ratio, rope_table(head_dim, 90), masking), [90, 7])
    for row, result in enumerate(batch.run([(0, 0, 90), (1, 0, 7)])):
        np.testing.assert_allclose(result, batch.expected(row), atol=1e-5)
    uncapped = context(Layer(spec, 2 * ratio, None, Masking(masking.scale, window)), [90])
    assert np.abs(batch.expected(0) - uncapped.expected(0)).max() > 0.1


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
@pytest.mark.parametrize("window", [5, 64, 90])
def test_chunks_equal_the_whole(context: Any, window: int, chunk: int) -> None:
    spec = KVSpec(1, 3, 24, 16, "f16")
    layer = Layer(spec, 9, rope_table(24, 150), Masking(0.3, window, softcap=30.0))
    batch = context(layer, [150])
    (whole,) = batch.run([(0, 0, 150)])
    pieces = [batch.run([(0, at, min(at + chunk, 150))])[0] for at in range(0, 150, chunk)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=2e-6)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("rope", [None, rope_table(20, 70), rope_table(8, 70, interleaved=True)])
def test_norms_of_q_and_k(context: Any, together: bool, rope: Any) -> None:
    """By head or all heads together, each with weights of its own, before RoPE or without it."""
    rng = np.random.default_rng(3)
    spec = KVSpec(1, 2, 20, 16, "f32")
    widths = (6 * 20, 2 * 20) if together else (20, 20)
    q, k = (rng.normal(size=width).astype(np.float32) for width in widths)
    layer = Layer(spec, 6, rope, Masking(0.3), norm=(q, k, 1e-3))
    batch = context(layer, [70])
    batch.qkv[0] *= np.geomspace(1e-2, 1e2, 70, dtype=np.float32)[:, None]
    (result,) = batch.run([(0, 0, 70)])
    np.testing.assert_allclose(result, batch.expected(0), rtol=1e-4, atol=1e-5)


def test_without_rope_only_the_order_of_tokens_counts(context: Any) -> None:
    spec = KVSpec(1, 1, 16, 16, "f32")
    batch = context(Layer(spec, 2, None, Masking(0.3)), [40])
    (result,) = batch.run([(0, 0, 40)])
    np.testing.assert_allclose(result, batch.expected(0), atol=1e-6)
