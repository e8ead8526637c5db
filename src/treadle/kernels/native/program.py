"""Recording a forward pass into one native program, and running it.

The recorder checks every shape and form, so that the C++ side may trust them; it keeps alive all
memory the program points to. It never computes anything itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from treadle.kernels.native import _native
from treadle.kernels.native.memory import pages, round_up
from treadle.kernels.native.weights import NativeMatrix, NativeVector
from treadle.kernels.ops import (
    QUANT_BLOCK,
    Activation,
    Buffer,
    FloatArray,
    Form,
    KVLayer,
    KVPool,
    KVSpec,
    Masking,
    Matrix,
    RopeTable,
    Rows,
    StepInputs,
    Vector,
)

_LANES = 16
_ALIASING_FLOATS = 512
"""Rows this many floats apart compete for the same places in the first cache."""


class NativeKVPool:
    """K and V of one group. `memory` keeps alive what `placed` points to."""

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        if min(num_blocks, spec.layers, spec.kv_heads, spec.head_dim, spec.block_size) < 1:
            raise ValueError(f"a KV pool of {num_blocks} blocks of {spec} holds nothing")
        if num_blocks * spec.block_size >= 2**31:
            raise ValueError(f"{num_blocks} blocks of {spec.block_size} tokens exceed 2**31 slots")
        self.spec = spec
        self.num_blocks = num_blocks
        self.placed = _native.KVPool(
            ("f32", "f16", "bf16").index(spec.type),
            spec.layers,
            spec.kv_heads,
            spec.head_dim,
            spec.block_size,
            num_blocks,
        )
        self.memory = pages(self.placed.bytes)
        self.placed.place(self.memory.ctypes.data)


@dataclasses.dataclass(frozen=True, eq=False)
class NativeBuffer(Buffer):
    """Float rows, and the quantised form beside them where `forms` has it. The float rows exist
    always: attention passes through them on the way to the quantised form."""

    values: FloatArray  # [capacity, width], rows `stride` apart
    placed: _native.Buffer
    memory: tuple[object, ...]


class NativeProgram:
    """A recorded forward pass; `keep` holds everything its ops point to."""

    def __init__(
        self, program: _native.Program, logits: FloatArray, vocabulary: int, keep: list[object]
    ) -> None:
        self._program = program
        self._logits = logits
        self._vocabulary = vocabulary
        self._keep = keep

    def run(self, num_tokens: int, num_rows: int, num_logits: int) -> FloatArray:
        self._program.run(num_tokens, num_rows, num_logits)
        return self._logits[:num_logits]


class NativeRecorder:
    """Appends each op to the native program as it is called. Usable until `finish`."""

    def __init__(
        self, backend: _native.Backend, inputs: StepInputs, pools: Sequence[KVPool]
    ) -> None:
        groups = len(inputs.limits.table_blocks)
        if len(pools) != groups:
            raise ValueError(f"{len(pools)} KV pools for {groups} KV groups")
        self._limits = inputs.limits
        self._pools = [_native_pool(pool) for pool in pools]
        self._keep: list[object] = [backend, inputs, self._pools]
        self._finished = False
        self._buffers: set[int] = set()
        self._program = _native.Program(
            backend, _place_inputs(inputs), [pool.placed for pool in self._pools]
        )

    def buffer(self, rows: Rows, width: int) -> NativeBuffer:
        return self._allocate(rows, width, frozenset({Form.F32}))

    def operand(self, rows: Rows, matrix: Matrix) -> NativeBuffer:
        return self._allocate(rows, matrix.k, matrix.forms)

    def embed(self, table: Matrix, out: Buffer, *, scale: float = 1.0) -> None:
        to = self._own(out, Rows.TOKENS)
        _check(to.forms == {Form.F32}, "embed writes float32 alone, but its output holds Q8")
        _check(to.width == table.k, f"embed of width {table.k} into a buffer of width {to.width}")
        self._program.embed(self._matrix(table), to.placed, scale)

    def rms_norm(self, x: Buffer, weight: Vector, eps: float, out: Buffer) -> None:
        source, to = self._own(x), self._own(out)
        _check_rows(source, to)
        _check(Form.F32 in source.forms, "rms_norm reads float32, which its input does not hold")
        _check(
            source.width == weight.n == to.width,
            f"rms_norm of width {source.width} with {weight.n} weights into width {to.width}",
        )
        self._program.rms_norm(source.placed, self._vector(weight), eps, to.placed)

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
        _check_rows(source, to)
        _check(
            matrix.forms <= source.forms,
            "linear reads a form of its input that the buffer does not hold",
        )
        _check(to.forms == {Form.F32}, "linear writes float32 alone, but its output holds Q8")
        _check(source is not to, "linear cannot write over its input")
        _check(
            source.width == matrix.k and to.width == matrix.n,
            f"linear [{matrix.n}, {matrix.k}] from width {source.width} to width {to.width}",
        )
        _check(bias is None or bias.n == matrix.n, "linear's bias has not one value per output")
        address = 0 if bias is None else self._vector(bias)
        self._program.linear(source.placed, self._matrix(matrix), to.placed, address, accumulate)

    def rope_store(self, qkv: Buffer, heads: int, rope: RopeTable, kv: KVLayer) -> None:
        source = self._own(qkv, Rows.TOKENS)
        spec = self._spec(kv)
        _check_qkv(source, heads, spec)
        _check(
            rope.cos.shape == rope.sin.shape and rope.cos.ndim == 2,
            f"rope has cos {rope.cos.shape} and sin {rope.sin.shape}",
        )
        positions, pairs = rope.cos.shape
        _check(2 * pairs <= spec.head_dim, f"rope turns {2 * pairs} of {spec.head_dim} dimensions")
        cos = np.ascontiguousarray(rope.cos, np.float32)
        sin = np.ascontiguousarray(rope.sin, np.float32)
        self._keep += [cos, sin]
        placed = _native.Rope(cos.ctypes.data, sin.ctypes.data, positions, pairs, rope.interleaved)
        self._program.rope_store(source.placed, heads, placed, kv.group, kv.layer)

    def attention(
        self, qkv: Buffer, heads: int, kv: KVLayer, out: Buffer, *, masking: Masking
    ) -> None:
        source, to = self._own(qkv, Rows.TOKENS), self._own(out, Rows.TOKENS)
        spec = self._spec(kv)
        _check_qkv(source, heads, spec)
        _check(heads % spec.kv_heads == 0, f"{heads} heads do not share {spec.kv_heads} KV heads")
        _check(source is not to, "attention cannot write over its input")
        _check(masking == Masking(masking.scale), "attention has neither windows nor softcap")
        _check(
            to.width == heads * spec.head_dim,
            f"attention of {heads} heads of {spec.head_dim} into width {to.width}",
        )
        self._program.attention(source.placed, heads, kv.group, kv.layer, to.placed, masking.scale)

    def gated(self, gate_up: Buffer, activation: Activation, out: Buffer) -> None:
        source, to = self._own(gate_up), self._own(out)
        _check_rows(source, to)
        _check(activation == "silu", f"activation {activation} is not supported")
        _check(Form.F32 in source.forms, "gated reads float32, which its input does not hold")
        _check(
            source.width == 2 * to.width,
            f"gated of width {source.width} into a buffer of width {to.width}",
        )
        self._program.gated_silu(source.placed, to.placed)

    def select(self, x: Buffer, out: Buffer) -> None:
        source, to = self._own(x, Rows.TOKENS), self._own(out, Rows.LOGITS)
        _check(source.forms == to.forms == {Form.F32}, "select copies float32 alone")
        _check(source.width == to.width, f"select of width {source.width} into {to.width}")
        self._program.select(source.placed, to.placed)

    def finish(self, logits: Buffer) -> NativeProgram:
        result = self._own(logits, Rows.LOGITS)
        _check(Form.F32 in result.forms, "the logits must hold float32")
        self._program.finish()
        self._finished = True
        return NativeProgram(self._program, result.values, result.width, self._keep)

    def _allocate(self, rows: Rows, width: int, forms: frozenset[Form]) -> NativeBuffer:
        _check(not self._finished, "the recording is finished")
        _check(width > 0, f"a buffer of width {width} holds nothing")
        capacity = self._limits.tokens if rows is Rows.TOKENS else self._limits.rows
        stride = _stride(rows, width)
        floats = pages(capacity * stride * 4).view(np.float32).reshape(capacity, stride)
        records = None
        if Form.Q8 in forms:
            _check(width % QUANT_BLOCK == 0, f"width {width} has no whole blocks of {QUANT_BLOCK}")
            tiles = -(-capacity // _native.ROW_TILE)
            records = pages(tiles * (width // QUANT_BLOCK) * _native.RECORD_BYTES)
        placed = _native.Buffer(
            rows is Rows.TOKENS,
            width,
            floats.ctypes.data,
            stride,
            0 if records is None else records.ctypes.data,
            Form.F32 in forms,
        )
        buffer = NativeBuffer(
            rows=rows,
            width=width,
            forms=forms,
            values=floats[:, :width],
            placed=placed,
            memory=(floats, records),
        )
        self._keep.append(buffer)
        self._buffers.add(id(buffer))
        return buffer

    def _own(self, buffer: Buffer, rows: Rows | None = None) -> NativeBuffer:
        _check(not self._finished, "the recording is finished")
        _check(id(buffer) in self._buffers, "the buffer belongs to another recording")
        _check(rows in (None, buffer.rows), f"the buffer has a row per {buffer.rows.value}")
        assert isinstance(buffer, NativeBuffer)
        return buffer

    def _matrix(self, matrix: Matrix) -> _native.Matrix:
        if not isinstance(matrix, NativeMatrix):
            raise TypeError("the matrix was made by another backend")
        self._keep.append(matrix)
        return matrix.packed

    def _vector(self, vector: Vector) -> int:
        if not isinstance(vector, NativeVector):
            raise TypeError("the vector was made by another backend")
        self._keep.append(vector)
        return vector.values.ctypes.data

    def _spec(self, kv: KVLayer) -> KVSpec:
        _check(0 <= kv.group < len(self._pools), f"there is no KV group {kv.group}")
        spec = self._pools[kv.group].spec
        _check(0 <= kv.layer < spec.layers, f"KV group {kv.group} has no layer {kv.layer}")
        return spec


def _stride(rows: Rows, width: int) -> int:
    # Logits leave as they are, for code that wants them without gaps.
    if rows is Rows.LOGITS:
        return width
    stride = round_up(width, _LANES)
    return stride + _LANES if stride % _ALIASING_FLOATS == 0 else stride


def _place_inputs(inputs: StepInputs) -> _native.StepInputs:
    arrays = [
        inputs.token_ids,
        inputs.positions,
        inputs.row_starts,
        inputs.table_rows,
        inputs.logit_tokens,
    ]
    for array in (*arrays, *inputs.slots, *inputs.tables):
        _check(
            array.dtype == np.int32 and array.flags.c_contiguous,
            "step inputs must be contiguous int32 arrays",
        )
    return _native.StepInputs(
        inputs.limits.tokens,
        inputs.limits.rows,
        [array.ctypes.data for array in arrays],
        [array.ctypes.data for array in inputs.slots],
        [array.ctypes.data for array in inputs.tables],
        list(inputs.limits.table_blocks),
    )


def _native_pool(pool: KVPool) -> NativeKVPool:
    if not isinstance(pool, NativeKVPool):
        raise TypeError("the KV pool was made by another backend")
    return pool


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _check_rows(x: Buffer, out: Buffer) -> None:
    _check(x.rows is out.rows, f"input has a row per {x.rows.value}, output per {out.rows.value}")


def _check_qkv(qkv: Buffer, heads: int, spec: KVSpec) -> None:
    width = (heads + 2 * spec.kv_heads) * spec.head_dim
    _check(qkv.forms == {Form.F32}, "q, k and v are read from float32 alone")
    _check(
        heads > 0 and qkv.width == width,
        f"{heads} heads and {spec.kv_heads} KV heads of {spec.head_dim} need width {width}, "
        f"the buffer has {qkv.width}",
    )
