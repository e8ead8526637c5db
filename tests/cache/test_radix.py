"""The radix tree: locks, splits, eviction, duplicates; and SGLang's worked example."""

from __future__ import annotations

from treadle.cache.prefix import Lease
from treadle.cache.radix import RadixPrefixCache

SYSTEM = [1000 + i for i in range(1200)]


def admit(cache: RadixPrefixCache, tokens: list[int], *, limit: int | None = None) -> Lease:
    match = cache.match(tokens[: len(tokens) - 1 if limit is None else limit], "")
    lease = cache.lease(match, "")
    missing = -(-len(tokens) // cache.block_size) - len(lease.blocks)
    assert cache.grow(lease, missing) is not None
    return lease


def sizes(cache: RadixPrefixCache) -> tuple[int, int]:
    return cache.evictable_tokens, cache.protected_tokens


def test_seven_steps() -> None:
    """1,200 tokens of system prompt; A adds 300 and answers 200, B adds 180; 250 are needed."""
    cache = RadixPrefixCache(4000, 1)
    prompt_a = SYSTEM + list(range(300))
    answer_a = [5000 + i for i in range(200)]
    prompt_b = SYSTEM + [700 + i for i in range(180)]

    a = admit(cache, prompt_a)
    assert (a.num_published, sizes(cache)) == (0, (0, 0))
    cache.publish(a, prompt_a, 1500, decode=False)
    assert sizes(cache) == (0, 1500)
    history = prompt_a + answer_a
    assert cache.grow(a, 200) is not None
    cache.release(a, history, 1700)
    assert sizes(cache) == (1700, 0)

    b = admit(cache, prompt_b)
    assert b.num_published == 1200
    assert sizes(cache) == (500, 1200)
    cache.publish(b, prompt_b, 1380, decode=False)
    assert sizes(cache) == (500, 1380)

    assert cache.evict(250) == 500, "whole leaves: first the answer, then the rest of the prompt"
    assert sizes(cache) == (0, 1380)

    next_turn = history + [9000 + i for i in range(150)]
    match = cache.match(next_turn[:-1], "")
    assert (match.num_tokens, len(next_turn) - match.num_tokens) == (1200, 650)
    cache.check([b])


def test_concurrent_equal_prompts_end_with_one_copy() -> None:
    cache = RadixPrefixCache(64, 4)
    tokens = list(range(14))
    first, second = admit(cache, tokens), admit(cache, tokens)
    own = list(second.blocks)
    assert cache.publish(first, tokens, 14, decode=False).surplus == []
    published = cache.publish(second, tokens, 14, decode=False)
    assert published.start == 0
    assert published.blocks == first.blocks[:3] == second.blocks[:3]
    assert published.surplus == own[:3]
    assert second.blocks[3] == own[3], "the unaligned tail stays the request's own"
    cache.free(published.surplus)
    cache.check([first, second])
    cache.release(first, tokens, 14)
    cache.release(second, tokens, 14)
    assert cache.num_available == 64
    assert cache.evictable_tokens == 12
    cache.check([])


def test_a_split_keeps_anchors_and_locks() -> None:
    cache = RadixPrefixCache(64, 1)
    long = list(range(20))
    first = admit(cache, long)
    cache.publish(first, long, 20, decode=False)
    second = admit(cache, [*long[:10], 99])
    assert second.num_published == 10
    cache.check([first, second])
    cache.release(second, [*long[:10], 99], 11)
    cache.check([first])
    assert sizes(cache) == (1, 20)
    cache.release(first, long, 20)
    assert sizes(cache) == (21, 0)


def test_least_recently_used_leaf_goes_first() -> None:
    cache = RadixPrefixCache(12, 1)
    texts = [[10 * i + j for j in range(4)] for i in range(3)]
    for text in texts:
        cache.release(admit(cache, text), text, 4)
    again = admit(cache, texts[0])
    cache.release(again, texts[0], 4)
    assert cache.evict(1) == 4
    found = [cache.match(text, "").num_tokens for text in texts]
    assert found == [4, 0, 4], "the first was used again"


def test_eviction_stops_at_locks_and_frees_parents_that_became_leaves() -> None:
    cache = RadixPrefixCache(40, 1)
    stem = list(range(10))
    for tail in (100, 200):
        text = [*stem, *(tail + i for i in range(5))]
        cache.release(admit(cache, text), text, 15)
    holder = admit(cache, [*stem, 100, 101, 102, 103, 104])
    assert cache.evict(1000) == 5 + 1, "the other branch, and the held one's unmatched last token"
    assert cache.protected_tokens == 14
    cache.check([holder])
    cache.release(holder, [*stem, 100, 101, 102, 103, 104], 15)
    assert cache.evict(1000) == 15
    assert cache.num_available == 40
    cache.check([])


def test_many_leaves_keep_the_order_of_eviction_small() -> None:
    cache = RadixPrefixCache(512, 1)
    text = list(range(4))
    for _ in range(5000):
        cache.release(admit(cache, text), text, 4)
    assert len(cache._leaves) < 200
    cache.check([])
