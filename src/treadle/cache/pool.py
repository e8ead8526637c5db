"""The free blocks of one KV group, for indexes that keep their cached blocks elsewhere."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Last in, first out: recently used memory is warm, and memory never needed stays untouched.

    Blocks that were never taken are a number, not a list: a pool may have millions of them.
    """

    def __init__(self, num_blocks: int, num_soft: int | None = None) -> None:
        self._num_blocks = num_blocks
        self._num_soft = num_blocks if num_soft is None else min(num_soft, num_blocks)
        self._fresh = 0
        """The first block that was never taken; those behind it were not either."""
        self._returned: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._returned) + self._num_blocks - self._fresh

    @property
    def num_ready(self) -> int:
        """Free blocks that need no memory beyond the soft limit: those that were taken before, and
        fresh ones up to it. An index evicts before it takes others."""
        return len(self._returned) + max(self._num_soft - self._fresh, 0)

    def take(self, count: int) -> list[int]:
        assert count <= self.num_free, "the caller checks what is available"
        start = max(len(self._returned) - count, 0)
        taken = self._returned[start:]
        del self._returned[start:]
        taken.reverse()
        end = self._fresh + count - len(taken)
        taken += range(self._fresh, end)
        self._fresh = end
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        self._returned.extend(reversed(blocks))

    def snapshot(self) -> list[int]:
        """The free blocks, for invariant checks."""
        return [*self._returned, *range(self._fresh, self._num_blocks)]
