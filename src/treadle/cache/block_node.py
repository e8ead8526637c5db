"""A node of the block tree: one block, its tokens, and the blocks that go on from it.

Owns the order of a node's children; who holds a block, and when it goes, is the tree's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

Key = tuple[int, ...]


class Node:
    """Children are sorted by their tokens: then the one that shares most with any other tokens
    stands beside the place where these would be."""

    __slots__ = ("block", "children", "keys", "parent", "tokens")

    def __init__(self, parent: Node | None, tokens: Key, block: int) -> None:
        self.parent = parent
        """None: the root, or no longer in the tree."""
        self.tokens = tokens
        self.block = block
        self.keys: list[Key] = []
        self.children: list[Node] = []

    def child(self, tokens: Key) -> Node | None:
        at = bisect_left(self.keys, tokens)
        return self.children[at] if at < len(self.keys) and self.keys[at] == tokens else None

    def closest(self, tokens: Key) -> Iterator[tuple[Node, int]]:
        """The children that begin as `tokens` do, and with how many of them: most first."""
        after = bisect_left(self.keys, tokens)
        before = after - 1
        while True:
            left = _num_shared(self.keys[before], tokens) if before >= 0 else 0
            right = _num_shared(self.keys[after], tokens) if after < len(self.keys) else 0
            if left == right == 0:
                return
            if left > right:
                yield self.children[before], left
                before -= 1
            else:
                yield self.children[after], right
                after += 1

    def add(self, tokens: Key, block: int) -> Node:
        at = bisect_left(self.keys, tokens)
        node = Node(self, tokens, block)
        self.keys.insert(at, tokens)
        self.children.insert(at, node)
        return node

    def remove(self, child: Node) -> None:
        at = bisect_left(self.keys, child.tokens)
        del self.keys[at], self.children[at]

    def below(self) -> Iterator[Node]:
        stack = list(self.children)
        while stack:
            node = stack.pop()
            yield node
            stack += node.children


def _num_shared(one: Key, other: Key) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
