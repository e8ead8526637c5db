"""Prefix index over full blocks by chained hash, in the manner of vLLM.

A full block's digest covers its tokens and, through its parent's digest, everything before; the
salt enters the first block's digest. Blocks that nobody holds wait in one queue: those without a
digest at the front, those with one at the back in the order of release, tails of sequences before
their beginnings. Allocation takes from the front and forgets the digest found there, so eviction
costs nothing and the cache never refuses a request.

With a sliding window, a prefix is found by its last blocks alone: those that its next token sees.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

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

_DIGEST_BYTES = 16
"""Prefixes come from strangers, so equal digests must mean equal tokens: 128 bits of BLAKE2b."""


class HashedPrefixCache:
    """A block with no holder is in the queue exactly once; a digest maps to the first block that
    was published under it, later equal blocks stay anonymous."""

    def __init__(self, num_blocks: int, block_size: int, window: Window | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self._window = window
        self._holders = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._blocks: dict[bytes, int] = {}
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._chained: tuple[str, list[int], list[bytes]] = ("", [], [])
        """The last salt and tokens that were matched, and their digests, as far as they were
        needed: a request that waits for blocks is matched again and again."""

    @property
    def capacity_tokens(self) -> int:
        return capacity_tokens(self.num_blocks, self.block_size, self._window)

    def most_blocks(self, num_tokens: int) -> int:
        return most_blocks(num_tokens, self.block_size, self._window)

    @property
    def num_available(self) -> int:
        return len(self._queue)

    def match(self, tokens: Sequence[int], salt: str) -> Match:
        found = self._whole_match if self._window is None else self._window_match
        blocks, anchor = found(tokens, salt)
        evictable = sum(block != NO_BLOCK and self._holders[block] == 0 for block in blocks)
        return Match(len(blocks) * self.block_size, blocks, evictable, anchor)

    def _whole_match(self, tokens: Sequence[int], salt: str) -> tuple[list[int], bytes]:
        blocks: list[int] = []
        anchor = _root(salt)
        for digest in self._chain(tokens, salt):
            block = self._blocks.get(digest)
            if block is None:
                break
            blocks.append(block)
            anchor = digest
        return blocks, anchor

    def _window_match(self, tokens: Sequence[int], salt: str) -> tuple[list[int], bytes]:
        """The longest prefix whose last blocks, as far as its next token sees, are all cached."""
        assert self._window is not None
        size = self.block_size
        digests = list(self._chain(tokens, salt))
        known = [self._blocks.get(digest) for digest in digests]
        end = first_missing = len(known)
        for index in range(len(known) - 1, -1, -1):
            first_missing = index
            if known[index] is None:
                end = index
            elif index <= self._window.first_block(end * size, size):
                break
        if end == 0:
            return [], _root(salt)
        blocks = [NO_BLOCK] * first_missing
        blocks += [block for block in known[first_missing:end] if block is not None]
        return blocks, digests[end - 1]

    def _chain(self, tokens: Sequence[int], salt: str) -> Iterator[bytes]:
        """Digests of the full blocks of `tokens`, from the beginning on."""
        known_salt, known, digests = self._chained
        if salt != known_salt or tokens != known:
            digests = []
            self._chained = salt, list(tokens), digests
        yield from digests
        digest, size = digests[-1] if digests else _root(salt), self.block_size
        for start in range(len(digests) * size, len(tokens) - size + 1, size):
            digest = _digest(digest, tokens[start : start + size])
            digests.append(digest)
            yield digest

    def lease(self, match: Match, salt: str) -> Lease:
        self.version += 1
        for block in match.blocks:
            if block == NO_BLOCK:
                continue
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
                self.version += 1
            lease.anchor = digest
            lease.num_published = start + size
        if self._window is None:
            return UNCHANGED
        return Published(0, [], self._window.slide(lease, num_computed, size))

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        self.free(self.publish(lease, tokens, num_computed, decode=False).surplus)
        self.free([block for block in lease.blocks if block != NO_BLOCK])
        lease.blocks = []

    def free(self, blocks: Sequence[int]) -> None:
        self.version += 1
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
                holders[block] += block != NO_BLOCK
        assert holders == self._holders
        assert sorted(self._queue) == [b for b in range(self.num_blocks) if holders[b] == 0]
        for digest, block in self._blocks.items():
            assert self._digests[block] == digest
        assert sum(digest is not None for digest in self._digests) == len(self._blocks)

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            self.version += 1
            del self._blocks[digest]
            self._digests[block] = None


def _root(salt: str) -> bytes:
    """The parent of a salt's first blocks; its preimage cannot be that of a block."""
    return hashlib.blake2b(b"salt:" + salt.encode(), digest_size=_DIGEST_BYTES).digest()


def _digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(
        parent + array("i", tokens).tobytes(), digest_size=_DIGEST_BYTES
    ).digest()
