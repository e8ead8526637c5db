"""Rows of tokens over one paged layer, and what attention over them must be.

The oracle is float64 over the whole context, without pages, pieces or windows of memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.kernels.ops import (
    Buffer,
    KVLayer,
    KVSpec,
    Masking,
    QKNorm,
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


@dataclasses.dataclass(frozen=True)
class Layer:
    """What happens to q, k and v; `norm` holds the weights of q and of k, and eps."""

    spec: KVSpec
    heads: int
    rope: RopeTable | None
    masking: Masking
    norm: tuple[np.ndarray, np.ndarray, float] | None = None


def normed(heads: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm of heads [T, heads, head_dim] by head or together, as the weight's size says."""
    rows = heads.reshape(len(heads), -1, len(weight)).astype(np.float64)
    mean_square = (rows**2).mean(axis=-1, keepdims=True)
    return (rows / np.sqrt(mean_square + eps) * weight).reshape(heads.shape)


def oracle(qkv: np.ndarray, layer: Layer) -> np.ndarray:
    """Attention of all tokens of a row from position 0 on; [T, heads * head_dim]."""
    weights, v = _weights(qkv, layer, "f32")
    return _weighed(weights, v)


def bf16_oracle(qkv: np.ndarray, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """The same where queries are rounded to bf16, and how far off it may be where the softmax's
    weights are rounded too: each by 2**-9 of itself, above and below the fraction's line."""
    weights, v = _weights(qkv, layer, "bf16")
    return _weighed(weights, v), 2.02 * 2**-9 * _weighed(weights, np.abs(v)) + 3e-6


def _weighed(weights: np.ndarray, v: np.ndarray) -> np.ndarray:
    shared = weights.shape[0] // v.shape[1]
    heads = [weights[head] @ v[:, head // shared] for head in range(len(weights))]
    return np.concatenate(heads, axis=1)


def _weights(qkv: np.ndarray, layer: Layer, query: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights [heads, T, T] of V [T, kv_heads, head_dim] as stored, for queries of a type."""
    spec, heads, masking = layer.spec, layer.heads, layer.masking
    tokens = len(qkv)
    every = qkv.reshape(tokens, -1, spec.head_dim)
    q, k, v = np.split(every, [heads, heads + spec.kv_heads], axis=1)
    if layer.norm is not None:
        q, k = normed(q, layer.norm[0], layer.norm[2]), normed(k, layer.norm[1], layer.norm[2])
    if layer.rope is not None:
        q, k = rotated(q, layer.rope, 0), rotated(k, layer.rope, 0)
    k, v = rounded(k, spec.type), rounded(v, spec.type)
    if query != "f32":
        q = rounded(q, query)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    hidden = (distance < 0) | (distance >= (masking.window or tokens))
    shared = heads // spec.kv_heads
    weights = np.zeros((heads, tokens, tokens))
    for head in range(heads):
        scores = q[:, head].astype(np.float64) @ k[:, head // shared].T * masking.scale
        if masking.softcap is not None:
            scores = masking.softcap * np.tanh(scores / masking.softcap)
        scores[hidden] = -np.inf
        weights[head] = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights[head] /= weights[head].sum(axis=1, keepdims=True)
    return weights, v


class Context:
    """Rows with random qkv and scattered block tables over one pool."""

    def __init__(self, bench: Any, paged: Callable[..., Any], layer: Layer) -> None:
        self.layer = layer
        self._bench, self._paged = bench, paged
        self._rng = np.random.default_rng(layer.spec.head_dim + layer.heads)

    def prepare(self, lengths: list[int]) -> None:
        spec, heads = self.layer.spec, self.layer.heads
        width = (heads + 2 * spec.kv_heads) * spec.head_dim
        blocks = [-(-length // spec.block_size) for length in lengths]
        order = self._rng.permutation(sum(blocks)).astype(np.int32)
        self.tables = np.split(order, np.cumsum(blocks)[:-1])
        self.qkv = [self._rng.normal(size=(n, width)).astype(np.float32) for n in lengths]
        kv = KVLayer(0, spec.layers - 1)
        norm = self._norm()

        def record(recorder: Recorder, qkv: Buffer, out: Buffer) -> None:
            recorder.rope_store(qkv, heads, self.layer.rope, kv, norm=norm)
            recorder.attention(qkv, heads, kv, out, masking=self.layer.masking)

        pool = self._bench.backend.kv_pool(spec, sum(blocks))
        total = sum(lengths)
        self.program = self._paged(
            pool, record, heads=heads, limits=StepLimits(total, total, (max(blocks),))
        )
        for row in range(len(lengths)):
            self.soil(row, lengths[row], 300)

    def soil(self, row: int, end: int, value: float) -> None:
        """Leave a former owner's values in the slots of positions before `end`."""
        soil = np.full((end, self.qkv[row].shape[1]), value, np.float32)
        self.program.step([(soil, 0, self.tables[row])])

    def drop(self, row: int, position: int) -> None:
        """Give up the blocks that lie wholly before `position`, as an engine may."""
        self.tables[row] = self.tables[row].copy()
        self.tables[row][: position // self.layer.spec.block_size] = -1

    def run(self, spans: list[tuple[int, int, int]]) -> list[np.ndarray]:
        """One step of spans (row, start, end); the attention of each."""
        result = self.program.step(
            [(self.qkv[row][start:end], start, self.tables[row]) for row, start, end in spans]
        )
        return np.split(result, np.cumsum([end - start for _, start, end in spans])[:-1])

    def expected(self, row: int) -> np.ndarray:
        return oracle(self.qkv[row], self.layer)

    def check(self, row: int, result: np.ndarray, *, start: int = 0, atol: float = 3e-6) -> None:
        """Compare the attention of a row's tokens from `start` on with float64, or where the
        backend multiplies bf16 with what that may come to."""
        span = slice(start, start + len(result))
        if self.layer.spec.type == "bf16" and self._bench.multiplies_bf16:
            expected, bound = bf16_oracle(self.qkv[row], self.layer)
            off = np.abs(result - expected[span])
            assert (off <= bound[span]).all(), (off / bound[span]).max()
        else:
            np.testing.assert_allclose(result, self.expected(row)[span], atol=atol)

    def _norm(self) -> QKNorm | None:
        if self.layer.norm is None:
            return None
        q, k, eps = self.layer.norm
        return QKNorm(self._bench.vector(q), self._bench.vector(k), eps)
