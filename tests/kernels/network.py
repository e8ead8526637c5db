"""Small networks with every op of the boundary in them, on one native backend."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tests.blocks import quantised
from treadle.kernels.native.backend import NativeBackend
from treadle.kernels.ops import (
    Buffer,
    FloatArray,
    KVLayer,
    KVSpec,
    KVType,
    Masking,
    Matrix,
    QKNorm,
    RawTensor,
    Recorder,
    RopeTable,
    Routing,
    Rows,
    StepInputs,
    StepLimits,
    Vector,
    WeightType,
)

# Three query heads share a KV head; a block of 32 lies across two heads of 24.
VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 70, 96, 12, 4, 24, 160
WINDOW = 1024


def raw(shape: tuple[int, int], kind: WeightType, seed: int) -> RawTensor:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 4
    return RawTensor(f"weight {seed}", kind, shape, quantised(values, kind).reshape(-1))


class Network:
    """Two layers of a transformer, each op of the boundary in it, on one backend.

    Float weights by default: quantised activations would round small differences away.
    """

    window: int | None = 70
    last_window: int | None = None
    """Tokens that the first and the last layer see, in a network that has windows."""

    def __init__(
        self,
        *,
        isa: str,
        kind: WeightType = WeightType.F32,
        threads: int = 1,
        block_size: int = 16,
        kv_type: KVType = "f16",
        tokens: int = WINDOW,
    ) -> None:
        self.backend = NativeBackend(isa=isa, threads=threads)
        self._kind = kind
        self._seeds = itertools.count()
        self._block_size = block_size
        self._per_row = -(-WINDOW // block_size)
        spec = KVSpec(2, KV_HEADS, HEAD_DIM, block_size, kv_type)
        pool = self.backend.kv_pool(spec, 8 * self._per_row)
        self.inputs = StepInputs(StepLimits(tokens, 8, (self._per_row,)))
        # Blocks of a row lie anywhere.
        self.inputs.tables[0][:] = (
            np.random.default_rng(block_size).permutation(8 * self._per_row).reshape(8, -1)
        )
        self._record(self.backend.recorder(self.inputs, [pool]))

    def _matrix(self, n: int, k: int, kind: WeightType | None = None) -> Matrix:
        return self.backend.matrix([raw((n, k), kind or self._kind, next(self._seeds))])

    def _norm(self, width: int = HIDDEN) -> Vector:
        scale = np.linspace(0.5, 1.5, width, dtype=np.float32)
        return self.backend.vector(
            RawTensor("norm", WeightType.F32, scale.shape, scale.view(np.uint8))
        )

    def _record(self, r: Recorder) -> None:
        angles = np.outer(np.arange(WINDOW), 1 / 100 ** (np.arange(8) / 8)).astype(np.float32)
        rope = RopeTable(np.cos(angles), np.sin(angles), interleaved=True)
        x = r.buffer(Rows.TOKENS, HIDDEN)
        table = self._matrix(VOCAB, HIDDEN)
        r.embed(table, x, scale=3.0)
        normed = r.operand(Rows.TOKENS, table)
        qkv = r.buffer(Rows.TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        gate_up = r.buffer(Rows.TOKENS, 2 * FFN)
        for layer in range(2):
            kv = KVLayer(0, layer)
            out = self._matrix(HIDDEN, HEADS * HEAD_DIM)
            down = self._matrix(HIDDEN, FFN)
            attended = r.operand(Rows.TOKENS, out)
            gated = r.operand(Rows.TOKENS, down)
            r.rms_norm(x, self._norm(), 1e-5, normed)
            r.linear(normed, self._matrix(qkv.width, HIDDEN), qkv)
            r.rope_store(qkv, HEADS, rope, kv)
            r.attention(qkv, HEADS, kv, attended, masking=Masking(0.3))
            r.linear(attended, out, x, accumulate=True)
            r.rms_norm(x, self._norm(), 1e-5, normed)
            r.linear(normed, self._matrix(2 * FFN, HIDDEN), gate_up)
            r.gated(gate_up, "silu", gated)
            r.linear(gated, down, x, accumulate=True)
        last = r.buffer(Rows.LOGITS, HIDDEN)
        r.select(x, last)
        final = r.operand(Rows.LOGITS, table)
        r.rms_norm(last, self._norm(), 1e-5, final)
        logits = r.buffer(Rows.LOGITS, VOCAB)
        r.head(final, table, logits)
        self._program = r.finish(logits)

    def step(self, work: Sequence[tuple[int, int, Sequence[int]]]) -> FloatArray:
        """Compute (table row, first position, ids) of several requests; logits of their ends."""
        i, at = self.inputs, 0
        for index, (row, start, ids) in enumerate(work):
            end = at + len(ids)
            positions = np.arange(start, start + len(ids))
            i.token_ids[at:end] = ids
            i.positions[at:end] = positions
            blocks = i.tables[0][row][positions // self._block_size]
            i.slots[0][at:end] = blocks * self._block_size + positions % self._block_size
            i.table_rows[index] = row
            i.row_starts[index + 1] = at = end
            i.logit_tokens[index] = end - 1
        return self._program.run(at, len(work), len(work)).copy()

    def in_chunks(self, ids: Sequence[int], size: int, *, row: int = 3) -> FloatArray:
        """Logits after each chunk."""
        starts = range(0, len(ids), size)
        return np.concatenate([self.step([(row, s, ids[s : s + size])]) for s in starts])


class Mixed(Network):
    """The ops that Network has not: windows and capped scores, norms of q and k, layer norms,
    learned positions, all activations, experts of several types, capped logits."""

    def _record(self, r: Recorder) -> None:
        x = r.buffer(Rows.TOKENS, HIDDEN)
        table = self._matrix(VOCAB, HIDDEN)
        r.embed(table, x)
        r.embed_positions(self._matrix(WINDOW, HIDDEN), x)
        qkv = r.buffer(Rows.TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        branch = r.buffer(Rows.TOKENS, HIDDEN)
        for layer, window in enumerate((self.window, self.last_window)):
            kv = KVLayer(0, layer)
            product = self._matrix(qkv.width, HIDDEN)
            normed = r.operand(Rows.TOKENS, product)
            r.layer_norm(x, self._norm(), self._norm() if layer else None, 1e-5, normed)
            r.linear(normed, product, qkv)
            r.rope_store(qkv, HEADS, None, kv, norm=self._qk_norm(together=layer == 0))
            out = self._matrix(HIDDEN, HEADS * HEAD_DIM)
            attended = r.operand(Rows.TOKENS, out)
            r.attention(qkv, HEADS, kv, attended, masking=Masking(0.3, window, 5.0))
            r.linear(attended, out, branch)
            r.rms_norm(branch, self._norm(), 1e-5, x, accumulate=True)
            if layer == 0:
                self._experts(r, x)
            else:
                self._plain(r, x)
        last = r.buffer(Rows.LOGITS, HIDDEN)
        r.select(x, last)
        final = r.operand(Rows.LOGITS, table)
        r.copy(last, final)
        logits = r.buffer(Rows.LOGITS, VOCAB)
        r.head(final, table, logits, cap=300.0)
        self._program = r.finish(logits)

    def _qk_norm(self, *, together: bool) -> QKNorm:
        q, k = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM) if together else (HEAD_DIM, HEAD_DIM)
        return QKNorm(self._norm(q), self._norm(k), 1e-5)

    def _experts(self, r: Recorder, x: Buffer) -> None:
        kinds = [self._kind, WeightType.Q8_0, WeightType.F16, self._kind, WeightType.Q4_1]
        gate_up = [self._matrix(2 * 64, HIDDEN, kind) for kind in kinds]
        down = [self._matrix(HIDDEN, 64, kind) for kind in reversed(kinds)]
        choice = self._matrix(len(kinds), HIDDEN, WeightType.F32)
        both = self.backend.matrix(
            [raw((1, HIDDEN), WeightType.F32, 0), raw((1, HIDDEN), WeightType.Q8_0, 0)]
        )
        operand = r.operand(Rows.TOKENS, both)
        router = r.buffer(Rows.TOKENS, len(kinds))
        r.rms_norm(x, self._norm(), 1e-5, operand)
        r.linear(operand, choice, router)
        routing = Routing(top_k=2, renormalise=True)
        r.experts(operand, router, gate_up, down, x, routing=routing, activation="gelu_tanh")

    def _plain(self, r: Recorder, x: Buffer) -> None:
        up, down = self._matrix(FFN, HIDDEN), self._matrix(HIDDEN, FFN)
        operand, wide = r.operand(Rows.TOKENS, up), r.buffer(Rows.TOKENS, FFN)
        activated = r.operand(Rows.TOKENS, down)
        r.copy(x, operand)
        r.linear(operand, up, wide)
        r.activate(wide, "gelu", activated)
        r.linear(activated, down, x, accumulate=True)


def prompt(length: int, seed: int = 1) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return ids
