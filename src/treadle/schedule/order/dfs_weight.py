"""Depth first through the prefix tree, where most wait first.

Requests that share a prefix run one after the other, so that it is not evicted in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class _Node(Generic[R]):
    """A node of the prefix tree that waiting requests pass, and those that end on its edge."""

    __slots__ = ("children", "ends", "weight")

    def __init__(self) -> None:
        self.children: dict[object, _Node[R]] = {}
        self.ends: list[tuple[int, R]] = []
        """(tokens matched, request)"""
        self.weight = 0
        """Requests that end here or below."""


class DfsWeight(Generic[R]):
    """A subtree before the requests that end above it, and of several the one with more requests;
    ties by who came first."""

    def sorted(self, waiting: Sequence[R], outlook: Outlook[R]) -> Sequence[R]:
        root: _Node[R] = _Node()
        for request in waiting:
            node = root
            node.weight += 1
            for step in outlook.path(request):
                node = node.children.setdefault(step, _Node())
                node.weight += 1
            node.ends.append((outlook.match(request).num_tokens, request))
        return list(_walk(root))


def _walk(root: _Node[R]) -> Iterator[R]:
    """Without recursion: a tree may be as deep as prompts are long."""
    stack: list[tuple[_Node[R], bool]] = [(root, False)]
    while stack:
        node, below_is_done = stack.pop()
        if below_is_done:
            # An edge that ends in the middle is a node for those who end there: deepest first.
            yield from (request for _, request in sorted(node.ends, key=lambda end: -end[0]))
            continue
        stack.append((node, True))
        heaviest_last = sorted(node.children.values(), key=lambda child: -child.weight)[::-1]
        stack += [(child, False) for child in heaviest_last]
