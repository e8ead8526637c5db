"""Which leaf of the radix tree goes first when blocks run out: one small class a strategy.

A strategy ranks; it holds no state and never touches the tree. Where ranks are equal, the leaf used
longest ago goes first, so a strategy says only in what it differs from that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol


class Leaf(Protocol):
    """What is remembered of a run of cached tokens that nobody holds."""

    @property
    def created(self) -> int:
        """When it came into the tree; like all times here, in order and without a unit."""
        ...

    @property
    def last_used(self) -> int: ...
    @property
    def hits(self) -> int:
        """How many prompts and answers were entered through it: a request whose answer outgrows
        its prompt counts twice at the prompt."""
        ...

    @property
    def priority(self) -> int:
        """The highest of the requests that it was entered for."""
        ...


class Eviction(Protocol):
    def rank(self, leaf: Leaf) -> int:
        """The least goes first."""
        ...


class LeastRecentlyUsed:
    def rank(self, leaf: Leaf) -> int:  # noqa: ARG002
        return 0


class MostRecentlyUsed:
    def rank(self, leaf: Leaf) -> int:
        return -leaf.last_used


class LeastFrequentlyUsed:
    def rank(self, leaf: Leaf) -> int:
        return leaf.hits


@dataclasses.dataclass(frozen=True)
class Segmented:
    """On probation until it was used often enough; those on probation go first."""

    threshold: int = 2

    def rank(self, leaf: Leaf) -> int:
        return leaf.hits >= self.threshold


class LowestPriority:
    def rank(self, leaf: Leaf) -> int:
        return leaf.priority


class FirstIn:
    def rank(self, leaf: Leaf) -> int:
        return leaf.created


class LastIn:
    def rank(self, leaf: Leaf) -> int:
        return -leaf.created


EVICTIONS: Mapping[str, Eviction] = {
    "lru": LeastRecentlyUsed(),
    "lfu": LeastFrequentlyUsed(),
    "slru": Segmented(),
    "priority": LowestPriority(),
    "fifo": FirstIn(),
    "filo": LastIn(),
    "mru": MostRecentlyUsed(),
}
