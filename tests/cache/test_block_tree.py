"""The block tree against a plain list of its blocks, and its rules one by one."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.simulation.world import random_prompt
from treadle.cache.block_tree import BlockTreePrefixCache, PartialReuse
from treadle.cache.prefix import Lease
from treadle.cache.retention import RetentionQueues

OFF = PartialReuse(on=False)
TAKE_ONLY = PartialReuse(copies=False)


@dataclasses.dataclass
class Kept:
    """A block that can be found: the tokens before it, and its own."""

    salt: str
    before: list[int]
    tokens: list[int]
    block: int


class PlainTree:
    """What the tree must know, as a list, as long as nothing needs evicting."""

    def __init__(self, size: int, partial: PartialReuse) -> None:
        self._size = size
        self._partial = partial
        self._kept: list[Kept] = []
        self.held: list[int] = []

    def match(self, tokens: list[int], salt: str) -> int:
        at = 0
        while self._find(salt, tokens[:at], tokens[at : at + self._size], whole=True):
            at += self._size
        rest = tokens[at : at + self._size]
        usable = [
            _num_shared(kept.tokens, rest)
            for kept in self._kept
            if (kept.salt, kept.before) == (salt, tokens[:at])
            and (self._partial.copies or self._is_free_leaf(kept))
        ]
        return at + max(usable, default=0) if self._partial.on else at

    def take(self, blocks: list[int], num_whole: int) -> None:
        """A lease has `blocks`, of which those behind the first `num_whole` were taken over."""
        self.held += blocks
        self._kept = [kept for kept in self._kept if kept.block not in blocks[num_whole:]]

    def store(self, tokens: list[int], salt: str, blocks: list[int]) -> None:
        for start in range(0, len(tokens), self._size):
            own = tokens[start : start + self._size]
            whole = len(own) == self._size
            if (whole or self._partial.on) and not self._find(salt, tokens[:start], own):
                block = blocks[start // self._size]
                self._kept.append(Kept(salt, tokens[:start], own, block))

    def give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self.held.remove(block)

    def _find(self, salt: str, before: list[int], own: list[int], *, whole: bool = False) -> bool:
        if whole and len(own) < self._size:
            return False
        return any((k.salt, k.before, k.tokens) == (salt, before, own) for k in self._kept)

    def _is_free_leaf(self, kept: Kept) -> bool:
        path = kept.before + kept.tokens
        below = any((k.salt, k.before) == (kept.salt, path) for k in self._kept)
        return kept.block not in self.held and not below


def _num_shared(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@pytest.mark.parametrize("partial", [PartialReuse(), TAKE_ONLY, OFF])
@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_finds_what_a_list_would_find(partial: PartialReuse, block_size: int) -> None:
    rng = random.Random(block_size)
    cache = BlockTreePrefixCache(20_000, block_size, partial)
    plain = PlainTree(block_size, partial)
    alive: list[tuple[Lease, list[int], int]] = []
    partial_hits = 0
    for _ in range(300):
        tokens, salt = random_prompt(rng, 100), rng.choice(["", "a", "b"])
        match = cache.match(tokens, salt)
        assert match.num_tokens == plain.match(tokens, salt)
        partial_hits += match.num_tokens % block_size != 0
        lease = cache.lease(match, salt)
        plain.take(lease.blocks, match.num_tokens // block_size)
        assert cache.grow(lease, -(-len(tokens) // block_size) - len(lease.blocks)) is not None
        plain.held += lease.blocks[-(-match.num_tokens // block_size) :]
        computed = rng.randint(match.num_tokens, len(tokens))
        cache.publish(lease, tokens, computed, decode=rng.random() < 0.5)
        plain.store(tokens[: computed // block_size * block_size], salt, lease.blocks)
        alive.append((lease, tokens, computed))
        while len(alive) > rng.randint(0, 6):
            lease, tokens, computed = alive.pop(rng.randrange(len(alive)))
            computed = rng.randint(computed, len(tokens))
            blocks = list(lease.blocks)
            cache.release(lease, tokens, computed)
            plain.store(tokens[:computed], lease.salt, blocks)
            plain.give_back(blocks)
        cache.check([lease for lease, _, _ in alive])
    assert (partial_hits > 5) == (partial.on and block_size > 1)


def kept(
    cache: BlockTreePrefixCache, tokens: list[int], computed: int | None = None, salt: str = ""
) -> None:
    """A request comes, computes and goes."""
    end = len(tokens) if computed is None else computed
    lease = cache.lease(cache.match(tokens[: end - 1], salt), salt)
    assert cache.grow(lease, cache.most_blocks(len(tokens)) - len(lease.blocks)) is not None
    cache.publish(lease, tokens, end, decode=False)
    cache.release(lease, tokens, end)
    cache.check([])


@pytest.mark.parametrize(
    ("partial", "block_size", "reused"),
    [(OFF, 1, 1210), (OFF, 16, 1200), (OFF, 64, 1152), (OFF, 32, 1184)]
    + [(PartialReuse(), size, 1210) for size in (16, 32, 64)],
)
def test_reuse_of_1210_tokens(partial: PartialReuse, block_size: int, reused: int) -> None:
    """By whole blocks; or to the token, where part of a block can be copied."""
    cache = BlockTreePrefixCache(8192 // block_size, block_size, partial)
    shared = list(range(1210))
    kept(cache, shared + [9000 + i for i in range(300)])
    match = cache.match(shared + [8000 + i for i in range(300)], "")
    assert match.num_tokens == reused
    lease = cache.lease(match, "")
    assert (lease.copy is not None) == (reused % block_size != 0)
    cache.release(lease, shared, reused)
    cache.check([])


def test_a_held_block_is_copied() -> None:
    cache = BlockTreePrefixCache(8, 4)
    first = cache.lease(cache.match([], ""), "")
    (held,) = cache.grow(first, 1) or []
    cache.publish(first, [1, 2, 3, 4], 4, decode=False)
    match = cache.match([1, 2, 3, 9, 9], "")
    assert (match.num_tokens, match.blocks, match.num_evictable) == (3, [], 0)
    second = cache.lease(match, "")
    (own,) = second.blocks
    assert second.copy == (held, own)
    assert (second.num_published, cache.num_available) == (0, 6)
    cache.check([first, second])


def test_an_inner_block_is_copied_and_the_tree_keeps_it() -> None:
    cache = BlockTreePrefixCache(8, 4)
    kept(cache, list(range(12)))
    match = cache.match([0, 1, 2, 3, 4, 5, 99, 99, 99], "")
    assert (match.num_tokens, len(match.blocks)) == (6, 1)
    lease = cache.lease(match, "")
    assert lease.copy is not None
    cache.check([lease])
    assert cache.match(list(range(12)), "").num_tokens == 12


def test_a_free_leaf_is_taken_over() -> None:
    """It is the request's own then: nobody else finds it until it is full or given back."""
    cache = BlockTreePrefixCache(8, 4)
    kept(cache, list(range(8)), 6)
    match = cache.match([0, 1, 2, 3, 4, 99, 99], "")
    assert (match.num_tokens, len(match.blocks), match.num_evictable) == (5, 2, 2)
    lease = cache.lease(match, "")
    assert lease.copy is None
    assert cache.num_available == 6
    assert cache.match(list(range(8)), "").num_tokens == 4
    cache.release(lease, [0, 1, 2, 3, 4, 99, 99], 7)
    assert cache.match([0, 1, 2, 3, 4, 99, 99], "").num_tokens == 7


