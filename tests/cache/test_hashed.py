"""The hash index: chained digests, the free queue, lazy eviction."""

from __future__ import annotations

from treadle.cache.hashed import HashedPrefixCache
from treadle.cache.prefix import NO_BLOCK, Lease, Window


def admit(cache: HashedPrefixCache, tokens: list[int]) -> Lease:
    lease = cache.lease(cache.match(tokens[:-1], ""), "")
    assert cache.grow(lease, -(-len(tokens) // cache.block_size) - len(lease.blocks)) is not None
    return lease


def test_a_block_is_known_by_its_whole_history() -> None:
    cache = HashedPrefixCache(16, 4)
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    cache.release(admit(cache, text), text, 8)
    assert cache.match(text, "").num_tokens == 8
    assert cache.match([9, 9, 9, 9, 5, 6, 7, 8], "").num_tokens == 0


def test_a_whole_aligned_hit_still_computes_its_last_block() -> None:
    cache = HashedPrefixCache(16, 16)
    text = list(range(32))
    cache.release(admit(cache, text), text, 32)
    assert admit(cache, text).num_published == 16


def test_tails_are_evicted_before_their_beginnings_and_unhashed_blocks_first() -> None:
    cache = HashedPrefixCache(4, 2)
    text = [1, 2, 3, 4, 5, 6, 7]
    lease = admit(cache, text)
    last = lease.blocks[3]
    cache.release(lease, text, 7)
    taken = cache.lease(cache.match([], ""), "")
    assert cache.grow(taken, 1) == [last], "the partial block has no digest"
    cache.grow(taken, 1)
    assert cache.match(text, "").num_tokens == 4, "the tail went first"
    cache.check([taken])


def test_equal_blocks_computed_at_once_both_stay() -> None:
    cache = HashedPrefixCache(8, 2)
    text = [1, 2, 3, 4]
    first, second = admit(cache, text), admit(cache, text)
    for lease in (first, second):
        assert cache.publish(lease, text, 4, decode=False).surplus == []
    assert set(first.blocks).isdisjoint(second.blocks)
    assert cache.match(text, "").blocks == first.blocks
    cache.release(first, text, 4)
    cache.release(second, text, 4)
    assert cache.num_available == 8
    cache.check([])


def test_full_blocks_are_found_while_the_request_still_decodes() -> None:
    cache = HashedPrefixCache(8, 2)
    text = [1, 2, 3]
    lease = admit(cache, text)
    cache.publish(lease, text, 3, decode=False)
    text.append(4)
    cache.publish(lease, text, 4, decode=True)
    assert cache.match([1, 2, 3, 4], "").num_tokens == 4


def test_a_window_keeps_its_blocks_and_gives_back_the_others() -> None:
    """Window of 5 tokens, blocks of 2: the token at position 8 sees 4 to 8."""
    cache = HashedPrefixCache(8, 2, Window(5, step_tokens=4))
    text = list(range(20))
    lease = admit(cache, text[:4])
    for end in range(4, 9):
        assert cache.grow(lease, -(-end // 2) - len(lease.blocks)) is not None
        cache.free(cache.publish(lease, text[:end], end, decode=end > 4).surplus)
    assert lease.blocks[:2] == [NO_BLOCK, NO_BLOCK]
    assert NO_BLOCK not in lease.blocks[2:]
    assert cache.num_available == 8 - 2
    cache.check([lease])


def test_a_windowed_prefix_is_found_by_its_last_blocks() -> None:
    cache = HashedPrefixCache(6, 2, Window(5, step_tokens=4))
    text = list(range(12))
    lease = cache.lease(cache.match([], ""), "")
    for end in range(2, 13, 2):
        assert cache.grow(lease, 1) is not None
        cache.free(cache.publish(lease, text[:end], end, decode=False).surplus)
    cache.release(lease, text, 12)
    match = cache.match(text, "")
    assert match.num_tokens == 12
    assert match.blocks[:4] == [NO_BLOCK] * 4, "the next token sees 8 to 12"
    assert cache.match(text[:9], "").num_tokens == 8
    other = cache.lease(cache.match([], ""), "")
    cache.grow(other, 3)  # takes the blocks that slid out first: 0 to 5
    assert cache.match(text, "").num_tokens == 12
    assert cache.match(text[:8], "").num_tokens == 0, (
        "of 4 to 7, which it would see, 4 and 5 are gone"
    )
    cache.check([other])


def test_the_second_of_equal_blocks_is_found_once_the_first_is_gone() -> None:
    cache = HashedPrefixCache(4, 2)
    text = [1, 2, 3, 4]
    first, second = admit(cache, text), admit(cache, text)
    for lease in (first, second):
        cache.publish(lease, text, 4, decode=False)
    cache.release(first, text, 4)
    other = cache.lease(cache.match([], ""), "")
    assert cache.grow(other, 2) is not None, "which takes the first's"
    assert cache.match(text, "").blocks == second.blocks
    cache.check([second, other])


def test_a_window_hits_behind_a_gap() -> None:
    """The worked example `swa_hit_vllm`: two blocks in a row are needed; 2 and 3 are."""
    cache = HashedPrefixCache(16, 4, Window(9, step_tokens=24))
    text = list(range(24))
    lease = cache.lease(cache.match([], ""), "")
    whole = cache.grow(lease, 6)
    assert whole is not None
    cache.publish(lease, text, 24, decode=False)
    for index in (0, 1, 4):
        digest = list(cache._chain(text, ""))[index]
        if digest in cache._blocks:
            cache._forget(cache._blocks[digest])
    match = cache.match(text, "")
    assert match.num_tokens == 16
    assert match.blocks == [NO_BLOCK, NO_BLOCK, *whole[2:4]]
