"""Memory of a program's activations and of a KV pool, placed for the kernels.

How records and blocks are laid out is known to the C++ side.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from treadle.kernels.native import _native
from treadle.kernels.native.checks import check, check_blocks
from treadle.kernels.native.memory import pages, round_up
from treadle.kernels.ops import QUANT_BLOCK, Buffer, FloatArray, Form, KVSpec, Rows

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
        # A block holds all layers, one behind the other.
        self._blocks = self.memory.reshape(num_blocks, -1)

    def copy(self, source: int, target: int) -> None:
        check_blocks(self.num_blocks, source, target)
        self._blocks[target] = self._blocks[source]


@dataclasses.dataclass(frozen=True, eq=False)
class NativeBuffer(Buffer):
    """Float rows, and the quantised form beside them where `forms` has it. The float rows exist
    always: attention passes through them on the way to the quantised form."""

    values: FloatArray  # [capacity, width], rows `stride` apart
    placed: _native.Buffer
    memory: tuple[object, ...]


def allocate_buffer(rows: Rows, capacity: int, width: int, forms: frozenset[Form]) -> NativeBuffer:
    check(width > 0, f"a buffer of width {width} holds nothing")
    stride = _stride(rows, width)
    floats = pages(capacity * stride * 4).view(np.float32).reshape(capacity, stride)
    records = None
    if Form.Q8 in forms:
        check(width % QUANT_BLOCK == 0, f"width {width} has no whole blocks of {QUANT_BLOCK}")
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
    return NativeBuffer(
        rows=rows,
        width=width,
        forms=forms,
        values=floats[:, :width],
        placed=placed,
        memory=(floats, records),
    )


def _stride(rows: Rows, width: int) -> int:
    # Logits leave as they are, for code that wants them without gaps.
    if rows is Rows.LOGITS:
        return width
    stride = round_up(width, _LANES)
    return stride + _LANES if stride % _ALIASING_FLOATS == 0 else stride
