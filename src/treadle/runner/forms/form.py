"""What a form of the context asks of the runner, and which filler it is that has it.

Block tables have none: the row tables of the runner are what attention reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernels.contexts import BlockLists, BlockOffsets, TokenTables
from treadle.kernels.ops import KVSpec, StepInputs
from treadle.runner.forms.block_lists import ListFiller
from treadle.runner.forms.block_offsets import OffsetFiller
from treadle.runner.forms.token_tables import TokenFiller
from treadle.wire.plan import BlockEdit, RowWork


class Filler(Protocol):
    """One KV group's arrays. Every edit of a row is told once, before the works of its plan."""

    def edit(self, row: int, edit: BlockEdit) -> None:
        """A row's table has changed."""
        ...

    def fill(self, works: Sequence[RowWork]) -> None:
        """A step's rows, in its order."""
        ...


def build_fillers(inputs: StepInputs, specs: Sequence[KVSpec]) -> dict[int, Filler]:
    """By KV group, of those that want another form than block tables."""
    fillers: dict[int, Filler] = {}
    for group, (contexts, spec) in enumerate(zip(inputs.contexts, specs, strict=True)):
        match contexts:
            case TokenTables():
                fillers[group] = TokenFiller(contexts, spec.block_size)
            case BlockLists():
                fillers[group] = ListFiller(contexts, inputs.tables[group], spec.block_size)
            case BlockOffsets():
                fillers[group] = OffsetFiller(contexts, spec.layers)
    return fillers
