"""How memory for KV is divided among the KV groups of a model: pure arithmetic over numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from treadle.errors import StartError


@dataclasses.dataclass(frozen=True)
class GroupDemand:
    """What one KV group could use."""

    block_bytes: int
    least_blocks: int
    """Below this not even one request runs: a block, or what one window takes."""
    useful_blocks: int
    """For as many requests as may run, each of the longest kind; more would never be used."""


def useful_bytes(groups: Sequence[GroupDemand]) -> int:
    return sum(group.block_bytes * group.useful_blocks for group in groups)


def divide(budget_bytes: int, groups: Sequence[GroupDemand]) -> tuple[int, ...]:
    """Blocks per group within the budget, in proportion to what each could use, and no group less
    than its least. Raises StartError when that is not to be had."""
    least = sum(group.block_bytes * group.least_blocks for group in groups)
    if budget_bytes < least:
        raise StartError(
            f"{budget_bytes} bytes of memory for KV are too little; one request takes {least}"
        )
    share = budget_bytes / useful_bytes(groups)
    # Groups whose share falls below their least take it first, the others divide what is left.
    small = [math.floor(share * group.useful_blocks) < group.least_blocks for group in groups]
    if len(groups) > 1 and any(small):
        taken = sum(g.block_bytes * g.least_blocks for g, s in zip(groups, small, strict=True) if s)
        others = [g for g, s in zip(groups, small, strict=True) if not s]
        rest = iter(divide(budget_bytes - taken, others) if others else ())
        return tuple(
            g.least_blocks if s else next(rest) for g, s in zip(groups, small, strict=True)
        )
    if len(groups) == 1:
        return (budget_bytes // groups[0].block_bytes,)
    return tuple(math.floor(share * group.useful_blocks) for group in groups)
