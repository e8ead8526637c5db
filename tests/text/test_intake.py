"""Intake: limits, open max_tokens, seeds, the order of choices, ends of turns."""

from __future__ import annotations

from typing import cast

import pytest

from treadle.errors import InvalidRequest, PromptTooLong
from treadle.text.intake import Accepted, check, check_number, fan_out
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import Ready
from treadle.wire.sampling_params import SamplingParams

ENGINE = Ready(max_model_len=64, vocab_size=100, kv_capacity_tokens=500, eos_token_ids=[2])


class Vocabulary:
    """The two things intake asks of a tokenizer."""

    def __init__(self, eos_ids: tuple[int, ...] = (2,), vocab_size: int = 90) -> None:
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = vocab_size


def accept(
    prompt: list[int],
    params: SamplingParams | None = None,
    *,
    engine: Ready = ENGINE,
    eos_ids: tuple[int, ...] = (2,),
) -> Accepted:
    tokenizer = cast("Tokenizer", Vocabulary(eos_ids))
    return check(prompt, params or SamplingParams(), engine, tokenizer)


def test_open_max_tokens_take_what_is_left() -> None:
    assert accept([1] * 63, SamplingParams(max_tokens=None)).params.max_tokens == 1
    small = Ready(max_model_len=64, vocab_size=100, kv_capacity_tokens=40, eos_token_ids=[2])
    assert accept([1] * 10, SamplingParams(max_tokens=None), engine=small).params.max_tokens == 30


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "param"),
    [(60, 10, "max_tokens"), (64, None, "prompt"), (65, 1, "prompt"), (10_000, 1, "prompt")],
)
def test_too_long_says_window_prompt_and_answer(
    num_prompt: int, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(PromptTooLong) as raised:
        accept([1] * num_prompt, SamplingParams(max_tokens=max_tokens))
    message = raised.value.message
    assert "64" in message
    assert f"{num_prompt} in the prompt" in message
    assert f"{max_tokens or 1} for the answer" in message
    assert (raised.value.param, raised.value.code) == (param, "context_length_exceeded")


def test_the_smaller_vocabulary_counts() -> None:
    accept([89])
    for prompt in ([90], [-1], [1, 2**40]):
        with pytest.raises(InvalidRequest, match="0 to 89"):
            accept(prompt)
    with pytest.raises(InvalidRequest, match="stop_token_ids holds 95"):
        accept([1], SamplingParams(stop_token_ids=[95]))


def test_min_tokens_is_compared_with_what_max_tokens_turns_out_to_be() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 30, more than max_tokens, 14"):
        accept([1] * 50, SamplingParams(max_tokens=None, min_tokens=30))


def test_ends_of_turns_stop_unless_ends_are_ignored() -> None:
    params = SamplingParams(stop_token_ids=[8])
    assert accept([1], params, eos_ids=(2, 7)).params.stop_token_ids == [8, 7]
    assert accept([1], params, eos_ids=(2,)).params.stop_token_ids == [8]
    ignoring = SamplingParams(ignore_eos=True)
    assert accept([1], ignoring, eos_ids=(2, 7)).params.stop_token_ids == []


def test_one_generate_per_prompt_and_choice() -> None:
    requests = [
        Accepted([1], SamplingParams(n=2, seed=-1)),
        Accepted([2], SamplingParams(n=1, seed=5)),
    ]
    generates = fan_out(requests, "id", "salt")
    assert [g.request_id for g in generates] == ["id-0", "id-1", "id-2"]
    assert [(g.prompt, g.choice, g.seed) for g in generates] == [
        ([1], 0, 2**64 - 1),
        ([1], 1, 2**64 - 1),
        ([2], 0, 5),
    ]
    assert {g.cache_salt for g in generates} == {"salt"}
    assert all(g.params.n == 1 for g in generates)


def test_a_prompt_is_scored_once() -> None:
    params = SamplingParams(n=3, prompt_logprobs=2, prompt_logprobs_start=1, logprobs=1)
    generates = fan_out([Accepted([1, 2], params)], "id", "")
    assert [g.params.prompt_logprobs for g in generates] == [2, None, None]
    assert [g.params.logprobs for g in generates] == [1, 1, 1]


def test_seeds_are_drawn_when_none_is_given() -> None:
    request = Accepted([1], SamplingParams(n=2))
    first, second = fan_out([request, request], "id", "")[::2]
    assert first.seed != second.seed


def test_one_request_may_not_queue_any_number_of_answers() -> None:
    check_number(8, 128)
    with pytest.raises(InvalidRequest, match="one request may ask for 1024") as raised:
        check_number(9, 128)
    assert raised.value.param == "n"
    with pytest.raises(InvalidRequest) as raised:
        check_number(1025, 1)
    assert raised.value.param == "prompt"


def test_a_salt_is_a_short_text() -> None:
    request = Accepted([1], SamplingParams())
    for salt in ("x" * 1025, 5):
        with pytest.raises(InvalidRequest, match="cache_salt"):
            fan_out([request], "id", salt)  # type: ignore[arg-type]
