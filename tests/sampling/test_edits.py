"""Bias, minimum length and penalties, against the formulas written out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from treadle.sampling.edits import LogitBias, MinTokens, Penalties, RowEdits, collect
from treadle.wire.plan import RowJoin
from treadle.wire.sampling_params import SamplingParams


def join(row: int, params: SamplingParams, prompt: list[int], output: list[int]) -> RowJoin:
    return RowJoin(row=row, params=params, seed=0, choice=0, prompt=prompt, output=output)


def apply(edits: RowEdits | None, logits: np.ndarray) -> np.ndarray:
    changed = logits.copy()
    if edits is not None:
        x = changed[edits.tokens] + edits.add
        x = np.where(x > 0, x / edits.repetition, x * edits.repetition)
        changed[edits.tokens] = x - edits.subtract
    return changed


@pytest.mark.parametrize("split", [0, 2, 5])
def test_penalties_follow_the_definition_however_the_output_came(split: int) -> None:
    """`split` outputs are known when the row is joined (after a preemption), the rest is new."""
    params = SamplingParams(
        repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=-0.2, max_tokens=9
    )
    prompt, output = [3, 3, 8, 1], [8, 2, 2, 2, 5]
    state = Penalties()
    state.join(join(4, params, prompt, output[:split]))
    for token in output[split:]:
        state.sampled(4, token)
    logits = np.linspace(-2, 2, 12).astype(np.float32)
    expected = logits.copy()
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token, count in Counter(output).items():
        expected[token] -= 0.7 * count - 0.2
    np.testing.assert_allclose(apply(state.edits(4, 5), logits), expected, rtol=1e-6)
    assert state.edits(3, 0) is None
    state.leave(4)
    assert state.edits(4, 6) is None


def test_history_grows_beyond_its_first_capacity() -> None:
    params = SamplingParams(presence_penalty=1.0)
    state = Penalties()
    state.join(join(0, params, [0], []))
    for token in range(500):
        state.sampled(0, token)
    edits = state.edits(0, 500)
    assert edits is not None
    assert sorted(edits.tokens.tolist()) == list(range(500))
    assert set(edits.subtract.tolist()) == {1.0}


def test_min_tokens_masks_every_end_until_then() -> None:
    state = MinTokens(eos=[2])
    state.join(join(0, SamplingParams(min_tokens=3, stop_token_ids=[9]), [], []))
    state.join(join(1, SamplingParams(min_tokens=3, ignore_eos=True, stop_token_ids=[9]), [], []))
    state.join(join(2, SamplingParams(), [], []))
    logits = np.ones(12, np.float32)
    masked = np.flatnonzero(np.isneginf(apply(state.edits(0, 2), logits)))
    assert masked.tolist() == [2, 9]
    masked = np.flatnonzero(np.isneginf(apply(state.edits(1, 0), logits)))
    assert masked.tolist() == [9]
    assert state.edits(0, 3) is None
    assert state.edits(2, 0) is None


def test_edits_of_all_rows_are_collected_in_pipeline_order() -> None:
    params = SamplingParams(logit_bias={5: 2.0}, presence_penalty=1.0)
    states = [LogitBias(), Penalties()]
    for state in states:
        state.join(join(7, params, [1], [5]))
        state.join(join(3, SamplingParams(), [1], [5]))
    edits = collect(states, [(3, 0), (7, 1)])
    assert edits is not None
    assert edits.rows.tolist() == [1, 1, 1]
    assert edits.tokens.tolist() == [5, 1, 5], "bias first"
    assert edits.add.tolist() == [2.0, 0.0, 0.0]
    assert edits.subtract.tolist() == [0.0, 0.0, 1.0]
    assert collect(states, [(3, 0)]) is None
