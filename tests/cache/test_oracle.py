"""Every prefix index against the plainest one: a list of everything ever computed."""

from __future__ import annotations

import random

import pytest

from tests.simulation.world import random_prompt
from treadle.cache.kv import build_prefix_cache
from treadle.cache.prefix import Lease


class Oracle:
    """Which prefixes were published, as long as nothing needs evicting."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._known: set[tuple[str, tuple[int, ...]]] = set()

    def publish(self, tokens: list[int], salt: str) -> None:
        for end in range(self._size, len(tokens) + 1, self._size):
            self._known.add((salt, tuple(tokens[:end])))

    def match(self, tokens: list[int], salt: str) -> int:
        end = 0
        while (salt, tuple(tokens[: end + self._size])) in self._known:
            end += self._size
            if end + self._size > len(tokens):
                break
        return end


@pytest.mark.parametrize("index", ["radix", "hashed"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_finds_what_a_list_would_find(index: str, block_size: int) -> None:
    rng = random.Random(block_size)
    cache = build_prefix_cache(index, 20_000, block_size)
    oracle = Oracle(block_size)
    alive: list[tuple[Lease, list[int], int]] = []
    for _ in range(300):
        tokens, salt = random_prompt(rng, 70), rng.choice(["", "a", "b"])
        match = cache.match(tokens, salt)
        assert match.num_tokens == oracle.match(tokens, salt)
        lease = cache.lease(match, salt)
        missing = -(-len(tokens) // block_size) - len(lease.blocks)
        assert cache.grow(lease, missing) is not None
        computed = rng.randint(match.num_tokens, len(tokens))
        cache.free(cache.publish(lease, tokens, computed, decode=False).surplus)
        oracle.publish(tokens[:computed], salt)
        alive.append((lease, tokens, computed))
        while len(alive) > rng.randint(0, 6):
            lease, tokens, computed = alive.pop(rng.randrange(len(alive)))
            computed = rng.randint(computed, len(tokens))
            cache.release(lease, tokens, computed)
            oracle.publish(tokens[:computed], lease.salt)
        cache.check([lease for lease, _, _ in alive])


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
