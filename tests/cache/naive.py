"""Prefix caches as plain lists of what is cached: no tree, no hash, every question a search.

They follow the rules of the engines whose caches ours are in the manner of, and share no code with
ours: `NaiveTree` SGLang's radix tree, `NaiveQueue` vLLM's table of blocks and free queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

Key = tuple[str, tuple[int, ...]]
"""A salt, and everything from the beginning of the prompt on."""


@dataclasses.dataclass(eq=False)
class Holder:
    salt: str
    priority: int = 0
    own: int = 0
    """Blocks that only it has (tree)."""
    shown: tuple[int, ...] = ()
    blocks: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Node:
    created: int
    last_used: int = 0
    hits: int = 0
    priority: int = 0


RANKS: dict[str, Callable[[Node], tuple[int, ...]]] = {
    "lru": lambda node: (node.last_used,),
    "lfu": lambda node: (node.hits, node.last_used),
    "slru": lambda node: (1 if node.hits >= 2 else 0, node.last_used),
    "priority": lambda node: (node.priority, node.last_used),
    "fifo": lambda node: (node.created,),
    "filo": lambda node: (-node.created,),
    "mru": lambda node: (-node.last_used,),
}


class NaiveTree:
    """The nodes by all that leads to them; a node's parent is the longest of its beginnings."""

    def __init__(self, num_blocks: int, size: int, policy: str, soft: int | None) -> None:
        self.num_blocks, self.size, self.rank = num_blocks, size, RANKS[policy]
        self.touched = num_blocks if soft is None else soft
        """A pool of so many would do; it grows where what is held needs more."""
        self.nodes: dict[Key, Node] = {}
        self.holders: list[Holder] = []
        self.num_evicted = 0
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def _runs(self) -> set[Key]:
        """Every cached block, by all that leads to its end."""
        return {
            (salt, path[:end])
            for salt, path in self.nodes
            for end in range(self.size, len(path) + 1, self.size)
        }

    def _locked(self, key: Key) -> bool:
        return any(h.salt == key[0] and h.shown[: len(key[1])] == key[1] for h in self.holders)

    def _below(self, key: Key) -> list[Key]:
        return [k for k in self.nodes if k[0] == key[0] and k[1][: len(key[1])] == key[1]]

    def _above(self, key: Key) -> list[Key]:
        return [k for k in self.nodes if k[0] == key[0] and key[1][: len(k[1])] == k[1]]

    def available(self) -> int:
        held = sum(self._locked(run) for run in self._runs())
        return self.num_blocks - held - sum(holder.own for holder in self.holders)

    def match(self, tokens: Sequence[int], salt: str) -> int:
        end, runs = 0, self._runs()
        while end + self.size <= len(tokens) and (salt, (*tokens[: end + self.size],)) in runs:
            end += self.size
        return end

    def _split(self, key: Key) -> None:
        """There is a node at `key` from now on, the upper part of what goes on behind it."""
        if key[1] and key not in self.nodes:
            lower = min(self._below(key), key=lambda k: len(k[1]))
            self.nodes[key] = dataclasses.replace(self.nodes[lower])

    def lease(self, tokens: Sequence[int], salt: str, priority: int) -> Holder:
        holder = Holder(salt, priority, shown=(*tokens[: self.match(tokens, salt)],))
        self._split((salt, holder.shown))
        now = self.tick()
        for key in self._above((salt, holder.shown)):
            self.nodes[key].last_used = now
        self.holders.append(holder)
        return holder

    def grow(self, holder: Holder, num_blocks: int) -> bool:
        if num_blocks > self.available():
            return False
        used = num_blocks + sum(h.own for h in self.holders)
        while used + len(self._runs()) > self.touched:
            if all(self._locked(run) for run in self._runs()):
                break
            self._evict()
        self.touched = max(self.touched, used + len(self._runs()))
        holder.own += num_blocks
        return True

    def _evict(self) -> None:
        leaves = [k for k in self.nodes if self._below(k) == [k] and not self._locked(k)]
        gone = min(leaves, key=lambda k: self.rank(self.nodes[k]))
        before = len(self._runs())
        del self.nodes[gone]
        self.num_evicted += before - len(self._runs())

    def publish(self, holder: Holder, tokens: Sequence[int], computed: int, *, whole: bool) -> None:
        before, end = len(holder.shown), computed - computed % self.size
        key = holder.salt, tuple(tokens[:end])
        known = self.match(tokens[:end], holder.salt)
        if end > before:
            self._split((holder.salt, key[1][:known]))
            if known < end:
                self.nodes[key] = Node(self.tick())
            holder.shown = key[1]
            holder.own -= (end - before) // self.size
            now = self.tick()
            for above in self._above(key):
                if len(above[1]) > before:
                    self.nodes[above].last_used = now
        for above in self._above((holder.salt, holder.shown)):
            node = self.nodes[above]
            node.hits += whole
            node.priority = max(node.priority, holder.priority)

    def release(self, holder: Holder, tokens: Sequence[int], computed: int) -> None:
        if computed >= len(holder.shown):
            self.publish(holder, tokens, computed, whole=True)
        self.holders.remove(holder)
        now = self.tick()
        for key in self._above((holder.salt, holder.shown)):
            self.nodes[key].last_used = now

    def reset(self) -> None:
        before = self.num_evicted
        while any(not self._locked(run) for run in self._runs()):
            self._evict()
        self.num_evicted = before


