"""Reading a row's K and V, whichever form says where they lie.

A reader answers for one KV group. Positions before the first one asked for are not looked up: what
stands there may be anything.
"""

from __future__ import annotations

from typing import Protocol

import torch

from treadle.kernels.contexts import BlockLists, BlockOffsets, Contexts, TokenTables
from treadle.kernels.ops import StepInputs
from treadle.kernels.torch.pool import TorchKVPool

KV = tuple[torch.Tensor, torch.Tensor]
"""[positions, kv_heads, head_dim] each."""


class ContextReader(Protocol):
    def read(self, layer: int, row: int, first: int) -> KV:
        """K and V of the positions from `first` to the last that row `row` of the step has."""
        ...


class TableReader:
    """Block tables, and positions that say how long a context is."""

    def __init__(self, inputs: StepInputs, group: int, pool: TorchKVPool) -> None:
        self._table = torch.from_numpy(inputs.tables[group])
        self._rows = torch.from_numpy(inputs.table_rows)
        self._starts = torch.from_numpy(inputs.row_starts)
        self._positions = torch.from_numpy(inputs.positions)
        self._pool = pool

    def read(self, layer: int, row: int, first: int) -> KV:
        end = int(self._positions[self._starts[row + 1] - 1]) + 1
        positions, size = torch.arange(first, end), self._pool.spec.block_size
        blocks = self._table[self._rows[row], positions // size]
        return self._pool.read(layer, blocks, positions % size)


class TokenReader:
    def __init__(self, tables: TokenTables, inputs: StepInputs, pool: TorchKVPool) -> None:
        self._slots = torch.from_numpy(tables.slots)
        self._lengths = torch.from_numpy(tables.lengths)
        self._rows = torch.from_numpy(inputs.table_rows)
        self._pool = pool

    def read(self, layer: int, row: int, first: int) -> KV:
        slots = self._slots[self._rows[row], first : int(self._lengths[row])]
        size = self._pool.spec.block_size
        return self._pool.read(layer, slots // size, slots % size)


class ListReader:
    def __init__(self, lists: BlockLists, pool: TorchKVPool) -> None:
        self._starts = torch.from_numpy(lists.starts)
        self._blocks = torch.from_numpy(lists.blocks)
        self._last_counts = torch.from_numpy(lists.last_counts)
        self._pool = pool

    def read(self, layer: int, row: int, first: int) -> KV:
        blocks = self._blocks[int(self._starts[row]) : int(self._starts[row + 1])]
        size = self._pool.spec.block_size
        end = (len(blocks) - 1) * size + int(self._last_counts[row])
        positions = torch.arange(first, end)
        return self._pool.read(layer, blocks[positions // size], positions % size)


class OffsetReader:
    def __init__(self, offsets: BlockOffsets, inputs: StepInputs, pool: TorchKVPool) -> None:
        self._offsets = torch.from_numpy(offsets.offsets)
        self._lengths = torch.from_numpy(offsets.lengths)
        self._rows = torch.from_numpy(inputs.table_rows)
        self._halves = pool.kv.flatten(0, 2)  # [blocks * layers * 2, block_size, kv_heads, dim]
        self._size = pool.spec.block_size

    def read(self, layer: int, row: int, first: int) -> KV:
        positions = torch.arange(first, int(self._lengths[row]))
        offsets = self._offsets[self._rows[row]][:, positions // self._size] + 2 * layer
        k, v = self._halves[offsets, positions % self._size]
        return k, v


def reader(inputs: StepInputs, group: int, pool: TorchKVPool) -> ContextReader:
    contexts: Contexts | None = inputs.contexts[group]
    match contexts:
        case TokenTables():
            return TokenReader(contexts, inputs, pool)
        case BlockLists():
            return ListReader(contexts, pool)
        case BlockOffsets():
            return OffsetReader(contexts, inputs, pool)
        case None:
            return TableReader(inputs, group, pool)
