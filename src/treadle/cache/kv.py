"""The KV cache of a model: one prefix cache per KV group, leased, grown and released together."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from treadle.cache.block_tree import BlockTreePrefixCache, PartialReuse
from treadle.cache.eviction import EVICTIONS
from treadle.cache.hashed import HashedPrefixCache
from treadle.cache.none import NoPrefixCache
from treadle.cache.prefix import NO_BLOCK, Lease, Match, PrefixCache, PrefixTree, Window
from treadle.cache.radix import RadixPrefixCache
from treadle.wire.plan import BlockCopy, BlockEdit


@dataclasses.dataclass
class KVMatch:
    """A prefix that every group knows."""

    num_tokens: int
    parts: list[Match]


@dataclasses.dataclass
class KVLease:
    """What one request holds: a lease per group."""

    parts: list[Lease]


@dataclasses.dataclass
class KVPublished:
    """Changes of the block tables, and blocks to give to `free` once no step reads them."""

    edits: list[BlockEdit]
    surplus: list[tuple[int, list[int]]]
    """(group, blocks)."""


class KVCache:
    """All groups hold KV of the same leading tokens of each request."""

    def __init__(self, groups: Sequence[PrefixCache]) -> None:
        self.groups = list(groups)
        self._showing = [
            (index, group)
            for index, group in enumerate(groups)
            if isinstance(group, HashedPrefixCache)
        ]
        self._copies: list[BlockCopy] = []

    @property
    def finds_prefixes(self) -> bool:
        """Whether what one request computes can ever be found by another."""
        return not any(isinstance(group, NoPrefixCache) for group in self.groups)

    @property
    def num_evicted_tokens(self) -> int:
        """Cached tokens that had to make room for others, in the group that lost most."""
        return max(group.num_evicted * group.block_size for group in self.groups)

    @property
    def version(self) -> int:
        """As long as it is the same, a match is what it was."""
        return sum(group.version for group in self.groups)

    @property
    def capacity_tokens(self) -> int:
        """Tokens one request alone can hold."""
        return min(group.capacity_tokens for group in self.groups)

    @property
    def usage(self) -> float:
        """Share of blocks that requests hold, in the fullest group."""
        return max(1 - group.num_available / group.num_blocks for group in self.groups)

    def match(self, tokens: Sequence[int], salt: str) -> KVMatch:
        """The longest prefix known to every group. Groups shorten it in turn until all agree: one
        that keeps only a window may know a long prefix and not a shorter one, and one of larger
        blocks, or that shares only whole ones, may not know it to the token."""
        while True:
            parts = [group.match(tokens, salt) for group in self.groups]
            common = min(part.num_tokens for part in parts)
            if all(part.num_tokens == common for part in parts):
                return KVMatch(common, parts)
            tokens = tokens[:common]

    def path(self, match: KVMatch) -> Sequence[object]:
        """The match as nodes of the first index that is a tree; empty where none is."""
        for group, part in zip(self.groups, match.parts, strict=True):
            if isinstance(group, PrefixTree):
                return group.path(part)
        return ()

    @property
    def block_sizes(self) -> list[int]:
        """Tokens per block, per group."""
        return [group.block_size for group in self.groups]

    @property
    def num_blocks(self) -> list[int]:
        """All blocks, per group."""
        return [group.num_blocks for group in self.groups]

    @property
    def alignment(self) -> int:
        """Tokens at whose multiples blocks of all groups end."""
        return math.lcm(*self.block_sizes)

    @property
    def available(self) -> list[int]:
        """Blocks that requests can get now, per group."""
        return [group.num_available for group in self.groups]

    def pins(self, match: KVMatch) -> list[int]:
        """Blocks, per group, that are available no longer once the match is leased."""
        return [part.num_evictable for part in match.parts]

    def price(self, match: KVMatch, num_tokens: int) -> list[int]:
        """Blocks, per group, that a request of `num_tokens` beginning with `match` takes of those
        that are available."""
        return [
            group.most_blocks(num_tokens) - _num_held(part.blocks) + part.num_evictable
            for group, part in zip(self.groups, match.parts, strict=True)
        ]

    def missing(self, lease: KVLease, num_tokens: int) -> list[int]:
        """Blocks, per group, that the lease takes yet, at most, on its way to `num_tokens`: those
        that slide out of a window on the way are free again."""
        return [
            max(0, group.most_blocks(num_tokens) - _num_held(part.blocks))
            for group, part in zip(self.groups, lease.parts, strict=True)
        ]

    def fits(self, match: KVMatch, num_tokens: int) -> bool:
        """Whether a request of `num_tokens` beginning with `match` could get all blocks now."""
        price = self.price(match, num_tokens)
        return all(n <= group.num_available for n, group in zip(price, self.groups, strict=True))

    def lease(self, match: KVMatch, salt: str, worth: int = 0) -> tuple[KVLease, list[BlockEdit]]:
        """Hold a match; the edits write it into a fresh row. `worth` is how much what the request
        computes is worth keeping."""
        pairs = zip(self.groups, match.parts, strict=True)
        lease = KVLease([group.lease(part, salt) for group, part in pairs])
        for leased in lease.parts:
            leased.priority = worth
        self._copies += [
            BlockCopy(group, *part.copy)
            for group, part in enumerate(lease.parts)
            if part.copy is not None
        ]
        parts = enumerate(lease.parts)
        return lease, [BlockEdit(g, 0, list(part.blocks)) for g, part in parts if part.blocks]

    def take_copies(self) -> list[BlockCopy]:
        """What the leases made since the last call begin with, for the next plan.

        Nothing holds a source until then, or until that step has settled: copies run before the
        plan's work, and plans run in order, so what is written over it comes later in any case.
        """
        copies, self._copies = self._copies, []
        return copies

    def growth(self, lease: KVLease, num_tokens: int) -> list[int]:
        """Blocks, per group, that `grow` would hand out."""
        return [
            max(0, -(-num_tokens // group.block_size) - len(part.blocks))
            for group, part in zip(self.groups, lease.parts, strict=True)
        ]

    def grow(self, lease: KVLease, num_tokens: int) -> list[BlockEdit] | None:
        """Blocks for positions up to num_tokens - 1, in every group or none (then None)."""
        missing = self.growth(lease, num_tokens)
        if not any(missing):
            return []  # most steps of most requests
        if any(n > group.num_available for n, group in zip(missing, self.groups, strict=True)):
            return None
        edits = []
        for index, count in enumerate(missing):
            if count:
                part = lease.parts[index]
                start = len(part.blocks)
                blocks = self.groups[index].grow(part, count)
                assert blocks is not None
                edits.append(BlockEdit(index, start, blocks))
        return edits

    def publish(
        self, lease: KVLease, tokens: Sequence[int], num_computed: int, *, decode: bool
    ) -> KVPublished:
        result = KVPublished([], [])
        for index, (group, part) in enumerate(zip(self.groups, lease.parts, strict=True)):
            published = group.publish(part, tokens, num_computed, decode=decode)
            if published.blocks:
                result.edits.append(BlockEdit(index, published.start, published.blocks))
            if published.surplus:
                result.surplus.append((index, published.surplus))
        return result

    def show(self, lease: KVLease, tokens: Sequence[int], end: int) -> None:
        """Full blocks of tokens[:end] are found from now on, though a step has yet to compute
        them: where the index can name them without moving the request to others' blocks."""
        for index, group in self._showing:
            group.show(lease.parts[index], tokens, end)

    def hide(self, lease: KVLease, tokens: Sequence[int], end: int) -> None:
        """Blocks that reach beyond `end` are not found any more."""
        for index, group in self._showing:
            group.hide(lease.parts[index], tokens, end)

    def free(self, surplus: Sequence[tuple[int, list[int]]]) -> None:
        for index, blocks in surplus:
            self.groups[index].free(blocks)

    def release(self, lease: KVLease, tokens: Sequence[int], num_computed: int) -> None:
        assert num_computed <= len(tokens), "KV without a known token"
        for group, part in zip(self.groups, lease.parts, strict=True):
            group.release(part, tokens, num_computed)

    def reset(self) -> None:
        for group in self.groups:
            group.reset()

    def check(self, leases: Sequence[KVLease]) -> None:
        for index, group in enumerate(self.groups):
            group.check([lease.parts[index] for lease in leases])


