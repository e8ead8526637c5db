"""The free blocks of one KV group, for indexes that keep their cached blocks elsewhere."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Last in, first out: recently used memory is warm, and memory never needed stays untouched."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free), "the caller checks what is available"
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        taken.reverse()
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        self._free.extend(reversed(blocks))

    def snapshot(self) -> list[int]:
        """The free blocks, for invariant checks."""
        return list(self._free)
