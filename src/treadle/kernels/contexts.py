"""The forms in which attention may be told where a row's context lies, as arrays.

Owns their shapes alone. The runner fills them from plans, a backend reads them; which one it is, is
settled when the step inputs are made. R is the rows of a step, in its order; tables have a row for
each place in the batch, and `StepInputs.table_rows` says which one a row of the step has.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]

ContextForm = Literal["block-table", "request-to-token", "block-list", "block-offsets"]


@dataclasses.dataclass(frozen=True)
class TokenTables:
    """A slot for every position, as SGLang has them."""

    slots: IntArray  # [table row, position]
    lengths: IntArray  # [R], tokens of the context with those of this step

    @property
    def memory_bytes(self) -> int:
        return self.slots.nbytes + self.lengths.nbytes


@dataclasses.dataclass(frozen=True)
class BlockLists:
    """The rows' blocks one after another, as FlashInfer wants its pages."""

    starts: IntArray  # [R + 1], into blocks
    blocks: IntArray  # those of row r at starts[r] to starts[r + 1]
    last_counts: IntArray  # [R], tokens in a row's last block

    @property
    def memory_bytes(self) -> int:
        return self.starts.nbytes + self.blocks.nbytes + self.last_counts.nbytes


@dataclasses.dataclass(frozen=True)
class BlockOffsets:
    """Of every block where its K and its V lie in the pool, as TensorRT-LLM has them: a block holds
    its layers in order, each K and then V; counted are such halves of a layer, from layer 0 on."""

    offsets: IntArray  # [table row, K or V, block index]
    lengths: IntArray  # [R], tokens of the context with those of this step

    @property
    def memory_bytes(self) -> int:
        return self.offsets.nbytes + self.lengths.nbytes


Contexts = TokenTables | BlockLists | BlockOffsets


def allocate_contexts(
    form: ContextForm, rows: int, row_blocks: int, row_tokens: int
) -> Contexts | None:
    """For one KV group; None for block tables, which the step inputs have in any case."""
    if form == "request-to-token":
        return TokenTables(_zeros(rows, row_tokens), _zeros(rows))
    if form == "block-list":
        return BlockLists(_zeros(rows + 1), _zeros(rows * row_blocks), _zeros(rows))
    if form == "block-offsets":
        return BlockOffsets(_zeros(rows, 2, row_blocks), _zeros(rows))
    return None


def _zeros(*shape: int) -> IntArray:
    return np.zeros(shape, np.int32)
