"""Masks and bad words as row states: which tokens are left to choose."""

from __future__ import annotations

import numpy as np

from treadle.sampling.edits import BadWords
from treadle.sampling.masks import AllowedTokens, bits
from treadle.wire.plan import RowJoin
from treadle.wire.sampling_params import SamplingParams


def join(row: int, **fields: object) -> RowJoin:
    params = SamplingParams(allowed_token_ids=fields.pop("allowed", None))  # type: ignore[arg-type]
    return RowJoin(row=row, params=params, seed=0, choice=0, **fields)  # type: ignore[arg-type]


def test_bits_stand_where_their_tokens_do() -> None:
    assert bits([0, 31, 32, 70, 70], 3).tolist() == [1 | 1 << 31, 1, 1 << 6]


def test_only_rows_that_ask_are_masked() -> None:
    masks = AllowedTokens(40)
    masks.join(join(3, allowed=[1]))
    masks.join(join(5))
    masks.join(join(7, allowed=[39]))
    collected = masks.collect([7, 5, 3])
    assert collected is not None
    places, words = collected
    assert places.tolist() == [0, 2]
    assert words.tolist() == [[0, 1 << 7], [2, 0]]
    masks.leave(3)
    masks.leave(7)
    assert masks.collect([7, 5, 3]) is None


def test_the_last_token_of_a_bad_word_is_banned_behind_the_others() -> None:
    words = BadWords()
    words.join(join(0, bad_words=[[4], [7, 8], [7, 7, 9], [8, 1]], output=[7]))
    assert banned(words) == {4, 8}
    words.sampled(0, 7)
    assert banned(words) == {4, 8, 9}
    words.sampled(0, 8)
    assert banned(words) == {4, 1}
    words.leave(0)
    assert words.edits(0, 0) is None


def banned(words: BadWords) -> set[int]:
    edits = words.edits(0, 0)
    assert edits is not None
    assert np.isneginf(edits.add).all()
    return set(edits.tokens.tolist())
