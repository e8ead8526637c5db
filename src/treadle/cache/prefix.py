"""The contract of a prefix cache: one KV group's blocks, and the index that finds prefixes in them.

    match ──▶ lease ──▶ grow, publish, grow, publish … ──▶ release
     (looks)  (holds)   (adds blocks)  (shows computed ones to others)   (gives back)

A request's lease owns its block table. Of the table's blocks, those in the index are shared, the
others are the request's own:

    0 ─────────── published ─────────── computed ────────── allocated
    │ in the index, locked │ own, KV valid │ own, being written │
    └ full blocks only ────┘

The caller promises two things: `tokens` passed for one lease only ever grow, and nothing is given
back (`release`, `free`) while a step in flight may touch it (see `fence`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Match(NamedTuple):
    """The longest known prefix. Valid until the cache next changes."""

    num_tokens: int
    """A multiple of the block size."""
    blocks: list[int]
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


class Published(NamedTuple):
    """What publishing changed in a lease's block table."""

    start: int
    """First block index that changed."""
    blocks: list[int]
    """The blocks that stand there now: equal contents, already in the index."""
    surplus: list[int]
    """The request's own copies they replace, to be given to `free` once no step reads them."""


UNCHANGED = Published(0, [], [])


class PrefixCache(Protocol):
    """One KV group. Held blocks + available blocks = all blocks, always."""

    block_size: int
    num_blocks: int

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
