"""Every prefix index, under every eviction, against the plainest one: a list of what is cached."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.cache.naive import Holder, build_naive, kinds
from tests.simulation.world import random_prompt
from treadle.cache.hashed import HashedPrefixCache
from treadle.cache.kv import Keeping, build_prefix_cache
from treadle.cache.prefix import Lease, Published, Window
from treadle.cache.radix import Node, RadixPrefixCache

PLENTY, FEW = 3000, 60
"""Tokens in the pool: nothing is ever evicted, and with almost every request something is."""

STEPS = {PLENTY: 80, FEW: 400}

CASES = [
    (index, policy, size, tokens, window)
    for window in (None, 9)
    for index, policy in kinds(window=window is not None)
    for size in (1, 3, 16)
    for tokens in (PLENTY, FEW)
    if size < 16 or (tokens == PLENTY and window is None)
]


@pytest.mark.parametrize(("index", "policy", "size", "tokens", "window"), CASES)
def test_finds_what_a_list_would_find(
    index: str, policy: str, size: int, tokens: int, window: int | None
) -> None:
    """And evicts what it would evict: after each step both know the same, of everything asked."""
    life = Life(index, policy, size, tokens, window)
    for _ in range(STEPS[tokens]):
        life.step()
    assert (life.cache.num_evicted > 0) == (tokens == FEW)
    life.end()


@pytest.mark.parametrize("soft", [0, 80, 200])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("index", "policy"), list(kinds(window=False)))
def test_beyond_a_soft_limit_what_is_cached_goes_before_fresh_blocks(
    index: str, policy: str, size: int, soft: int
) -> None:
    life = Life(index, policy, size, PLENTY, None, soft=soft)
    for _ in range(150):
        life.step()
    assert life.cache.num_evicted > 0
    life.end()


@pytest.mark.parametrize("size", [1, 3])
def test_windows_slide_under_a_soft_limit(size: int) -> None:
    life = Life("hashed", "free-queue", size, PLENTY, 9, soft=80)
    for _ in range(150):
        life.step()
    assert life.cache.num_evicted > 0
    life.end()


@pytest.mark.parametrize("index", ["radix", "hashed", "block-tree"])
def test_requests_that_come_one_by_one_need_no_more_than_the_soft_limit(index: str) -> None:
    """And those that run together get what they need beyond it, as far as there are blocks."""
    cache = build_prefix_cache(index, 100, 4, keeping=Keeping(num_soft=15))
    seen = set[int]()
    for start in range(0, 2000, 100):
        tokens = list(range(start, start + 20))
        lease = cache.lease(cache.match(tokens, ""), "")
        seen |= set(cache.grow(lease, 5) or ())
        cache.release(lease, tokens, 20)
        assert cache.match(tokens, "").num_tokens == 20
        assert cache.num_available == 100
    assert seen == set(range(15))
    leases = [cache.lease(cache.match([], ""), "") for _ in range(20)]
    assert all(cache.grow(lease, 5) is not None for lease in leases)
    cache.check(leases)


def forgets_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    split = RadixPrefixCache._split

    def wrong(self: RadixPrefixCache, node: Node, num_blocks: int) -> Node:
        upper = split(self, node, num_blocks)
        upper.hits = 0
        return upper

    monkeypatch.setattr(RadixPrefixCache, "_split", wrong)


def counts_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = RadixPrefixCache._insert

    def wrong(self: RadixPrefixCache, *given: Any, whole: bool) -> Published:
        return insert(self, *given, whole=True)

    monkeypatch.setattr(RadixPrefixCache, "_insert", wrong)


def stays_as_old_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = RadixPrefixCache._lock

    def wrong(self: RadixPrefixCache, node: Node, above: Node) -> None:
        used = node.last_used
        lock(self, node, above)
        node.last_used = used

    monkeypatch.setattr(RadixPrefixCache, "_lock", wrong)
    monkeypatch.setattr(RadixPrefixCache, "_unlock", _unlock_without_a_tick)


def _unlock_without_a_tick(self: RadixPrefixCache, node: Any) -> None:
    while node is not self._root:
        node.locks -= 1
        if node.locks == 0:
            self._evictable += len(node.blocks)
            self._offer(node)
        node = node.parent


def beginnings_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    free = HashedPrefixCache.free
    monkeypatch.setattr(
        HashedPrefixCache, "free", lambda self, blocks: free(self, list(reversed(blocks)))
    )


def twins_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: HashedPrefixCache, block: int, digest: bytes) -> None:
        if self._blocks.setdefault(digest, block) == block:
            self._digests[block] = digest
            self.version += 1

    monkeypatch.setattr(HashedPrefixCache, "_enter", wrong)


@pytest.mark.parametrize(
    ("index", "policy", "sabotage"),
    [
        ("radix", "slru", forgets_hits),
        ("radix", "lfu", counts_chunks),
        ("radix", "lru", stays_as_old_as_it_was),
        ("hashed", "free-queue", beginnings_go_first),
        ("hashed", "free-queue", twins_are_forgotten),
    ],
)
def test_what_is_wrong_is_seen(
    index: str, policy: str, sabotage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def live() -> None:
        for seed in range(8):
            life = Life(index, policy, 1, FEW, None, seed)
            for _ in range(STEPS[FEW] // 2):
                life.step()

    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        live()


class Life:
    """Requests that come, compute, give way and go, in a cache and in its naive twin."""

    def __init__(
        self,
        index: str,
        policy: str,
        size: int,
        tokens: int,
        window: int | None,
        seed: int = 0,
        *,
        soft: int | None = None,
    ) -> None:
        """`soft` counts tokens."""
        num_soft = None if soft is None else soft // size
        sliding = Window(window, 40) if window else None
        count = tokens // size
        self.rng = random.Random(f"{index}{policy}{size}{tokens}{window}{seed}")
        keeping = Keeping(eviction=policy, num_soft=num_soft)
        self.cache = build_prefix_cache(index, count, size, sliding, keeping=keeping)
        self.naive = build_naive(index, policy, count, size, window, num_soft)
        self.longest = min(40, tokens - size)
        self.alive: list[tuple[Lease, Holder, list[int], int]] = []
        self.probes: list[tuple[list[int], str]] = []

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.45:
            self.come()
        elif choice < 0.995 and self.alive:
            lease, holder, tokens, computed = self.alive.pop(self.rng.randrange(len(self.alive)))
            (self.compute if choice < 0.75 else self.go)(lease, holder, tokens, computed)
        elif choice >= 0.995:
            self.cache.reset()
            self.naive.reset()
        self.compare()

    def come(self) -> None:
        tokens, salt = random_prompt(self.rng, self.longest), self.rng.choice(["", "", "a", "b"])
        priority = self.rng.randrange(3)
        match = self.cache.match(tokens, salt)
        lease, holder = self.cache.lease(match, salt), self.naive.lease(tokens, salt, priority)
        lease.priority = priority
        missing = -(-len(tokens) // self.cache.block_size) - len(lease.blocks)
        grown = self.naive.grow(holder, missing)
        assert (self.cache.grow(lease, missing) is not None) == grown
        self.probes = [*self.probes[-30:], (tokens, salt)]
        if grown:
            self.alive.append((lease, holder, tokens, match.num_tokens))
        else:
            self.cache.release(lease, tokens, match.num_tokens)
            self.naive.release(holder, tokens, match.num_tokens)

    def compute(self, lease: Lease, holder: Holder, tokens: list[int], computed: int) -> None:
        computed = self.rng.randint(computed, len(tokens))
        published = self.cache.publish(lease, tokens, computed, decode=False)
        self.naive.publish(holder, tokens, computed, whole=computed == len(tokens))
        self.cache.free(published.surplus)
        self.alive.append((lease, holder, tokens, computed))

    def go(self, lease: Lease, holder: Holder, tokens: list[int], computed: int) -> None:
        """Some leave nothing behind."""
        if self.rng.random() < 0.1:
            computed = 0
        self.cache.release(lease, tokens, computed)
        self.naive.release(holder, tokens, computed)

    def compare(self) -> None:
        assert self.cache.num_available == self.naive.available()
        assert self.cache.num_evicted == self.naive.num_evicted
        for tokens, salt in self.probes:
            assert self.cache.match(tokens, salt).num_tokens == self.naive.match(tokens, salt)
        self.cache.check([lease for lease, _, _, _ in self.alive])

    def end(self) -> None:
        for lease, holder, tokens, computed in self.alive:
            self.cache.release(lease, tokens, computed)
            self.naive.release(holder, tokens, computed)
        self.alive = []
        self.compare()
        assert self.cache.num_available == self.cache.num_blocks


@pytest.mark.parametrize("index", ["radix", "hashed", "none"])
def test_cached_blocks_never_refuse_a_request(index: str) -> None:
    cache = build_prefix_cache(index, 8, 2)
    for start in range(5):
        tokens = list(range(start * 100, start * 100 + 16))
        lease = cache.lease(cache.match(tokens, ""), "")
        assert cache.num_available == 8
        assert cache.grow(lease, 8) is not None
        assert cache.num_available == 0
        assert cache.grow(lease, 1) is None
        cache.release(lease, tokens, 16)
    cache.check([])


@pytest.mark.parametrize("index", ["radix", "hashed"])
def test_salts_share_nothing(index: str) -> None:
    cache = build_prefix_cache(index, 64, 4)
    tokens = list(range(16))
    for salt in ("", "a", "b"):
        assert cache.match(tokens, salt).num_tokens == 0
        lease = cache.lease(cache.match(tokens, salt), salt)
        cache.grow(lease, 4)
        cache.release(lease, tokens, 16)
        assert cache.match(tokens, salt).num_tokens == 16


@pytest.mark.parametrize(("block_size", "reused"), [(1, 1210), (16, 1200), (64, 1152)])
@pytest.mark.parametrize("index", ["radix", "hashed"])
def test_reuse_by_block_size(index: str, block_size: int, reused: int) -> None:
    """1,210 shared tokens: a match loses at most a block less one."""
    cache = build_prefix_cache(index, 8192 // block_size, block_size)
    shared = list(range(1210))
    first = shared + [9000 + i for i in range(300)]
    second = shared + [8000 + i for i in range(300)]
    lease = cache.lease(cache.match(first, ""), "")
    cache.grow(lease, -(-len(first) // block_size))
    cache.release(lease, first, len(first))
    assert cache.match(second, "").num_tokens == reused


@pytest.mark.parametrize("index", ["radix", "hashed", "none"])
@pytest.mark.parametrize("block_size", [1, 4])
def test_a_match_lasts_as_long_as_the_version(index: str, block_size: int) -> None:
    """In a pool so small that prefixes come and go all the time."""
    rng = random.Random(7)
    cache = build_prefix_cache(index, 120 // block_size, block_size)
    alive: list[tuple[Lease, list[int], int]] = []
    probes = [(random_prompt(rng, 70), rng.choice(["", "a"])) for _ in range(4)]
    seen = {number: (-1, cache.match(*probe)) for number, probe in enumerate(probes)}
    num_same = 0

    def look() -> None:
        nonlocal num_same
        for number, probe in enumerate(probes):
            version, match = seen[number]
            now = cache.match(*probe)
            if version == cache.version:
                num_same += 1
                assert now[:3] == match[:3]
            seen[number] = cache.version, now

    for _ in range(1500):
        look()
        if alive and rng.random() < 0.5:
            lease, tokens, computed = alive.pop(rng.randrange(len(alive)))
            if rng.random() < 0.5 and computed < len(tokens):
                computed = rng.randint(computed, len(tokens))
                decode = rng.random() < 0.5
                cache.free(cache.publish(lease, tokens, computed, decode=decode).surplus)
                alive.append((lease, tokens, computed))
            else:
                cache.release(lease, tokens, computed)
            continue
        tokens, salt = rng.choice(probes) if rng.random() < 0.3 else (random_prompt(rng, 70), "")
        lease = cache.lease(match := cache.match(tokens, salt), salt)
        look()
        if cache.grow(lease, -(-len(tokens) // block_size) - len(lease.blocks)) is None:
            cache.release(lease, tokens, match.num_tokens)
        else:
            alive.append((lease, tokens, match.num_tokens))
    assert num_same > 100


@pytest.mark.parametrize(
    ("index", "block_size", "prompt", "hit"),
    [
        *[("hashed", 16, prompt, hit) for prompt, hit in ((32, 16), (33, 32), (48, 32), (16, 0))],
        *[("radix", 1, 32, 31), ("radix", 1, 33, 32), ("radix", 16, 33, 32)],
        ("radix", 64, 129, 128),
    ],
)
def test_a_whole_prompt_is_never_found(index: str, block_size: int, prompt: int, hit: int) -> None:
    """The worked examples `vllm_full_hit` and `sglang_full_hit`: the last token is computed."""
    cache = build_prefix_cache(index, 512 // block_size, block_size)
    tokens = list(range(prompt))
    lease = cache.lease(cache.match([], ""), "")
    cache.grow(lease, -(-prompt // block_size))
    cache.release(lease, tokens, prompt)
    assert cache.match(tokens[:-1], "").num_tokens == hit