class Keeping(NamedTuple):
    """What an index does with KV that nobody holds, as far as its kind knows it."""

    eviction: str = "lru"
    """The radix tree's."""
    partial_reuse: PartialReuse | None = None
    """The block tree's."""
    num_soft: int | None = None
    """Once so many blocks were taken, cached ones make room before fresh ones are."""


def build_prefix_cache(
    kind: str,
    num_blocks: int,
    block_size: int,
    window: Window | None = None,
    *,
    keeping: Keeping | None = None,
) -> PrefixCache:
    """The index of one group. A sliding window is kept by the hash index under every kind: a tree
    would hold on to whole paths."""
    keeping = keeping or Keeping()
    num_soft = keeping.num_soft
    if kind == "none":
        return NoPrefixCache(num_blocks, block_size, window)
    if kind == "hashed" or window is not None:
        return HashedPrefixCache(num_blocks, block_size, window, num_soft=num_soft)
    if kind == "block-tree":
        partial = keeping.partial_reuse
        return BlockTreePrefixCache(num_blocks, block_size, partial, num_soft=num_soft)
    eviction = EVICTIONS[keeping.eviction]
    return RadixPrefixCache(num_blocks, block_size, eviction, num_soft=num_soft)


def _num_held(blocks: Sequence[int]) -> int:
    """Blocks that slid out of a window all stand at the beginning."""
    if not blocks or blocks[0] != NO_BLOCK:
        return len(blocks)
    return len(blocks) - bisect.bisect_left(blocks, True, key=lambda block: block != NO_BLOCK)
