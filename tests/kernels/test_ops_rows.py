"""Ops that work row by row: rms_norm, gated, select; and what a program promises about sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from treadle.kernels.ops import Buffer, Recorder, Rows, StepInputs, StepLimits, WeightType


@pytest.mark.parametrize("width", [8, 33, 96, 576])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_rms_norm(bench: Any, width: int, eps: float) -> None:
    rng = np.random.default_rng(width)
    x = (rng.normal(size=(5, width)) * [[1], [1e-3], [1e3], [0], [1]]).astype(np.float32)
    weight = rng.normal(size=width).astype(np.float32)
    vector = bench.vector(weight)

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.rms_norm(source, vector, eps, out)

    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * weight
    np.testing.assert_allclose(bench.apply(x, width, op), expected, rtol=2e-5, atol=1e-7)


def test_rms_norm_fills_form_q8(bench: Any) -> None:
    """Seen through an identity matrix: each value within half a step of the norm's result."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 96)).astype(np.float32)
    vector = bench.vector(np.ones(96, np.float32))
    matrix = bench.backend.matrix([bench.raw(np.eye(96) * 127, WeightType.Q8_0)])

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        operand = recorder.operand(Rows.TOKENS, matrix)
        recorder.rms_norm(source, vector, 1e-5, operand)
        recorder.linear(operand, matrix, out)

    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    steps = np.abs(normed.reshape(4, 3, 32)).max(axis=2, keepdims=True) / 127
    held = bench.apply(x, 96, op).reshape(4, 3, 32) / 127 / steps
    np.testing.assert_allclose(held, np.rint(held), atol=1e-3)
    assert (np.abs(held - normed.reshape(4, 3, 32) / steps) < 0.501).all()


@pytest.mark.parametrize("width", [1, 31, 96])
def test_gated(bench: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    gate = rng.normal(size=(6, width)) * [[1], [10], [100], [1e-6], [1e30], [0]]
    up = rng.normal(size=(6, width))
    x = np.concatenate([gate, up], axis=1).astype(np.float32)

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.gated(source, "silu", out)

    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    sigmoid = np.exp(-np.logaddexp(0, -gate))
    np.testing.assert_allclose(
        bench.apply(x, width, op), gate * sigmoid * up, rtol=3e-6, atol=1e-30
    )


@pytest.mark.parametrize("kind", [WeightType.F32, WeightType.Q4_1])
def test_logit_rows_take_their_own_path(bench: Any, kind: WeightType) -> None:
    """Rows picked in any order go through norm and product exactly as they would as tokens; a
    program serves every size up to its limits."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(12, 64)).astype(np.float32)
    vector = bench.vector(rng.normal(size=64).astype(np.float32))
    matrix = bench.backend.matrix([bench.raw(rng.normal(size=(50, 64)), kind)])
    inputs = StepInputs(StepLimits(12, 12, ()))
    recorder = bench.backend.recorder(inputs, ())
    source = recorder.buffer(Rows.TOKENS, 64)
    picked = recorder.buffer(Rows.LOGITS, 64)
    operand = recorder.operand(Rows.LOGITS, matrix)
    logits = recorder.buffer(Rows.LOGITS, 50)
    recorder.embed(bench.dense(x), source)
    recorder.select(source, picked)
    recorder.rms_norm(picked, vector, 1e-5, operand)
    recorder.linear(operand, matrix, logits)
    program = recorder.finish(logits)
    inputs.positions[:] = np.arange(12)

    def as_tokens(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        operand = recorder.operand(Rows.TOKENS, matrix)
        recorder.rms_norm(source, vector, 1e-5, operand)
        recorder.linear(operand, matrix, out)

    every = bench.apply(x, 50, as_tokens)
    for tokens, chosen in ((12, [11, 0, 5]), (3, [1]), (1, [0]), (12, list(range(12)))):
        inputs.token_ids[:tokens] = np.arange(tokens)[::-1]
        inputs.logit_tokens[: len(chosen)] = chosen
        inputs.row_starts[:2] = 0, tokens
        result = program.run(tokens, 1, len(chosen))
        assert result.shape == (len(chosen), 50)
        np.testing.assert_allclose(result, every[[tokens - 1 - c for c in chosen]], atol=1e-5)


def test_no_logits_wanted(bench: Any) -> None:
    inputs = StepInputs(StepLimits(4, 2, ()))
    recorder = bench.backend.recorder(inputs, ())
    source = recorder.buffer(Rows.TOKENS, 8)
    logits = recorder.buffer(Rows.LOGITS, 8)
    recorder.embed(bench.dense(np.ones((1, 8))), source)
    recorder.select(source, logits)
    inputs.positions[:] = np.arange(4)
    inputs.row_starts[1] = 4
    assert recorder.finish(logits).run(4, 1, 0).shape == (0, 8)
