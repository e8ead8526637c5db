"""SamplingParams check themselves, as soon as they are made."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from treadle.errors import InvalidRequest
from treadle.wire.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("logprobs", 21),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [5]),
        ("stop", ["x"] * 65),
        ("stop", "x" * 4097),
        ("seed", 10**400),
        ("logprobs", True),
        ("logprobs", 1.5),
        ("max_tokens", 2.0),
        ("temperature", "warm"),
        ("logit_bias", {"a": 1.0}),
    ],
)
def test_values_out_of_range_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams(**{field: value})
    assert raised.value.param == field
    assert isinstance(raised.value, ValueError), "as users of vLLM expect"


@pytest.mark.parametrize("bias", [101, -101, math.nan])
def test_bias_out_of_range(bias: float) -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias\[5\]"):
        SamplingParams(logit_bias={5: bias})


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 17, more than max_tokens, 16"):
        SamplingParams(min_tokens=17)
    params = SamplingParams(min_tokens=17, max_tokens=None)
    with pytest.raises(InvalidRequest, match="more than max_tokens, 5"):
        msgspec.structs.replace(params, max_tokens=5)


def test_token_ids_are_checked_against_a_vocabulary() -> None:
    SamplingParams(stop_token_ids=[9], logit_bias={9: 1.0}).check(10)
    for params in (SamplingParams(stop_token_ids=[10]), SamplingParams(logit_bias={-1: 1.0})):
        with pytest.raises(InvalidRequest, match="token ids run from 0 to 9"):
            params.check(10)


def test_what_is_greedy_and_what_looks_back() -> None:
    assert SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=2e-5).greedy
    assert not SamplingParams().penalised
    assert SamplingParams(presence_penalty=-0.5).penalised
    assert SamplingParams(stop="x").stop_strings == ["x"]
