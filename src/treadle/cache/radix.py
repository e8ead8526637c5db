"""Prefix index as a radix tree over tokens, in the manner of SGLang.

An edge holds a run of tokens and the blocks of their KV. A lease locks the path from its anchor to
the root; a leaf that nobody locks may be evicted, whole, in the order of an `Eviction`. Keys and
splits stand on block boundaries, so with blocks of one token a match is exact to the token.
Sequences of different salts part at the root.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

from treadle.cache.eviction import Eviction, LeastRecentlyUsed
from treadle.cache.pool import BlockPool
from treadle.cache.prefix import UNCHANGED, Lease, Match, Published


class Node:
    """An edge and the node at its end. A node's locks are at least the sum over its children."""

    __slots__ = (
        "blocks",
        "children",
        "created",
        "hits",
        "key",
        "last_used",
        "locks",
        "parent",
        "priority",
        "tokens",
    )

    def __init__(
        self, parent: Node | None, key: object, tokens: list[int], blocks: list[int]
    ) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.blocks = blocks
        self.children: dict[object, Node] = {}
        self.locks = 0
        self.created = self.last_used = self.hits = self.priority = 0


class _Place:
    """Where a match ends: after `num_blocks` blocks of the edge to `node`."""

    __slots__ = ("node", "num_blocks")

    def __init__(self, node: Node, num_blocks: int) -> None:
        self.node = node
        self.num_blocks = num_blocks


