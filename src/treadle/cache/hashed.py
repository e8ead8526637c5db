"""Prefix index over full blocks by chained hash, in the manner of vLLM.

A full block's digest covers its tokens and, through its parent's digest, everything before; the
salt enters the first block's digest. Of blocks that nobody holds, those without a digest are handed
out first, then those with one in the order of release, tails of sequences before their beginnings.
Handing out forgets the digest, so eviction costs nothing and the cache never refuses a request.

With a sliding window, a prefix is found by its last blocks alone: those that its next token sees.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

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

_DIGEST_BYTES = 16
"""Prefixes come from strangers, so equal digests must mean equal tokens: 128 bits of BLAKE2b."""


class HashedPrefixCache:
    """A block with no holder is in the pool or among the cached ones, once. Equal blocks computed
    at the same time all stay; the one published first is found, and the next once it is gone."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        window: Window | None = None,
        *,
        num_soft: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self.num_evicted = 0
        self._window = window
        self._holders: dict[int, int] = {}
        """Of held blocks: how many leases have them."""
        self._digests: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}
        """The block that is found under a digest."""
        self._twins: dict[bytes, list[int]] = {}
        """Further blocks of the same digest, in order of publication."""
        self._pool = BlockPool(num_blocks, num_soft)
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Blocks that had a digest when their last holder left; the next to be handed out first."""
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
        return self._pool.num_free + len(self._cached)

    def match(self, tokens: Sequence[int], salt: str) -> Match:
        found = self._whole_match if self._window is None else self._window_match
        blocks, anchor = found(tokens, salt)
        evictable = sum(block != NO_BLOCK and block not in self._holders for block in blocks)
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
            if block not in self._holders:
                del self._cached[block]
            self._holders[block] = self._holders.get(block, 0) + 1
        return Lease(salt, list(match.blocks), match.num_tokens, match.place)

    def grow(self, lease: Lease, num_blocks: int) -> list[int] | None:
        if num_blocks > self.num_available:
            return None
        blocks = self._pool.take(min(num_blocks, self._pool.num_ready))
        while len(blocks) < num_blocks and self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
            self.num_evicted += 1
            blocks.append(block)
        blocks += self._pool.take(num_blocks - len(blocks))
        self._holders.update(dict.fromkeys(blocks, 1))
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
        self.show(lease, tokens, num_computed)
        if self._window is None:
            return UNCHANGED
        return Published(0, [], self._window.slide(lease, num_computed, self.block_size))

    def show(self, lease: Lease, tokens: Sequence[int], end: int) -> None:
        """Full blocks of tokens[:end] are found from now on."""
        size = self.block_size
        while lease.num_published + size <= end:
            start = lease.num_published
            digest = _digest(lease.anchor, tokens[start : start + size])
            block = lease.blocks[start // size]
            self._enter(block, digest)
            lease.anchor = digest
            lease.num_published = start + size

    def hide(self, lease: Lease, tokens: Sequence[int], end: int) -> None:
        """The lease's blocks that reach beyond `end` are not found any more."""
        kept = end // self.block_size
        for block in lease.blocks[kept : lease.num_published // self.block_size]:
            self._forget(block)
        if kept * self.block_size < lease.num_published:
            lease.num_published = kept * self.block_size
            chain = self._chain(tokens, lease.salt)
            lease.anchor = (
                next(itertools.islice(chain, kept - 1, None)) if kept else _root(lease.salt)
            )

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        self.free(self.publish(lease, tokens, num_computed, decode=False).surplus)
        self.free([block for block in lease.blocks if block != NO_BLOCK])
        lease.blocks = []

    def free(self, blocks: Sequence[int]) -> None:
        self.version += 1
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            del self._holders[block]
            if block in self._digests:
                self._cached[block] = None
            else:
                self._pool.free([block])

    def reset(self) -> None:
        for block in self._cached:
            self._forget(block)
        self._pool.free(list(self._cached))
        self._cached.clear()

    def check(self, leases: Sequence[Lease]) -> None:
        holders: dict[int, int] = {}
        for lease in leases:
            for block in lease.blocks:
                if block != NO_BLOCK:
                    holders[block] = holders.get(block, 0) + 1
        assert holders == self._holders
        everywhere = sorted([*holders, *self._cached, *self._pool.snapshot()])
        assert everywhere == list(range(self.num_blocks))
        named = [(block, digest) for digest, block in self._blocks.items()]
        named += [(block, digest) for digest, twins in self._twins.items() for block in twins]
        assert len(named) == len(self._digests)
        assert dict(named) == self._digests
        assert all(block in self._digests for block in self._cached)

    def _enter(self, block: int, digest: bytes) -> None:
        self._digests[block] = digest
        if self._blocks.setdefault(digest, block) == block:
            self.version += 1
        else:
            self._twins.setdefault(digest, []).append(block)

    def _forget(self, block: int) -> None:
        """The block is not found any more; an equal one is from now on, if there is one."""
        digest = self._digests.pop(block)
        self.version += 1
        twins = self._twins.get(digest, [])
        if self._blocks[digest] != block:
            twins.remove(block)
        elif twins:
            self._blocks[digest] = twins.pop(0)
        else:
            del self._blocks[digest]
        if not twins:
            self._twins.pop(digest, None)


def _root(salt: str) -> bytes:
    """The parent of a salt's first blocks; its preimage cannot be that of a block."""
    return hashlib.blake2b(b"salt:" + salt.encode(), digest_size=_DIGEST_BYTES).digest()


def _digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(
        parent + array("i", tokens).tobytes(), digest_size=_DIGEST_BYTES
    ).digest()
