"""Prefix index over full blocks by chained hash, in the manner of vLLM.

A full block's digest covers its tokens and, through its parent's digest, everything before; the
salt enters the first block's digest. Blocks that nobody holds wait in one queue: those without a
digest at the front, those with one at the back in the order of release, tails of sequences before
their beginnings. Allocation takes from the front and forgets the digest found there, so eviction
costs nothing and the cache never refuses a request.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from treadle.cache.prefix import UNCHANGED, Lease, Match, Published

_DIGEST_BYTES = 16
"""Prefixes come from strangers, so equal digests must mean equal tokens: 128 bits of BLAKE2b."""


class HashedPrefixCache:
    """A block with no holder is in the queue exactly once; a digest maps to the first block that
    was published under it, later equal blocks stay anonymous."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._holders = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._blocks: dict[bytes, int] = {}
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_available(self) -> int:
        return len(self._queue)

    def match(self, tokens: Sequence[int], salt: str) -> Match:
        blocks: list[int] = []
        parent = _root(salt)
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            digest = _digest(parent, tokens[end - self.block_size : end])
            block = self._blocks.get(digest)
            if block is None:
                break
            blocks.append(block)
            parent = digest
        evictable = sum(self._holders[block] == 0 for block in blocks)
        return Match(len(blocks) * self.block_size, blocks, evictable, parent)

    def lease(self, match: Match, salt: str) -> Lease:
        for block in match.blocks:
            if self._holders[block] == 0:
                del self._queue[block]
            self._holders[block] += 1
        return Lease(salt, list(match.blocks), match.num_tokens, match.place)

    def grow(self, lease: Lease, num_blocks: int) -> list[int] | None:
        if num_blocks > len(self._queue):
            return None
        blocks = [self._queue.popitem(last=False)[0] for _ in range(num_blocks)]
        for block in blocks:
            self._forget(block)
            self._holders[block] = 1
        lease.blocks += blocks
        return blocks

    def publish(
        self,
        lease: Lease,
        tokens: Sequence[int],
        num_computed: int,
        *,
        decode: bool,  # noqa: ARG002
    ) -> Published:
        size = self.block_size
        while lease.num_published + size <= num_computed:
            start = lease.num_published
            digest = _digest(lease.anchor, tokens[start : start + size])
            block = lease.blocks[start // size]
            if self._blocks.setdefault(digest, block) == block:
                self._digests[block] = digest
            lease.anchor = digest
            lease.num_published = start + size
        return UNCHANGED

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        self.publish(lease, tokens, num_computed, decode=False)
        self.free(lease.blocks)
        lease.blocks = []

    def free(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._queue[block] = None
                self._queue.move_to_end(block, last=self._digests[block] is not None)

    def reset(self) -> None:
        for block in self._queue:
            self._forget(block)

    def check(self, leases: Sequence[Lease]) -> None:
        holders = [0] * self.num_blocks
        for lease in leases:
            for block in lease.blocks:
                holders[block] += 1
        assert holders == self._holders
        assert sorted(self._queue) == [b for b in range(self.num_blocks) if holders[b] == 0]
        for digest, block in self._blocks.items():
            assert self._digests[block] == digest
        assert sum(digest is not None for digest in self._digests) == len(self._blocks)

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            del self._blocks[digest]
            self._digests[block] = None


def _root(salt: str) -> bytes:
    """The parent of a salt's first blocks; its preimage cannot be that of a block."""
    return hashlib.blake2b(b"salt:" + salt.encode(), digest_size=_DIGEST_BYTES).digest()


def _digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(
        parent + array("i", tokens).tobytes(), digest_size=_DIGEST_BYTES
    ).digest()
