"""Which of the blocks that nobody holds goes first: TensorRT-LLM's levels of retention.

The lowest level that has any goes first, in it the block that was given back first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

LEVELS = range(101)
DEFAULT_LEVEL = 35


class RetentionQueues:
    """Each block stands in one queue. Nothing here costs more the more blocks there are."""

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[int, None]] = {}
        self._levels: dict[int, int] = {}
        """Level by block."""

    def __len__(self) -> int:
        return len(self._levels)

    def __iter__(self) -> Iterator[int]:
        return iter(self._levels)

    def push(self, block: int, level: int) -> None:
        assert block not in self._levels, "given back twice"
        self._levels[block] = level
        self._queues.setdefault(level, OrderedDict())[block] = None

    def remove(self, block: int) -> None:
        level = self._levels.pop(block)
        queue = self._queues[level]
        del queue[block]
        if not queue:
            del self._queues[level]

    def first(self) -> int:
        """The block to go; it stays until it is removed."""
        return next(iter(self._queues[min(self._queues)]))
