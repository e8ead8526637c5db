"""Recording a forward pass into one native program.

The recorder checks every shape and form, so that the C++ side may trust them; it keeps alive all
memory the program points to. It never computes anything itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from treadle.kernels.native import _native
from treadle.kernels.native.buffers import NativeBuffer, NativeKVPool, allocate_buffer
from treadle.kernels.native.checks import (
    check,
    check_activation,
    check_experts,
    check_linear,
    check_masking,
    check_norm,
    check_qk_norm,
    check_qkv,
    check_rope,
    check_rows,
)
from treadle.kernels.native.program import NativeProgram
from treadle.kernels.native.weights import NativeMatrix, NativeVector
from treadle.kernels.ops import (
    Activation,
    Buffer,
    Form,
    IntArray,
    KVLayer,
    KVPool,
    KVSpec,
    Masking,
    Matrix,
    QKNorm,
    Recorder,
    RopeTable,
    Routing,
    Rows,
    StepInputs,
    Vector,
)

_ACTIVATIONS = get_args(Activation)
"""In the order of the C++ side's numbers."""


class NativeRecorder(Recorder):
    """Appends each op to the native program as it is called. Usable until `finish`."""

    def __init__(
        self, backend: _native.Backend, inputs: StepInputs, pools: Sequence[KVPool]
    ) -> None:
        groups = len(inputs.limits.table_blocks)
        if len(pools) != groups:
            raise ValueError(f"{len(pools)} KV pools for {groups} KV groups")
        check(not any(inputs.contexts), "the native kernels read block tables")
        self._limits = inputs.limits
        self._pools = [_ours(pool) for pool in pools]
        self._keep: list[object] = [backend, inputs, self._pools]
        self._likeliest: IntArray = np.zeros(inputs.limits.logits, np.int32)
        self._finished = False
        self._buffers: set[int] = set()
        self._program = _native.Program(
            backend, _place_inputs(inputs), [pool.placed for pool in self._pools]
        )

    def buffer(self, rows: Rows, width: int) -> NativeBuffer:
        return self._allocate(rows, width, frozenset({Form.F32}))

    def operand(self, rows: Rows, matrix: Matrix) -> NativeBuffer:
        return self._allocate(rows, matrix.k, matrix.forms)

    def label(self, name: str) -> None:
        self._program.label(name)

    def embed(self, table: Matrix, out: Buffer, *, scale: float = 1.0) -> None:
        to = self._embedding(table, out)
        self._program.embed(self._matrix(table), to.placed, scale)

    def embed_positions(self, table: Matrix, out: Buffer) -> None:
        to = self._embedding(table, out)
        self._program.embed_positions(self._matrix(table), to.placed)

    def rms_norm(
        self, x: Buffer, weight: Vector, eps: float, out: Buffer, *, accumulate: bool = False
    ) -> None:
        source, to = self._own(x), self._own(out)
        check_norm(source, weight, None, to)
        check(
            not accumulate or to.forms == {Form.F32},
            "a norm adds to float32 alone, but its output holds Q8",
        )
        norm = _native.Norm(self._vector(weight), 0, eps)
        self._program.rms_norm(source.placed, norm, to.placed, accumulate)

    def layer_norm(
        self, x: Buffer, weight: Vector, bias: Vector | None, eps: float, out: Buffer
    ) -> None:
        source, to = self._own(x), self._own(out)
        check_norm(source, weight, bias, to)
        norm = _native.Norm(self._vector(weight), self._vector(bias), eps)
        self._program.layer_norm(source.placed, norm, to.placed)

    def linear(
        self,
        x: Buffer,
        matrix: Matrix,
        out: Buffer,
        *,
        accumulate: bool = False,
        bias: Vector | None = None,
    ) -> None:
        source, to = self._own(x), self._own(out)
        check_linear(source, matrix, bias, to)
        self._program.linear(
            source.placed, self._matrix(matrix), to.placed, self._vector(bias), accumulate
        )

    def rope_store(
        self,
        qkv: Buffer,
        heads: int,
        rope: RopeTable | None,
        kv: KVLayer,
        *,
        norm: QKNorm | None = None,
    ) -> None:
        source = self._own(qkv, Rows.TOKENS)
        spec = self._spec(kv)
        check_qkv(source, heads, spec)
        self._program.rope_store(
            source.placed,
            heads,
            self._rope(rope, spec),
            self._head_norms(norm, heads, spec),
            _native.KVPlace(kv.group, kv.layer),
        )

    def attention(
        self, qkv: Buffer, heads: int, kv: KVLayer, out: Buffer, *, masking: Masking
    ) -> None:
        source, to = self._own(qkv, Rows.TOKENS), self._own(out, Rows.TOKENS)
        spec = self._spec(kv)
        check_qkv(source, heads, spec)
        check_masking(masking)
        check(heads % spec.kv_heads == 0, f"{heads} heads do not share {spec.kv_heads} KV heads")
        check(source is not to, "attention cannot write over its input")
        check(
            to.width == heads * spec.head_dim,
            f"attention of {heads} heads of {spec.head_dim} into width {to.width}",
        )
        self._program.attention(
            source.placed,
            heads,
            _native.KVPlace(kv.group, kv.layer),
            to.placed,
            _native.Masking(
                masking.scale, masking.window or _native.NO_WINDOW, masking.softcap or 0
            ),
        )

    def gated(self, gate_up: Buffer, activation: Activation, out: Buffer) -> None:
        source, to = self._own(gate_up), self._own(out)
        check_activation(source, to, 2 * to.width)
        self._program.gated(source.placed, _ACTIVATIONS.index(activation), to.placed)

    def activate(self, x: Buffer, activation: Activation, out: Buffer) -> None:
        source, to = self._own(x), self._own(out)
        check_activation(source, to, to.width)
        self._program.activate(source.placed, _ACTIVATIONS.index(activation), to.placed)

    def copy(self, x: Buffer, out: Buffer) -> None:
        source, to = self._own(x), self._own(out)
        check_rows(source, to)
        check(Form.F32 in source.forms, "copy reads float32, which its input does not hold")
        check(source.width == to.width, f"copy of width {source.width} into {to.width}")
        self._program.copy(source.placed, to.placed)

    def experts(  # noqa: PLR0913
        self,
        x: Buffer,
        router: Buffer,
        gate_up: Sequence[Matrix],
        down: Sequence[Matrix],
        out: Buffer,
        *,
        routing: Routing,
        activation: Activation,
    ) -> None:
        source, logits, to = self._own(x), self._own(router), self._own(out)
        check_experts(source, logits, gate_up, down, to, routing)
        self._program.experts(
            source.placed,
            logits.placed,
            [self._matrix(matrix) for matrix in gate_up],
            [self._matrix(matrix) for matrix in down],
            to.placed,
            _native.Routing(routing.top_k, routing.renormalise, _ACTIVATIONS.index(activation)),
        )

    def select(self, x: Buffer, out: Buffer) -> None:
        source, to = self._own(x, Rows.TOKENS), self._own(out, Rows.LOGITS)
        check(source.forms == to.forms == {Form.F32}, "select copies float32 alone")
        check(source.width == to.width, f"select of width {source.width} into {to.width}")
        self._program.select(source.placed, to.placed)

    def head(self, x: Buffer, matrix: Matrix, logits: Buffer, *, cap: float | None = None) -> None:
        source, to = self._own(x, Rows.LOGITS), self._own(logits, Rows.LOGITS)
        check_linear(source, matrix, None, to)
        check(cap is None or cap > 0, f"logits capped at {cap}")
        self._program.head(
            source.placed,
            self._matrix(matrix),
            to.placed,
            cap or 0.0,
            self._likeliest.ctypes.data,
        )

    def finish(self, logits: Buffer) -> NativeProgram:
        result = self._own(logits, Rows.LOGITS)
        check(Form.F32 in result.forms, "the logits must hold float32")
        self._program.finish()
        self._finished = True
        return NativeProgram(self._program, result.values, self._likeliest, self._keep)

    def _allocate(self, rows: Rows, width: int, forms: frozenset[Form]) -> NativeBuffer:
        check(not self._finished, "the recording is finished")
        capacity = self._limits.tokens if rows is Rows.TOKENS else self._limits.logits
        buffer = allocate_buffer(rows, capacity, width, forms)
        self._keep.append(buffer)
        self._buffers.add(id(buffer))
        return buffer

    def _own(self, buffer: Buffer, rows: Rows | None = None) -> NativeBuffer:
        check(not self._finished, "the recording is finished")
        check(id(buffer) in self._buffers, "the buffer belongs to another recording")
        check(rows in (None, buffer.rows), f"the buffer has a row per {buffer.rows.value}")
        assert isinstance(buffer, NativeBuffer)
        return buffer

    def _embedding(self, table: Matrix, out: Buffer) -> NativeBuffer:
        to = self._own(out, Rows.TOKENS)
        check(to.forms == {Form.F32}, "embed writes float32 alone, but its output holds Q8")
        check(to.width == table.k, f"embed of width {table.k} into a buffer of width {to.width}")
        return to

    def _rope(self, rope: RopeTable | None, spec: KVSpec) -> _native.Rope:
        if rope is None:
            return _native.Rope(0, 0, _native.NO_WINDOW, 0, False)
        check_rope(rope, spec)
        cos = np.ascontiguousarray(rope.cos, np.float32)
        sin = np.ascontiguousarray(rope.sin, np.float32)
        self._keep += [cos, sin]
        positions, pairs = cos.shape
        return _native.Rope(cos.ctypes.data, sin.ctypes.data, positions, pairs, rope.interleaved)

    def _head_norms(self, norm: QKNorm | None, heads: int, spec: KVSpec) -> _native.HeadNorms:
        if norm is None:
            return _native.HeadNorms(0, 0, 0, 0, 0)
        check_qk_norm(norm, heads, spec)
        return _native.HeadNorms(
            self._vector(norm.q), self._vector(norm.k), norm.q.n, norm.k.n, norm.eps
        )

    def _matrix(self, matrix: Matrix) -> _native.Matrix:
        if not isinstance(matrix, NativeMatrix):
            raise TypeError("the matrix was made by another backend")
        self._keep.append(matrix)
        return matrix.packed

    def _vector(self, vector: Vector | None) -> int:
        if vector is None:
            return 0
        if not isinstance(vector, NativeVector):
            raise TypeError("the vector was made by another backend")
        self._keep.append(vector)
        return vector.values.ctypes.data

    def _spec(self, kv: KVLayer) -> KVSpec:
        check(0 <= kv.group < len(self._pools), f"there is no KV group {kv.group}")
        spec = self._pools[kv.group].spec
        check(0 <= kv.layer < spec.layers, f"KV group {kv.group} has no layer {kv.layer}")
        return spec


def _place_inputs(inputs: StepInputs) -> _native.StepInputs:
    arrays = [
        inputs.token_ids,
        inputs.positions,
        inputs.row_starts,
        inputs.table_rows,
        inputs.logit_tokens,
    ]
    for array in (*arrays, *inputs.slots, *inputs.tables):
        check(
            array.dtype == np.int32 and array.flags.c_contiguous,
            "step inputs must be contiguous int32 arrays",
        )
    return _native.StepInputs(
        inputs.limits.tokens,
        inputs.limits.rows,
        inputs.limits.logits,
        [array.ctypes.data for array in arrays],
        [array.ctypes.data for array in inputs.slots],
        [array.ctypes.data for array in inputs.tables],
        list(inputs.limits.table_blocks),
    )


def _ours(pool: KVPool) -> NativeKVPool:
    if not isinstance(pool, NativeKVPool):
        raise TypeError("the KV pool was made by another backend")
    return pool
