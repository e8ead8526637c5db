"""rope_store and attention against float64 over the whole context, without pages or pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.kernels.ops import (
    Buffer,
    KVLayer,
    KVSpec,
    Masking,
    Recorder,
    RopeTable,
    StepLimits,
)

TYPES = {"f32": np.float32, "f16": np.float16}


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """What a cache of this type keeps of float32 values."""
    values = values.astype(np.float32)
    if kind != "bf16":
        return values.astype(TYPES[kind]).astype(np.float64)
    bits = values.view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # round half to even at bit 16
    return bits.view(np.float32).astype(np.float64)


def rope_table(rotary: int, positions: int, *, interleaved: bool = False) -> RopeTable:
    angles = np.arange(positions)[:, None] * 100.0 ** (-np.arange(0, rotary, 2) / rotary)
    return RopeTable(
        np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), interleaved
    )


def no_rope(head_dim: int, positions: int) -> RopeTable:
    """Leaves q and k exactly as they are, so that their rounding in the cache is known."""
    ones = np.ones((positions, head_dim // 2), np.float32)
    return RopeTable(ones, ones * 0, interleaved=False)


def rotated(heads: np.ndarray, table: RopeTable, start: int) -> np.ndarray:
    """Rotation by complex multiplication; heads [T, heads, head_dim]."""
    half = table.cos.shape[1]
    turn = (table.cos + 1j * table.sin)[start : start + len(heads), None, :]
    out = heads.astype(np.float64)
    if table.interleaved:
        pairs = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        pairs = slice(0, half), slice(half, 2 * half)
    turned = (out[..., pairs[0]] + 1j * out[..., pairs[1]]) * turn
    out[..., pairs[0]], out[..., pairs[1]] = turned.real, turned.imag
    return out


def oracle(qkv: np.ndarray, heads: int, spec: KVSpec, table: RopeTable, scale: float) -> np.ndarray:
    """Attention of all tokens of a row from position 0 on; [T, heads * head_dim]."""
    tokens = len(qkv)
    every = qkv.reshape(tokens, -1, spec.head_dim)
    q = rotated(every[:, :heads], table, 0)
    k = rounded(rotated(every[:, heads : heads + spec.kv_heads], table, 0), spec.type)
    v = rounded(every[:, heads + spec.kv_heads :], spec.type)
    shared = heads // spec.kv_heads
    out = np.zeros_like(q)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // shared].T * scale
        scores[np.triu_indices(tokens, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, head // shared]
    return out.reshape(tokens, -1)


class Rows:
    """Rows with random qkv and scattered block tables over one pool."""

    def __init__(self, bench: Any, paged: Callable[..., Any], spec: KVSpec, heads: int) -> None:
        self.spec, self.heads = spec, heads
        self._backend, self._paged = bench.backend, paged
        self._rng = np.random.default_rng(spec.head_dim + heads)

    def prepare(self, lengths: list[int], rope: RopeTable, *, layer: int = 0) -> None:
        spec, width = self.spec, (self.heads + 2 * self.spec.kv_heads) * self.spec.head_dim
        blocks = [-(-length // spec.block_size) for length in lengths]
        order = self._rng.permutation(sum(blocks)).astype(np.int32)
        self.tables = np.split(order, np.cumsum(blocks)[:-1])
        self.qkv = [self._rng.normal(size=(n, width)).astype(np.float32) for n in lengths]
        self.rope, self.scale = rope, 1 / np.sqrt(spec.head_dim)
        kv = KVLayer(0, layer)

        def record(recorder: Recorder, qkv: Buffer, out: Buffer) -> None:
            recorder.rope_store(qkv, self.heads, rope, kv)
            recorder.attention(qkv, self.heads, kv, out, masking=Masking(self.scale))

        pool = self._backend.kv_pool(spec, sum(blocks))
        total = sum(lengths)
        self.program = self._paged(
            pool, record, heads=self.heads, limits=StepLimits(total, total, (max(blocks),))
        )
        self._soil(total, width)

    def _soil(self, total: int, width: int) -> None:
        """Leave the values of a former owner in every slot that a row may use."""
        soil = [np.full((len(qkv), width), 300, np.float32) for qkv in self.qkv]
        for start in range(len(soil)):
            self.program.step([(soil[start], 0, self.tables[start])])

    def run(self, spans: list[tuple[int, int, int]]) -> list[np.ndarray]:
        """One step of spans (row, start, end); the attention of each."""
        result = self.program.step(
            [(self.qkv[row][start:end], start, self.tables[row]) for row, start, end in spans]
        )
        return np.split(result, np.cumsum([end - start for _, start, end in spans])[:-1])

    def expected(self, row: int) -> np.ndarray:
        return oracle(self.qkv[row], self.heads, self.spec, self.rope, self.scale)


@pytest.fixture
def rows(bench: Any, paged: Callable[..., Any]) -> Callable[..., Rows]:
    def make(spec: KVSpec, heads: int, lengths: list[int], rope: RopeTable) -> Rows:
        made = Rows(bench, paged, spec, heads)
        made.prepare(lengths, rope, layer=spec.layers - 1)
        return made

    return make


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
        np.testing.assert_allclose(result, batch.expected(row), atol=3e-6)


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
