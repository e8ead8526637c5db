"""The radix tree: locks, splits, eviction, duplicates; and SGLang's worked example."""

from __future__ import annotations

import pytest

from treadle.cache.eviction import EVICTIONS, Segmented
from treadle.cache.prefix import Lease
from treadle.cache.radix import Node, RadixPrefixCache

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


def test_answers_count_their_prompt_twice_and_chunks_do_not() -> None:
    """So a prompt that was answered reaches the threshold of slru without being shared."""
    cache = RadixPrefixCache(64, 1)
    tokens = list(range(10))
    lease = admit(cache, tokens)
    cache.publish(lease, tokens, 4, decode=False)
    assert hits(cache) == {4: 0}
    cache.publish(lease, tokens, 10, decode=False)
    assert hits(cache) == {4: 1, 10: 1}
    cache.grow(lease, 2)
    cache.publish(lease, [*tokens, 50], 11, decode=True)
    cache.release(lease, [*tokens, 50, 51], 12)
    assert hits(cache) == {4: 2, 10: 2, 12: 1}


def hits(cache: RadixPrefixCache) -> dict[int, int]:
    """By how many tokens end there; of a tree without branches."""
    found, end, node = {}, 0, next(iter(cache._root.children.values()))
    while True:
        end += len(node.tokens)
        found[end] = node.hits
        if not node.children:
            return found
        node = next(iter(node.children.values()))


def test_segments() -> None:
    """The worked example `slru_threshold`: on probation first, in each segment the older one."""
    nodes = {1: (1, 50), 2: (2, 10), 3: (0, 20)}

    def key(number: int) -> tuple[int, int]:
        node = Node(None, None, [], [])
        node.hits, node.last_used = nodes[number]
        return Segmented().rank(node), node.last_used

    assert sorted(nodes, key=key) == [3, 1, 2]


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        *[("lru", "bca"), ("lfu", "bca"), ("slru", "bca"), ("priority", "cab")],
        *[("fifo", "abc"), ("filo", "cba"), ("mru", "acb")],
    ],
)
def test_each_policy_has_its_own_order(policy: str, gone: str) -> None:
    """a comes first and is used again; b has the highest priority, c the lowest."""
    cache = RadixPrefixCache(12, 1, EVICTIONS[policy])
    texts = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}
    priorities = {"a": 1, "b": 2, "c": 0}
    for name in "abca":
        lease = admit(cache, texts[name], limit=3)
        lease.priority = priorities[name]
        cache.release(lease, texts[name], 3)
    order = ""
    for _ in texts:
        cache.evict(1)
        order += "".join(
            name
            for name, text in texts.items()
            if name not in order and cache.match(text, "").num_tokens == 0
        )
    assert order == gone
