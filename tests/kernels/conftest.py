"""The bench on which single ops are run, on each backend, against oracles that are neither.

Data enters a program through `embed` of a float32 table and leaves it through `select`, both of
which copy. An operand in form Q8 is filled through `gated` with a gate of 64: silu(64) is 64
exactly, so 64 * (x / 64) is x.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.blocks import dequantised, quantised
from tests.kernels.contexts import Context, Layer
from treadle.kernels.ops import (
    Backend,
    Buffer,
    FloatArray,
    IntArray,
    KVPool,
    KVSpec,
    Masking,
    Matrix,
    RawTensor,
    Recorder,
    RopeTable,
    Rows,
    StepInputs,
    StepLimits,
    WeightType,
)
from treadle.kernels.torch.backend import TorchBackend


def _native() -> Backend:
    try:
        importlib.import_module("treadle.kernels.native._native")
    except ImportError:
        pytest.skip("the native kernels are not built")
    backend: Backend = importlib.import_module("treadle.kernels.native.backend").NativeBackend(
        threads=2
    )
    return backend


@pytest.fixture(params=["torch", "native"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = TorchBackend(threads=1) if request.param == "torch" else _native()
    yield made
    made.close()


@pytest.fixture
def bench(backend: Backend) -> Bench:
    return Bench(backend)


class Bench:
    """Builds weights, and programs around one op."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.multiplies_bf16 = getattr(backend, "isa", None) == "avx512bf16"

    def met(self, x: np.ndarray, kind: WeightType) -> np.ndarray:
        """What weights of this type meet of the activations x, float64."""
        x = x.astype(np.float32)
        if kind.quantised:
            blocks = x.reshape(len(x), -1, 32)
            scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
            safe = np.where(scales > 0, scales, np.float32(1))
            return (np.rint(blocks / safe).astype(np.float64) * scales).reshape(x.shape)
        if kind is WeightType.BF16 and getattr(self.backend, "isa", "") == "avx512bf16":
            return torch.from_numpy(x).bfloat16().double().numpy()
        return x.astype(np.float64)

    def raw(self, values: np.ndarray, kind: WeightType, name: str = "weight") -> RawTensor:
        """A tensor of these values, as near as its type allows."""
        data = quantised(values, kind)
        return RawTensor(name, kind, values.shape, data.reshape(-1))

    def dequantised(self, tensor: RawTensor) -> np.ndarray:
        """float64 [n, k]."""
        return dequantised(tensor.data, tensor.type, tensor.shape[0]).astype(np.float64)

    def dense(self, values: np.ndarray) -> Matrix:
        return self.backend.matrix([self.raw(values, WeightType.F32)])

    def vector(self, values: np.ndarray) -> Any:
        return self.backend.vector(self.raw(values, WeightType.F32))

    def apply(
        self,
        x: np.ndarray,
        width: int,
        op: Callable[[Recorder, Buffer, Buffer], None],
    ) -> FloatArray:
        """Run `op(recorder, x, out)` on float32 token rows; returns out [T, width]."""
        tokens = len(x)
        inputs = StepInputs(StepLimits(tokens, tokens, ()))
        recorder = self.backend.recorder(inputs, ())
        source = recorder.buffer(Rows.TOKENS, x.shape[1])
        out = recorder.buffer(Rows.TOKENS, width)
        recorder.embed(self.dense(x), source)
        op(recorder, source, out)
        logits = recorder.buffer(Rows.LOGITS, width)
        recorder.select(out, logits)
        program = recorder.finish(logits)
        inputs.token_ids[:] = inputs.positions[:] = inputs.logit_tokens[:] = np.arange(tokens)
        inputs.row_starts[1] = tokens
        return program.run(tokens, 1, tokens).copy()

    def linear(
        self, x: np.ndarray, matrix: Matrix, *, bias: np.ndarray | None = None, repeat: int = 1
    ) -> FloatArray:
        """x @ matrixᵀ (+ bias), x being given in the forms that the matrix reads; added up
        `repeat` times."""
        weight = None if bias is None else self.vector(bias)

        def op(recorder: Recorder, gate_up: Buffer, out: Buffer) -> None:
            operand = recorder.operand(Rows.TOKENS, matrix)
            recorder.gated(gate_up, "silu", operand)
            recorder.linear(operand, matrix, out, bias=weight)
            for _ in range(repeat - 1):
                recorder.linear(operand, matrix, out, accumulate=True, bias=weight)

        gate = np.full_like(x, 64)
        return self.apply(np.concatenate([gate, x / 64], axis=1), matrix.n, op)