class NaiveQueue:
    """All blocks that nobody holds in one list; its head is handed out next."""

    def __init__(self, num_blocks: int, size: int, window: int | None, soft: int | None) -> None:
        self.size, self.window = size, window
        self.touched = num_blocks if soft is None else soft
        self.queue = list(range(num_blocks))
        self.holds = [0] * num_blocks
        self.names: list[tuple[Key, int]] = []
        """What each block holds, in order of publication."""
        self.num_evicted = 0

    def available(self) -> int:
        return len(self.queue)

    def _find(self, key: Key) -> int | None:
        return next((block for name, block in self.names if name == key), None)

    def _found(self, tokens: Sequence[int], salt: str) -> list[int | None]:
        ends = range(self.size, len(tokens) + 1, self.size)
        return [self._find((salt, tuple(tokens[:end]))) for end in ends]

    def match(self, tokens: Sequence[int], salt: str) -> int:
        return len(self._hit(tokens, salt)) * self.size

    def _hit(self, tokens: Sequence[int], salt: str) -> list[int | None]:
        """Blocks; None where the window does not reach."""
        found = self._found(tokens, salt)
        for count in range(len(found), 0, -1):
            first = 0
            if self.window is not None:
                first = max(0, count * self.size - self.window + 1) // self.size
            if all(block is not None for block in found[first:count]):
                return [None] * first + found[first:count]
        return []

    def lease(self, tokens: Sequence[int], salt: str, priority: int) -> Holder:
        hit = self._hit(tokens, salt)
        holder = Holder(salt, priority, shown=tuple(tokens[: len(hit) * self.size]))
        holder.blocks = [-1 if block is None else block for block in hit]
        for block in holder.blocks:
            if block >= 0:
                self.holds[block] += 1
                self.queue = [free for free in self.queue if free != block]
        return holder

    def grow(self, holder: Holder, num_blocks: int) -> bool:
        if num_blocks > len(self.queue):
            return False
        for _ in range(num_blocks):
            block = self.queue.pop(self._next())
            before = len(self.names)
            self.names = [entry for entry in self.names if entry[1] != block]
            self.num_evicted += before - len(self.names)
            self.holds[block] = 1
            holder.blocks.append(block)
        return True

    def _next(self) -> int:
        """Those without a name are in front; beyond what was touched, one with a name will do."""
        named = {block for _, block in self.names}
        busy = len(self.holds) - sum(block not in named for block in self.queue)
        if busy < self.touched:
            return 0
        self.touched = max(self.touched, busy + (not named.intersection(self.queue)))
        return next((i for i, block in enumerate(self.queue) if block in named), 0)

    def publish(self, holder: Holder, tokens: Sequence[int], computed: int, *, whole: bool) -> None:
        for end in range(len(holder.shown) + self.size, computed + 1, self.size):
            self.names.append(
                ((holder.salt, tuple(tokens[:end])), holder.blocks[end // self.size - 1])
            )
            holder.shown = tuple(tokens[:end])
        if self.window is not None:
            out = max(0, computed - self.window + 1) // self.size
            gone = [(i, b) for i, b in enumerate(holder.blocks[:out]) if b >= 0]
            self._free([block for _, block in gone])
            for index, _ in gone:
                holder.blocks[index] = -1

    def _free(self, blocks: Sequence[int]) -> None:
        named = {block for _, block in self.names}
        for block in reversed(blocks):
            self.holds[block] -= 1
            if not self.holds[block]:
                self.queue.insert(len(self.queue) if block in named else 0, block)

    def release(self, holder: Holder, tokens: Sequence[int], computed: int) -> None:
        if computed >= len(holder.shown):
            self.publish(holder, tokens, computed, whole=True)
        self._free([block for block in holder.blocks if block >= 0])

    def reset(self) -> None:
        self.names = [entry for entry in self.names if entry[1] not in self.queue]


Naive = NaiveTree | NaiveQueue


def kinds(*, window: bool) -> Iterator[tuple[str, str]]:
    """Every index with each of its ways to evict; only hashes know windows."""
    if not window:
        yield from (("radix", policy) for policy in RANKS)
    yield "hashed", "free-queue"


def build_naive(
    index: str,
    policy: str,
    num_blocks: int,
    size: int,
    window: int | None = None,
    soft: int | None = None,
) -> Naive:
    if index == "radix":
        return NaiveTree(num_blocks, size, policy, soft)
    return NaiveQueue(num_blocks, size, window, soft)