class RadixPrefixCache:
    """Free blocks + blocks in the tree + leases' own blocks = all blocks; no block stands in two
    nodes; `evictable` is the number of blocks in nodes without locks. What a strategy ranks by
    changes only while a node is locked."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        eviction: Eviction | None = None,
        *,
        num_soft: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self.num_evicted = 0
        self._eviction = eviction or LeastRecentlyUsed()
        self._pool = BlockPool(num_blocks, num_soft)
        self._root = Node(None, None, [], [])
        self._root.locks = 1
        self._evictable = 0
        self._ticks = itertools.count(1)
        # Evictable leaves by rank and last use. An entry is stale when its node was used, locked,
        # removed or given children since; stale entries are skipped, and swept now and then.
        self._leaves: list[tuple[int, int, int, Node]] = []
        self._sweep_at = 64
        self._serial = itertools.count()

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def most_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @property
    def num_available(self) -> int:
        return self._pool.num_free + self._evictable

    @property
    def evictable_tokens(self) -> int:
        return self._evictable * self.block_size

    @property
    def protected_tokens(self) -> int:
        locked = sum(len(node.blocks) for node in self._nodes() if node.locks)
        return locked * self.block_size

    def match(self, tokens: Sequence[int], salt: str) -> Match:
        node, at, blocks, evictable = self._root, 0, list[int](), 0
        while True:
            child = node.children.get(self._key(tokens, at, salt))
            shared = 0 if child is None else self._shared_blocks(child, tokens, at)
            if child is None or shared == 0:
                return Match(at, blocks, evictable, _Place(node, len(node.blocks)))
            blocks += child.blocks[:shared]
            evictable += 0 if child.locks else shared
            at += shared * self.block_size
            if shared < len(child.blocks):
                return Match(at, blocks, evictable, _Place(child, shared))
            node = child

    def path(self, match: Match) -> list[object]:
        node, nodes = match.place.node, list[object]()
        while node is not self._root:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def lease(self, match: Match, salt: str) -> Lease:
        place: _Place = match.place
        node = place.node
        if place.num_blocks < len(node.blocks):
            node = self._split(node, place.num_blocks)
        self._lock(node, self._root)
        return Lease(salt, list(match.blocks), match.num_tokens, node)

    def grow(self, lease: Lease, num_blocks: int) -> list[int] | None:
        if num_blocks > self.num_available:
            return None
        if num_blocks > self._pool.num_ready:
            self.num_evicted += self.evict(num_blocks - self._pool.num_ready)
        blocks = self._pool.take(num_blocks)
        lease.blocks += blocks
        return blocks

    def publish(
        self, lease: Lease, tokens: Sequence[int], num_computed: int, *, decode: bool
    ) -> Published:
        """Insert the computed full blocks below the lease's anchor.

        Where the tree already has them, the tree's blocks take the place of the request's own.
        Decode steps are left to `release`: a node per token would only make the tree deep.
        """
        if decode:
            return UNCHANGED
        return self._insert(lease, tokens, num_computed, whole=num_computed >= len(tokens))

    def _insert(
        self, lease: Lease, tokens: Sequence[int], num_computed: int, *, whole: bool
    ) -> Published:
        """A chunk is no use of its own: hits count when a `whole` prompt or answer is entered."""
        size = self.block_size
        end = num_computed - num_computed % size
        published = UNCHANGED if end <= lease.num_published else self._extend(lease, tokens, end)
        node = lease.anchor
        while node is not self._root:
            node.hits += whole
            node.priority = max(node.priority, lease.priority)
            node = node.parent
        return published

    def _extend(self, lease: Lease, tokens: Sequence[int], end: int) -> Published:
        """Carry the lease's anchor on to `end`."""
        size = self.block_size
        start, node = lease.num_published, lease.anchor
        at, kept = start, list[int]()
        while at < end:
            child = node.children.get(self._key(tokens, at, lease.salt))
            shared = (
                0
                if child is None
                else min(self._shared_blocks(child, tokens, at), (end - at) // size)
            )
            if child is None or shared == 0:
                break
            node = child if shared == len(child.blocks) else self._split(child, shared)
            kept += node.blocks
            at += shared * size
        surplus = lease.blocks[start // size : at // size]
        lease.blocks[start // size : at // size] = kept
        if at < end:
            node = self._append(node, lease, tokens, at, end)
        self._lock(node, lease.anchor)
        lease.anchor, lease.num_published = node, end
        return Published(start // size, kept, surplus) if kept else UNCHANGED

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        if num_computed >= lease.num_published:
            self.free(self._insert(lease, tokens, num_computed, whole=True).surplus)
        self._pool.free(lease.blocks[lease.num_published // self.block_size :])
        self._unlock(lease.anchor)
        lease.blocks = []

    def free(self, blocks: Sequence[int]) -> None:
        self._pool.free(blocks)

    def evict(self, num_blocks: int) -> int:
        """Free at least `num_blocks` blocks, whole leaves at a time; returns how many it freed
        (fewer only if nothing evictable is left)."""
        freed = 0
        while freed < num_blocks and self._leaves:
            _, last_used, _, node = heapq.heappop(self._leaves)
            if not self._is_leaf_entry(node, last_used):
                continue
            freed += len(node.blocks)
            self._remove(node)
        return freed

    def reset(self) -> None:
        self.evict(self._evictable)

    def check(self, leases: Sequence[Lease]) -> None:
        nodes = list(self._nodes())
        locks = {id(node): 0 for node in nodes}
        for lease in leases:
            node = lease.anchor
            while node is not self._root:
                locks[id(node)] += 1
                node = node.parent
        for node in nodes:
            assert node.locks == locks[id(node)]
            assert node.parent is not None
            assert node.parent.children[node.key] is node
            assert len(node.tokens) == len(node.blocks) * self.block_size > 0
        assert self._evictable == sum(len(node.blocks) for node in nodes if not node.locks)
        alive = [e for e in self._leaves if self._is_leaf_entry(e[3], e[1])]
        assert all(rank == self._eviction.rank(node) for rank, _, _, node in alive)
        entries = {id(node) for _, _, _, node in alive}
        assert entries == {id(n) for n in nodes if not n.locks and not n.children}
        cached = [block for node in nodes for block in node.blocks]
        own = [
            b for lease in leases for b in lease.blocks[lease.num_published // self.block_size :]
        ]
        everywhere = sorted(cached + own + self._pool.snapshot())
        assert everywhere == list(range(self.num_blocks))

    def _key(self, tokens: Sequence[int], at: int, salt: str) -> object:
        """What tells the children of a node apart: the first block's tokens, at the root the salt
        too. Shorter runs than a block find no child."""
        if self.block_size == 1:
            first: object = tokens[at] if at < len(tokens) else None
        else:
            first = tuple(tokens[at : at + self.block_size])
        return (salt, first) if at == 0 and salt else first

    def _shared_blocks(self, node: Node, tokens: Sequence[int], at: int) -> int:
        """Whole blocks that node's edge shares with tokens[at:]."""
        limit = min(len(node.tokens), len(tokens) - at)
        return _common_prefix(node.tokens, tokens, at, limit) // self.block_size

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cut an edge in two; returns the new upper node. The lower one keeps its identity, since
        leases are anchored to it."""
        cut = num_blocks * self.block_size
        self.version += 1
        assert node.parent is not None
        upper = Node(node.parent, node.key, node.tokens[:cut], node.blocks[:num_blocks])
        upper.locks, upper.created, upper.last_used = node.locks, node.created, node.last_used
        upper.hits, upper.priority = node.hits, node.priority
        node.parent.children[node.key] = upper
        node.parent, node.tokens, node.blocks = upper, node.tokens[cut:], node.blocks[num_blocks:]
        node.key = self._lower_key(node.tokens)
        upper.children[node.key] = node
        return upper

    def _lower_key(self, tokens: list[int]) -> object:
        return tokens[0] if self.block_size == 1 else tuple(tokens[: self.block_size])

    def _append(self, parent: Node, lease: Lease, tokens: Sequence[int], at: int, end: int) -> Node:
        size = self.block_size
        blocks = lease.blocks[at // size : end // size]
        node = Node(parent, self._key(tokens, at, lease.salt), list(tokens[at:end]), blocks)
        node.created, node.priority = next(self._ticks), lease.priority
        parent.children[node.key] = node
        self._evictable += len(blocks)
        self.version += 1
        return node

    def _lock(self, node: Node, above: Node) -> None:
        """Lock the path from `node` up to, not including, `above`."""
        self.version += node is not above
        tick = next(self._ticks)
        while node is not above:
            if node.locks == 0:
                self._evictable -= len(node.blocks)
            node.locks += 1
            node.last_used = tick
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: Node) -> None:
        self.version += node is not self._root
        tick = next(self._ticks)
        while node is not self._root:
            node.locks -= 1
            node.last_used = tick
            if node.locks == 0:
                self._evictable += len(node.blocks)
                self._offer(node)
            assert node.parent is not None
            node = node.parent

    def _offer(self, node: Node) -> None:
        """Enter a node that may have become an evictable leaf into the order of eviction."""
        if node.children or node.locks:
            return
        if len(self._leaves) >= self._sweep_at:
            self._leaves = [e for e in self._leaves if self._is_leaf_entry(e[3], e[1])]
            heapq.heapify(self._leaves)
            self._sweep_at = max(64, 2 * len(self._leaves))
        entry = (self._eviction.rank(node), node.last_used, next(self._serial), node)
        heapq.heappush(self._leaves, entry)

    def _is_leaf_entry(self, node: Node, last_used: int) -> bool:
        return (
            node.parent is not None
            and not node.children
            and not node.locks
            and node.last_used == last_used
        )

    def _remove(self, node: Node) -> None:
        self.version += 1
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.parent = None
        self._evictable -= len(node.blocks)
        self._pool.free(node.blocks)
        if parent is not self._root:
            self._offer(parent)

    def _nodes(self) -> Iterator[Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


def _common_prefix(edge: list[int], tokens: Sequence[int], at: int, limit: int) -> int:
    """Length of the longest common prefix of edge[:limit] and tokens[at : at + limit]; halving
    on slices, which compare at C speed."""
    low = 0
    if edge[:limit] == tokens[at : at + limit]:
        return limit
    high = limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        if edge[low:middle] == tokens[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low