def test_without_copies_only_free_leaves_are_used_in_part() -> None:
    cache = BlockTreePrefixCache(16, 4, TAKE_ONLY)
    kept(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    kept(cache, [1, 2, 9, 9])
    assert cache.match([1, 2, 3, 0], "").num_tokens == 2, "of the block that shares three: none"


def test_a_cached_prompt_computes_one_token() -> None:
    """A prompt is matched without its last token. Of 64 tokens 63 are found, and of 65 all 64, for
    then the last block starts empty."""
    cache = BlockTreePrefixCache(16, 32)
    prompt = list(range(65))
    kept(cache, prompt)
    for length in (64, 65):
        match = cache.match(prompt[: length - 1], "")
        assert match.num_tokens == length - 1
        lease = cache.lease(match, "")
        assert len(lease.blocks) == 2
        cache.release(lease, prompt, length - 1)
    cache.check([])


def test_equal_blocks_stay_apart() -> None:
    """Two requests compute the same; the tree keeps the first one's, and neither loses its own."""
    cache = BlockTreePrefixCache(8, 4)
    leases = [cache.lease(cache.match([], ""), "") for _ in range(2)]
    tokens = list(range(8))
    for lease in leases:
        cache.grow(lease, 2)
    for lease in leases:
        published = cache.publish(lease, tokens, 8, decode=False)
        assert published.blocks == published.surplus == []
    cache.check(leases)
    assert cache.match(tokens, "").blocks == leases[0].blocks != leases[1].blocks
    for lease in leases:
        cache.release(lease, tokens, 8)
    cache.check([])
    assert len(cache.match(tokens, "").blocks) == 2


def test_what_goes_first() -> None:
    """Blocks are given back last first, so a sequence goes from its end, and an older one goes
    before a newer one."""
    cache = BlockTreePrefixCache(6, 4)
    kept(cache, list(range(12)))
    kept(cache, list(range(100, 112)))
    lease = cache.lease(cache.match([], ""), "")
    for left_of_old in (8, 4, 0):
        assert cache.grow(lease, 1) is not None
        assert cache.match(list(range(12)), "").num_tokens == left_of_old
        assert cache.match(list(range(100, 112)), "").num_tokens == 12
    cache.check([lease])


def test_what_goes_takes_along_what_hangs_below() -> None:
    """A block of a request hangs below another's, which nobody holds any more. It leaves the tree
    with it, stays the request's, and comes back when the request has it published again."""
    cache = BlockTreePrefixCache(5, 4)
    a, b = (cache.lease(cache.match([], ""), "") for _ in range(2))
    tokens = list(range(8))
    cache.grow(a, 1)
    cache.grow(b, 2)
    cache.publish(a, tokens, 4, decode=False)
    cache.publish(b, tokens, 8, decode=False)
    cache.release(a, tokens, 4)
    assert cache.match(tokens, "").num_tokens == 8
    assert cache.num_available == 3
    c = cache.lease(cache.match([], ""), "")
    assert cache.grow(c, 3) is not None
    cache.check([b, c])
    assert cache.match(tokens, "").num_tokens == 0
    cache.release(c, list(range(50, 62)), 12)
    cache.release(b, tokens, 8)
    cache.check([])
    assert cache.match(tokens, "").num_tokens == 8


def test_a_copy_finds_room_beside_its_source() -> None:
    """All blocks are taken or cached, and the source is the one that would go first."""
    cache = BlockTreePrefixCache(4, 4)
    a, b = (cache.lease(cache.match([], ""), "") for _ in range(2))
    tokens = list(range(8))
    cache.grow(a, 1)
    cache.grow(b, 2)
    cache.publish(a, tokens, 4, decode=False)
    cache.publish(b, tokens, 8, decode=False)
    cache.release(a, tokens, 4)
    cache.release(b, tokens, 8)
    c = cache.lease(cache.match([], ""), "")
    cache.grow(c, 2)
    lease = cache.lease(cache.match([0, 1, 9], ""), "")
    assert lease.copy is not None
    cache.check([c, lease])
    assert cache.match(tokens, "").num_tokens == 4


def test_the_path_of_a_match() -> None:
    """Who shares more has more nodes in common, of which one may be shared in part."""
    cache = BlockTreePrefixCache(16, 4)
    assert cache.path(cache.match([1], "")) == []
    kept(cache, list(range(12)))
    whole = cache.path(cache.match(list(range(12)), ""))
    part = cache.path(cache.match([0, 1, 2, 3, 4, 5, 99], ""))
    assert part == whole[: len(part)]
    assert (len(part), len(whole)) == (3, 4), "the salt's node comes first"


def test_salts_share_nothing_not_even_part_of_a_block() -> None:
    cache = BlockTreePrefixCache(16, 4)
    kept(cache, list(range(7)), salt="a")
    assert cache.match(list(range(7)), "").num_tokens == 0
    assert cache.match(list(range(7)), "b").num_tokens == 0
    assert cache.match(list(range(7)), "a").num_tokens == 7


def test_reset_forgets_what_nobody_holds() -> None:
    cache = BlockTreePrefixCache(16, 4)
    kept(cache, list(range(9)))
    lease = cache.lease(cache.match(list(range(4)), ""), "")
    cache.reset()
    assert cache.match(list(range(9)), "").num_tokens == 4
    cache.check([lease])
    cache.release(lease, list(range(4)), 4)
    cache.reset()
    assert cache.num_available == 16
    assert cache.match(list(range(9)), "").num_tokens == 0


def test_levels_of_retention() -> None:
    queues = RetentionQueues()
    for block, level in (1, 35), (2, 80), (3, 35), (4, 0), (5, 80):
        queues.push(block, level)
    queues.remove(1)
    order = []
    while len(queues):
        order.append(queues.first())
        queues.remove(order[-1])
    assert order == [4, 3, 2, 5]