class Headed:
    """A program that is a head alone, over rows of x."""

    def __init__(
        self, backend: Backend, x: np.ndarray, matrix: Matrix, cap: float | None = None
    ) -> None:
        rows, width = x.shape
        self._inputs = StepInputs(StepLimits(rows, rows, ()))
        recorder = backend.recorder(self._inputs, ())
        data = x.astype(np.float32).view(np.uint8).reshape(-1)
        table = backend.matrix([RawTensor("x", WeightType.F32, x.shape, data)])
        source, last = recorder.buffer(Rows.TOKENS, width), recorder.buffer(Rows.LOGITS, width)
        operand = recorder.operand(Rows.LOGITS, matrix)
        logits = recorder.buffer(Rows.LOGITS, matrix.n)
        recorder.embed(table, source)
        recorder.select(source, last)
        recorder.copy(last, operand)
        recorder.head(operand, matrix, logits, cap=cap)
        self._program = recorder.finish(logits)
        self._inputs.token_ids[:] = self._inputs.positions[:] = np.arange(rows)
        self._inputs.row_starts[1] = rows
        self._rows = rows

    def run(self, wanted: Sequence[int], likeliest: Sequence[int]) -> tuple[FloatArray, IntArray]:
        """Logits of some rows of x (a view), tokens of others."""
        self._inputs.logit_tokens[: len(wanted) + len(likeliest)] = [*wanted, *likeliest]
        logits = self._program.run(self._rows, 1, len(wanted), len(likeliest))
        return logits, self._program.likeliest[: len(likeliest)].copy()


class Paged:
    """A program of RoPE and attention over one layer of a KV pool, fed with qkv rows directly."""

    def __init__(
        self,
        backend: Backend,
        pool: KVPool,
        record: Callable[[Recorder, Buffer, Buffer], None],
        *,
        heads: int,
        limits: StepLimits,
    ) -> None:
        spec = pool.spec
        self.width = (heads + 2 * spec.kv_heads) * spec.head_dim
        self._inputs = StepInputs(limits)
        self._block_size = spec.block_size
        # The table that `embed` reads lives as long as the program, so each step is a new program.
        self._backend, self._pool, self._record = backend, pool, record
        self._out_width = heads * spec.head_dim

    def step(
        self, rows: Sequence[tuple[np.ndarray, int, np.ndarray]], kept: Sequence[int] | None = None
    ) -> FloatArray:
        """Run rows of (qkv [tokens, width], first position, block table); returns the attention
        of the tokens `kept`, by default of all."""
        qkv = np.concatenate([row[0] for row in rows])
        tokens = len(qkv)
        inputs = self._inputs
        at = 0
        for index, (values, start, table) in enumerate(rows):
            end = at + len(values)
            positions = np.arange(start, start + len(values))
            inputs.positions[at:end] = positions
            inputs.slots[0][at:end] = (
                table[positions // self._block_size] * self._block_size
                + positions % self._block_size
            )
            inputs.row_starts[index : index + 2] = at, end
            # Rows of the table need not stand in the order of the batch.
            inputs.table_rows[index] = len(rows) - 1 - index
            inputs.tables[0][len(rows) - 1 - index, : len(table)] = table
            at = end
        inputs.token_ids[:tokens] = np.arange(tokens)
        kept = range(tokens) if kept is None else kept
        inputs.logit_tokens[: len(kept)] = kept
        return self._program(qkv).run(tokens, len(rows), len(kept)).copy()

    def _program(self, qkv: np.ndarray) -> Any:
        recorder = self._backend.recorder(self._inputs, [self._pool])
        table = RawTensor(
            "qkv", WeightType.F32, qkv.shape, qkv.astype(np.float32).view(np.uint8).reshape(-1)
        )
        source = recorder.buffer(Rows.TOKENS, self.width)
        out = recorder.buffer(Rows.TOKENS, self._out_width)
        recorder.embed(self._backend.matrix([table]), source)
        self._record(recorder, source, out)
        logits = recorder.buffer(Rows.LOGITS, self._out_width)
        recorder.select(out, logits)
        return recorder.finish(logits)


@pytest.fixture
def paged(backend: Backend) -> Callable[..., Paged]:
    def make(pool: KVPool, record: Any, *, heads: int, limits: StepLimits) -> Paged:
        return Paged(backend, pool, record, heads=heads, limits=limits)

    return make


@pytest.fixture
def context(bench: Bench, paged: Callable[..., Paged]) -> Callable[..., Context]:
    def make(layer: Layer, lengths: list[int]) -> Context:
        made = Context(bench, paged, layer)
        made.prepare(lengths)
        return made

    return make


@pytest.fixture
def rows(context: Callable[..., Context]) -> Callable[..., Context]:
    """Contexts under plain attention."""

    def make(spec: KVSpec, heads: int, lengths: list[int], rope: RopeTable) -> Context:
        return context(Layer(spec, heads, rope, Masking(1 / spec.head_dim**0.5)), lengths)

    return make
