"""The same tokens and log-probabilities whoever composes the steps, lets in and gives way."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.engine.llm import LLM
from treadle.wire.sampling_params import SamplingParams

POLICIES: list[dict[str, Any]] = [
    {"preset": "sglang"},
    {"preset": "trtllm", "chunked_prefill": True},
    {"admission": "estimate", "overlap_depth": 1},
    {"composition": "two-stage", "admission": "max-utilization", "chunk_policy": "equal-progress"},
    {"composition": "prefill-first", "mixed_chunk": True, "chunked_prefill": False},
    {"shortage": "preempt-lowest-priority", "long_prefill_token_threshold": 7},
]


def answers(**policy: Any) -> list[list[tuple[int, float]]]:
    """Of prompts that share a prefix, in a pool for about two of them."""
    prompts = ["Once upon a time " * count for count in (1, 9, 30, 2, 3)]
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=3, logprobs=1, ignore_eos=True)
    sizes: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    memory: dict[str, Any] = {
        "kv_dtype": "f32",
        "kv_cache_memory_bytes": 2**23,
        "grammar_backend": "none",
    }
    with LLM("demo", **sizes, **memory, **policy) as llm:
        outputs = llm.generate(prompts, params)
    found = []
    for output in outputs:
        answer = output.outputs[0]
        assert answer.logprobs is not None
        pairs = zip(answer.token_ids, answer.logprobs, strict=True)
        found.append([(token, entry[token].logprob) for token, entry in pairs])
    return found


@pytest.fixture(scope="module")
def expected() -> list[list[tuple[int, float]]]:
    return answers()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
def test_no_policy_changes_an_answer(
    policy: dict[str, Any], expected: list[list[tuple[int, float]]]
) -> None:
    assert answers(**policy) == expected
