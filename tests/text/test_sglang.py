"""SGLang's request, as far as it is settled without a model."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from treadle.errors import InvalidRequest
from treadle.text.sglang import GenerateRequest, Item


def items(defaults: dict[str, float] | None = None, **body: Any) -> list[Item]:
    return msgspec.convert(body, GenerateRequest).items(defaults or {}, "drawn")


def test_given_before_the_models_own_before_the_classes() -> None:
    [item] = items({"temperature": 0.6, "top_k": 7}, text="a", sampling_params={"top_k": 3})
    assert (item.params.temperature, item.params.top_k, item.params.top_p) == (0.6, 3, 1.0)
    assert (item.params.max_tokens, item.params.n, item.request_id) == (128, 1, "drawn")


def test_every_sampling_field_arrives() -> None:
    given = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.4,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
        "sampling_seed": 11,
        "stop": ["x"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "logit_bias": {"5": -1.0},
    }
    body = msgspec.json.encode({"input_ids": [1], "sampling_params": given})
    [item] = msgspec.json.decode(body, type=GenerateRequest).items({}, "drawn")
    assert (
        msgspec.structs.asdict(item.params).items()
        >= {
            "max_tokens": 9,
            "min_tokens": 2,
            "seed": 11,
            "include_stop_str_in_output": True,
            "logit_bias": {5: -1.0},
        }.items()
    )
    for name in given.keys() - {"max_new_tokens", "min_new_tokens", "sampling_seed"}:
        if name not in ("no_stop_trim", "logit_bias"):
            assert getattr(item.params, name) == given[name]


def test_no_two_pairs_of_salt_and_key_are_one_salt() -> None:
    words = ("", "a", "b", "ab", "1:a", "0:", "2:ab")
    pairs = list(itertools.product(words, repeat=2))
    salts = {items(text="a", cache_salt=s, extra_key=k)[0].cache_salt for s, k in pairs}
    # A salt that is spelled like one with a key is the caller's own doing; none of these collide.
    assert len(salts) >= len(pairs) - len(words)
    assert items(text="a")[0].cache_salt == ""
    assert items(text="a", cache_salt="s")[0].cache_salt == "s"


def test_where_the_prompt_is_scored() -> None:
    [item] = items(input_ids=[5] * 9, return_logprob=True, top_logprobs_num=2, logprob_start_len=4)
    placed = item.placed(9)
    assert (placed.prompt_logprobs, placed.prompt_logprobs_start, placed.logprobs) == (2, 4, 2)
    assert item.placed(4).prompt_logprobs is None  # nothing of the prompt is left to score
    with pytest.raises(InvalidRequest, match=r"logprob_start_len is 4; .* length, 3"):
        item.placed(3)
    [silent] = items(input_ids=[5], logprob_start_len=4, top_logprobs_num=2)
    assert (silent.placed(1).logprobs, silent.placed(1).prompt_logprobs) == (None, None)
