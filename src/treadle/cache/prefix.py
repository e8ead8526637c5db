"""The contract of a prefix cache: one KV group's blocks, and the index that finds prefixes in them.

    match ──▶ lease ──▶ grow, publish, grow, publish … ──▶ release
     (looks)  (holds)   (adds blocks)  (shows computed ones to others)   (gives back)

A request's lease owns its block table. Of the table's blocks, those in the index are shared, the
others are the request's own:

    0 ─────────── published ─────────── computed ────────── allocated
    │ in the index, locked │ own, KV valid │ own, being written │
    └ full blocks only ────┘

Where layers see only a sliding window, a group keeps only the window: blocks that slid out of it
are given back while the request runs, and stand in the table as NO_BLOCK, which nobody reads.

The caller promises two things: `tokens` passed for one lease only ever grow, and nothing is given
back (`release`, `free`) while a step in flight may touch it (see `fence`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

NO_BLOCK = -1
"""In a block table: the position slid out of the window, or never had a block here."""


class Match(NamedTuple):
    """The longest known prefix. Valid until the cache next changes."""

    num_tokens: int
    """A multiple of the block size, unless the index can go on with part of a block."""
    blocks: list[int]
    """One per block of the prefix that will be held as it is; NO_BLOCK where the window no longer
    reaches."""
    num_evictable: int
    """How many of `blocks` nobody holds, so that leasing them lowers `num_available`."""
    place: Any = None
    """Where the index found it; private to the index."""


@dataclasses.dataclass
class Lease:
    """What one request holds in one group; made by `lease`, dead after `release`."""

    salt: str
    blocks: list[int]
    """The block table: position p lives in blocks[p // block_size]."""
    num_published: int
    """Leading tokens whose blocks are in the index; a multiple of the block size."""
    anchor: Any = None
    """Where the published part ends in the index; private to the index."""
    copy: tuple[int, int] | None = None
    """The last of the matched blocks is the lease's own, the second of these: the first, which
    others hold or go on from, is to be copied into it before the lease's first step."""
    priority: int = 0
    """How much what it publishes is worth keeping, for an index that evicts by it."""


class Published(NamedTuple):
    """What publishing changed in a lease's block table. `blocks` may be empty, `surplus` too."""

    start: int
    """First block index that changed."""
    blocks: list[int]
    """The blocks that stand there now: equal contents, already in the index."""
    surplus: list[int]
    """Blocks the lease no longer holds, own copies replaced by equal ones or blocks out of the
    window; to be given to `free` once no step reads them."""


UNCHANGED = Published(0, [], [])


class PrefixCache(Protocol):
    """One KV group. Held blocks + available blocks = all blocks, always."""

    block_size: int
    num_blocks: int
    version: int
    """Grows with whatever may make a match found before another one, or invalid."""
    num_evicted: int
    """Cached blocks that had to make room for others, since the start."""

    @property
    def capacity_tokens(self) -> int:
        """The longest request that fits when it is alone."""
        ...

    def most_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of `num_tokens` tokens holds at most at a time."""
        ...

    @property
    def num_available(self) -> int:
        """Blocks `grow` can hand out now: free ones, and cached ones that nobody holds."""
        ...

    def match(self, tokens: Sequence[int], salt: str) -> Match:
        """Find the longest prefix of `tokens` cached under `salt`. Changes nothing."""
        ...

    def lease(self, match: Match, salt: str) -> Lease:
        """Hold the matched blocks."""
        ...

    def grow(self, lease: Lease, num_blocks: int) -> list[int] | None:
        """Append `num_blocks` blocks to the lease, evicting what must go; None, and nothing
        changed, if there are not enough."""
        ...

    def publish(
        self, lease: Lease, tokens: Sequence[int], num_computed: int, *, decode: bool
    ) -> Published:
        """Make the full blocks of tokens[:num_computed] findable. `decode` says that the last step
        only added a sampled token; an index may then wait for a better moment."""
        ...

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        """End the lease, leaving what was computed in the index for others to find."""
        ...

    def free(self, blocks: Sequence[int]) -> None:
        """Take back surplus blocks."""
        ...

    def reset(self) -> None:
        """Forget every prefix that nobody holds."""
        ...

    def check(self, leases: Sequence[Lease]) -> None:
        """Assert the invariants, given all leases alive and no surplus outstanding."""
        ...


@runtime_checkable
class PrefixTree(Protocol):
    """An index in which a prefix is a way from the root."""

    def path(self, match: Match) -> Sequence[object]:
        """The nodes that a match passes; it may end in the middle of the last one's edge. Requests
        that share nodes share the tokens of their edges."""
        ...


@dataclasses.dataclass(frozen=True)
class Window:
    """A sliding window over the positions of a group: which blocks a request still needs."""

    num_tokens: int
    """A token sees itself and num_tokens - 1 before it."""
    step_tokens: int
    """Most tokens that one step adds to a request."""

    def first_block(self, num_computed: int, block_size: int) -> int:
        """Index of the first block that the token at position `num_computed` still sees."""
        return max(0, num_computed - self.num_tokens + 1) // block_size

    def most_blocks(self, block_size: int) -> int:
        """The window before a step, and the step, wherever block borders fall."""
        return -(-(self.num_tokens - 1 + self.step_tokens) // block_size) + 1

    def slide(self, lease: Lease, num_computed: int, block_size: int) -> list[int]:
        """Take the blocks that slid out of the window from the lease."""
        gone: list[int] = []
        for index in range(self.first_block(num_computed, block_size) - 1, -1, -1):
            if lease.blocks[index] == NO_BLOCK:
                break
            gone.append(lease.blocks[index])
            lease.blocks[index] = NO_BLOCK
        gone.reverse()
        return gone


UNLIMITED_TOKENS = 2**31 - 1


def capacity_tokens(num_blocks: int, block_size: int, window: Window | None) -> int:
    if window is not None and num_blocks >= window.most_blocks(block_size):
        return UNLIMITED_TOKENS
    return num_blocks * block_size


def most_blocks(num_tokens: int, block_size: int, window: Window | None) -> int:
    whole = -(-num_tokens // block_size)
    return whole if window is None else min(whole, window.most_blocks(block_size))
