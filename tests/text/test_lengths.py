"""How long prompts and answers may be under each rule, at the edges."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import PromptTooLong
from treadle.text.lengths import longest_kept, settle
from treadle.wire.messages import Lengths, Ready
from treadle.wire.sampling_params import SamplingParams


def ready(window: int, pool: int, **lengths: object) -> Ready:
    return Ready(
        max_model_len=window,
        vocab_size=100,
        kv_capacity_tokens=pool,
        eos_token_ids=[2],
        lengths=msgspec.convert(lengths, Lengths),
    )


def longest(num_prompt: int, asked: int | None, engine: Ready) -> int | None:
    return settle(num_prompt, SamplingParams(max_tokens=asked), engine).max_tokens


def test_the_worked_example() -> None:
    engine = ready(8192, 4000, rule="sglang", block_size=16, truncate=True)
    assert longest(1000, 100_000, engine) == 2975
    refusing = ready(200_000, 4000, rule="sglang", block_size=16)
    assert longest(1000, 100_000, refusing) == 2975


@pytest.mark.parametrize(
    ("num_prompt", "asked", "expected"),
    [
        (1, 10, 10),
        (50, 50, 48),  # fits the window; taken down to the longest request
        (50, 51, None),
        (93, 1, 1),
        (94, 1, None),  # 99 - 5
        (94, 0, None),
        (93, 0, 0),
        (50, None, 48),
    ],
)
def test_sglang_at_the_edges_of_a_window_of_100(
    num_prompt: int, asked: int | None, expected: int | None
) -> None:
    engine = ready(100, 1000, rule="sglang", block_size=1)
    if expected is None:
        with pytest.raises(PromptTooLong, match=r"100 tokens|fewer than 94"):
            longest(num_prompt, asked, engine)
    else:
        assert longest(num_prompt, asked, engine) == expected


@given(
    window=st.integers(8, 60),
    pool=st.integers(8, 60),
    size=st.sampled_from([1, 4]),
    num_prompt=st.integers(1, 80),
    asked=st.none() | st.integers(0, 90),
)
def test_what_is_settled_fits_the_pool(
    window: int, pool: int, size: int, num_prompt: int, asked: int | None
) -> None:
    """With truncation nothing is refused, and an empty engine can always take it."""
    pool -= pool % size
    engine = ready(window, pool, rule="sglang", block_size=size, truncate=True)
    kept = longest_kept(engine)
    assert kept is not None
    prompt = min(num_prompt, kept)
    answer = longest(prompt, asked, engine)
    assert answer is not None
    assert answer <= (90 if asked is None else asked)
    formula = max(
        0,
        min(
            2**30 if asked is None else asked,
            min(window - 1, pool - 1) - prompt - 1,
            pool - -(-prompt // size) * size - size - 1,
        ),
    )
    assert answer == formula
    assert prompt + answer <= min(window, pool)


def test_min_tokens_give_way_to_what_is_left() -> None:
    engine = ready(100, 1000, rule="sglang")
    params = SamplingParams(max_tokens=20, min_tokens=20)
    settled = settle(80, params, engine)
    assert (settled.max_tokens, settled.min_tokens) == (18, 18)


def test_trtllm_refuses_what_no_step_takes() -> None:
    whole = ready(100, 1000, rule="trtllm", step_tokens=32)
    assert longest(32, 10, whole) == 10
    with pytest.raises(PromptTooLong, match="33 tokens; a step takes 32"):
        longest(33, 10, whole)
    assert longest(33, 10, ready(100, 1000, rule="trtllm")) == 10
    with pytest.raises(PromptTooLong, match="maximum context length is 100"):
        longest(20, 81, whole)


def test_nothing_is_cut_unless_asked_for() -> None:
    assert longest_kept(ready(100, 50)) is None
    assert longest_kept(ready(100, 50, rule="sglang")) is None
    assert longest_kept(ready(100, 50, rule="sglang", truncate=True)) == 44
