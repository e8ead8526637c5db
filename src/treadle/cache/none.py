"""No prefix cache: a request's blocks are its own, and free when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.cache.pool import BlockPool
from treadle.cache.prefix import (
    NO_BLOCK,
    UNCHANGED,
    Lease,
    Match,
    Published,
    Window,
    capacity_tokens,
    most_blocks,
)


class NoPrefixCache:
    """A PrefixCache that finds nothing."""

    def __init__(self, num_blocks: int, block_size: int, window: Window | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self.num_evicted = 0
        self._window = window
        self._pool = BlockPool(num_blocks)

    @property
    def capacity_tokens(self) -> int:
        return capacity_tokens(self.num_blocks, self.block_size, self._window)

    def most_blocks(self, num_tokens: int) -> int:
        return most_blocks(num_tokens, self.block_size, self._window)

    @property
    def num_available(self) -> int:
        return self._pool.num_free

    def match(self, tokens: Sequence[int], salt: str) -> Match:  # noqa: ARG002
        return Match(0, [], 0)

    def lease(self, match: Match, salt: str) -> Lease:  # noqa: ARG002
        return Lease(salt, [], 0)

    def grow(self, lease: Lease, num_blocks: int) -> list[int] | None:
        if num_blocks > self._pool.num_free:
            return None
        blocks = self._pool.take(num_blocks)
        lease.blocks += blocks
        return blocks

    def publish(
        self,
        lease: Lease,
        tokens: Sequence[int],  # noqa: ARG002
        num_computed: int,
        *,
        decode: bool,  # noqa: ARG002
    ) -> Published:
        if self._window is None:
            return UNCHANGED
        return Published(0, [], self._window.slide(lease, num_computed, self.block_size))

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:  # noqa: ARG002
        self._pool.free([block for block in lease.blocks if block != NO_BLOCK])
        lease.blocks = []

    def free(self, blocks: Sequence[int]) -> None:
        self._pool.free(blocks)

    def reset(self) -> None:
        """Nothing is cached."""

    def check(self, leases: Sequence[Lease]) -> None:
        held = [block for lease in leases for block in lease.blocks if block != NO_BLOCK]
        assert sorted(held + self._pool.snapshot()) == list(range(self.num_blocks))
