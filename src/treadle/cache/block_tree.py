"""Prefix index as a tree of blocks, in the manner of TensorRT-LLM.

A node is one block and its key the block's tokens, so equal prefixes part at whole blocks; but the
last block of a match may be used in part. Of the blocks that could go on, the one that shares most
tokens gives them: it leaves the tree and becomes the request's own where nobody else can want it,
else what it holds is copied into a fresh block.

    tree        [a b c d]──[e f g h]──[i j k l]        prompt  a b c d e f x y …
                └ held ──┘ └ copied: e f are computed already, x is written over g

Equal blocks that were computed twice stay apart: the tree keeps the first, a request its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.cache.block_node import Key, Node
from treadle.cache.pool import BlockPool
from treadle.cache.prefix import UNCHANGED, Lease, Match, Published
from treadle.cache.retention import DEFAULT_LEVEL, RetentionQueues

_NO_BLOCK = -1


class PartialReuse(NamedTuple):
    """What may be done with a block of which a prompt shares only the beginning."""

    on: bool = True
    copies: bool = True
    """Whether it is copied where it cannot be taken over."""


class _Place(NamedTuple):
    """Where a match ends: behind a node, or in part of one of its children."""

    node: Node
    part: Node | None


class BlockTreePrefixCache:
    """Free blocks, held blocks and blocks in the tree that nobody holds are all blocks, each in one
    of these; a block stands in at most one node, and a node in the tree is found from its root.

    A held node may have ancestors that nobody holds, where a request's own copies of them stayed
    outside. When such an ancestor goes, what is below leaves the tree with it.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        partial_reuse: PartialReuse | None = None,
        *,
        num_soft: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.version = 0
        self.num_evicted = 0
        self._partial = partial_reuse or PartialReuse()
        self._pool = BlockPool(num_blocks, num_soft)
        self._root = Node(None, (), _NO_BLOCK)
        """Its children are the salts', which hold no block either, and which no two salts share."""
        self._holders: dict[int, int] = {}
        """Of held blocks: how many leases have them."""
        self._nodes: dict[int, Node] = {}
        """Of the tree, by block."""
        self._unheld = RetentionQueues()
        """Blocks of the tree that nobody holds."""

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def most_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @property
    def num_available(self) -> int:
        return self._pool.num_free + len(self._unheld)

    def match(self, tokens: Sequence[int], salt: str) -> Match:
        node, at, size, blocks = self._root.child(_key(salt)), 0, self.block_size, list[int]()
        if node is None:
            return Match(0, blocks, 0)
        while at + size <= len(tokens):
            child = node.child(tuple(tokens[at : at + size]))
            if child is None:
                break
            blocks.append(child.block)
            node, at = child, at + size
        part, shared = self._part(node, tuple(tokens[at : at + size]))
        if part is not None and self._is_free_leaf(part):
            blocks.append(part.block)
        evictable = sum(block not in self._holders for block in blocks)
        return Match(at + shared, blocks, evictable, _Place(node, part))

    def path(self, match: Match) -> list[object]:
        if match.place is None:
            return []
        node, part = match.place
        nodes = [] if part is None else [part]
        while node is not self._root:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def lease(self, match: Match, salt: str) -> Lease:
        """A copy's source may go at any time after; until the copy is made, nothing is written."""
        self.version += 1
        size = self.block_size
        lease = Lease(salt, list(match.blocks), match.num_tokens - match.num_tokens % size)
        for block in lease.blocks:
            self._hold(block)
        if match.place is None:
            return lease
        node, part = match.place
        lease.anchor = node
        if part is None:
            return lease
        if match.blocks[-1:] == [part.block]:
            self._cut_off(part)
            return lease
        self._hold(part.block)  # or it might have to make room for its own copy
        (target,) = self._take(1)
        self._drop(part.block)
        lease.blocks.append(target)
        lease.copy = part.block, target
        return lease

    def grow(self, lease: Lease, num_blocks: int) -> list[int] | None:
        if num_blocks > self.num_available:
            return None
        blocks = self._take(num_blocks)
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
        end = num_computed - num_computed % self.block_size
        if end > lease.num_published:
            self._store(lease, tokens, end)
            lease.num_published = end
        return UNCHANGED

    def release(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        end = num_computed if self._partial.on else num_computed - num_computed % self.block_size
        if end > 0:
            self._store(lease, tokens, end)
        self.free(lease.blocks)
        lease.blocks = []

    def free(self, blocks: Sequence[int]) -> None:
        self.version += 1
        for block in reversed(blocks):
            self._drop(block)

    def reset(self) -> None:
        while len(self._unheld):
            self._evict()

    def check(self, leases: Sequence[Lease]) -> None:
        holders: dict[int, int] = {}
        for block in (block for lease in leases for block in lease.blocks):
            holders[block] = holders.get(block, 0) + 1
        assert holders == self._holders
        assert all(salt.children for salt in self._root.children)
        nodes = [node for salt in self._root.children for node in salt.below()]
        assert {node.block: node for node in nodes} == self._nodes
        assert len(nodes) == len(self._nodes)
        for node in nodes:
            assert node.parent is not None
            assert node.parent.child(node.tokens) is node
            full = len(node.tokens) == self.block_size
            assert full or (self._partial.on and not node.children)
        unheld = sorted(block for block in self._nodes if block not in holders)
        assert unheld == sorted(self._unheld)
        everywhere = sorted([*holders, *unheld, *self._pool.snapshot()])
        assert everywhere == list(range(self.num_blocks))

    def _part(self, node: Node, rest: tuple[int, ...]) -> tuple[Node | None, int]:
        """The child that shares most of `rest`, of those that may be used in part, and how much."""
        if self._partial.on and rest:
            for child, shared in node.closest(rest):
                if self._partial.copies or self._is_free_leaf(child):
                    return child, shared
        return None, 0

    def _is_free_leaf(self, node: Node) -> bool:
        return not node.children and node.block not in self._holders

    def _store(self, lease: Lease, tokens: Sequence[int], end: int) -> None:
        """Enter the lease's blocks of tokens[:end] where the tree has none with their tokens."""
        node, at, size = lease.anchor, lease.num_published, self.block_size
        if node is None or node.parent is None:
            key = _key(lease.salt)
            node, at = self._root.child(key) or self._root.add(key, _NO_BLOCK), 0
        for start in range(at, end, size):
            key = tuple(tokens[start : min(start + size, end)])
            child = node.child(key)
            if child is None:
                child = node.add(key, lease.blocks[start // size])
                self._nodes[child.block] = child
                self.version += 1
            node = child
        lease.anchor = node

    def _hold(self, block: int) -> None:
        held = self._holders.get(block, 0)
        if not held:
            self._unheld.remove(block)
        self._holders[block] = held + 1

    def _drop(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block]:
            return
        del self._holders[block]
        if block in self._nodes:
            self._unheld.push(block, DEFAULT_LEVEL)
        else:
            self._pool.free([block])

    def _take(self, num_blocks: int) -> list[int]:
        while self._pool.num_ready < num_blocks and len(self._unheld):
            self.num_evicted += self._evict()
        blocks = self._pool.take(num_blocks)
        self._holders.update(dict.fromkeys(blocks, 1))
        return blocks

    def _evict(self) -> int:
        """Free the block that is worth least, and what the tree has below it; how many it were."""
        gone = self._cut_off(self._nodes[self._unheld.first()])
        blocks = [node.block for node in gone if node.block not in self._holders]
        for block in blocks:
            self._unheld.remove(block)
        self._pool.free(blocks)
        return len(blocks)

    def _cut_off(self, top: Node) -> list[Node]:
        """Take a node and all below it out of the tree; which they were."""
        self.version += 1
        gone = [top, *top.below()]
        parent = top.parent
        assert parent is not None
        parent.remove(top)
        if parent.block == _NO_BLOCK and not parent.children:
            self._root.remove(parent)
            parent.parent = None
        for node in gone:
            node.parent = None
            del self._nodes[node.block]
        return gone


def _key(salt: str) -> Key:
    return tuple(salt.encode())
