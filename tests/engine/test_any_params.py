"""Sampling parameters in any combination, run together: each answer ends once and as its parameters
say, is what it is alone, and changes no bit of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import VOCAB_SIZE, _vocabulary, tiny_llama
from treadle import LLM, SamplingParams
from treadle.engine.outputs import CompletionOutput, RequestOutput

EXAMPLES = 150

NEIGHBOURS = ["The weaver set the warp upon", "All day the loom went"]
GREEDY = SamplingParams(temperature=0, max_tokens=14, logprobs=3, ignore_eos=True)

ORDINARY = _vocabulary()[0].index("z")

tokens = st.integers(0, VOCAB_SIZE - 1)
few_tokens = st.lists(tokens, min_size=1, max_size=5, unique=True)
pieces = st.sampled_from(["e", " the", "th", "a", "\n", "t\ufffd", "<|im_end|>", "loom"])


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path: Path = tiny_llama("q8_0", tmp_path_factory.mktemp("params"))
    with LLM(str(path), max_num_seqs=5, max_num_batched_tokens=24) as made:
        yield made


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Any]:
    return [_bits(llm.generate([prompt], GREEDY)[0]) for prompt in NEIGHBOURS]


def _bits(output: RequestOutput) -> list[Any]:
    return [
        (one.text, one.token_ids, one.logprobs, one.cumulative_logprob, one.finish_reason)
        for one in output.outputs
    ]


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParams:
    """Any fields set, all of them valid together."""
    max_tokens = draw(st.integers(1, 12))
    values: dict[str, st.SearchStrategy[Any]] = {
        "n": st.integers(1, 3),
        "temperature": st.sampled_from([0.0, 1e-6, 0.01, 0.7, 1.0, 3.0, 100.0]),
        "top_p": st.sampled_from([1e-9, 0.1, 0.9, 1.0]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 50, 2**31 - 1]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.sampled_from([0.01, 0.5, 1.3, 100.0]),
        "min_tokens": st.integers(0, max_tokens),
        "stop": st.lists(pieces, max_size=2),
        "stop_token_ids": few_tokens,
        "include_stop_str_in_output": st.booleans(),
        "ignore_eos": st.booleans(),
        "logit_bias": st.dictionaries(tokens, st.floats(-100, 100), max_size=3),
        "allowed_token_ids": few_tokens,
        "bad_words": st.lists(pieces, max_size=2),
        "logprobs": st.integers(0, 5),
        "prompt_logprobs": st.integers(0, 3),
        "prompt_logprobs_start": st.integers(0, 1),
        "logprob_token_ids": few_tokens,
        "skip_special_tokens": st.booleans(),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(values)), max_size=8))
    fields = {name: draw(values[name]) for name in sorted(chosen)}
    if "allowed_token_ids" in fields:
        fields["allowed_token_ids"].append(ORDINARY)  # nothing else rules it out
        fields["stop_token_ids"] = [t for t in fields.get("stop_token_ids", []) if t != ORDINARY]
    return SamplingParams(seed=draw(st.integers(0, 2**64 - 1)), max_tokens=max_tokens, **fields)


prompts = st.one_of(
    st.sampled_from([*NEIGHBOURS, "The", "the weaver and her loom"]),
    st.lists(tokens, min_size=1, max_size=40),
)


@settings(max_examples=EXAMPLES)
@given(asked=st.lists(st.tuples(prompts, sampling()), min_size=1, max_size=5), at=st.integers(0))
def test_any_parameters_together(
    llm: LLM,
    alone: list[Any],
    asked: list[tuple[str | list[int], SamplingParams]],
    at: int,
) -> None:
    texts = [NEIGHBOURS[0], *(prompt for prompt, _ in asked), NEIGHBOURS[1]]
    params = [GREEDY, *(each for _, each in asked), GREEDY]
    outputs = llm.generate(texts, params)  # type: ignore[arg-type]
    assert [_bits(outputs[0]), _bits(outputs[-1])] == alone
    for output, (_, each) in zip(outputs[1:-1], asked, strict=True):
        assert [one.index for one in output.outputs] == list(range(each.n))
        for one in output.outputs:
            check_answer(one, each)
    prompt, each = asked[at % len(asked)]
    again = llm.generate([prompt], each)[0]  # type: ignore[list-item]
    assert _bits(again) == _bits(outputs[1 + at % len(asked)])


def check_answer(one: CompletionOutput, params: SamplingParams) -> None:
    count = len(one.token_ids)
    assert params.max_tokens is not None
    assert params.min_tokens <= count <= params.max_tokens
    assert one.finish_reason in ("stop", "length")
    if one.finish_reason == "length":
        assert count == params.max_tokens
    if params.allowed_token_ids is not None:
        assert {*one.token_ids} <= {*params.allowed_token_ids}
    early = [token for token in one.token_ids[:-1] if token in params.stop_token_ids]
    assert not early, "a stop token ends the answer, and cannot come before min_tokens"
    if isinstance(one.stop_reason, int):
        assert one.token_ids[-1] == one.stop_reason
        assert one.stop_reason in params.stop_token_ids
    if isinstance(one.stop_reason, str):
        assert one.stop_reason in params.stop_strings
        assert one.text.endswith(one.stop_reason) or not params.include_stop_str_in_output
    elif params.min_tokens == 0:
        assert not any(stop in one.text for stop in params.stop_strings)
    check_logprobs(one, params)


def check_logprobs(one: CompletionOutput, params: SamplingParams) -> None:
    if params.logprobs is None:
        assert one.logprobs is None
        return
    assert one.logprobs is not None
    for token, entry in zip(one.token_ids, one.logprobs, strict=True):
        assert all(known.logprob <= 0 for known in entry.values())
        best = sorted(entry.values(), key=lambda known: -known.logprob)[: params.logprobs]
        assert [known.rank for known in best if known.rank <= params.logprobs] == list(
            range(1, params.logprobs + 1)
        )
        assert token in entry
