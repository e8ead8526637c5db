"""Ops that work row by row: norms, activations, copies; and what a program promises about sizes."""

from __future__ import annotations

import math
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


@pytest.mark.parametrize("width", [8, 33, 576])
def test_rms_norm_adds_up(bench: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.normal(size=(5, width)).astype(np.float32)
    weight = rng.normal(size=width).astype(np.float32)
    vector, identity = bench.vector(weight), bench.dense(np.eye(width))

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.rms_norm(source, vector, 1e-5, out)
        recorder.rms_norm(source, vector, 1e-5, out, accumulate=True)
        recorder.linear(source, identity, out, accumulate=True)
        recorder.rms_norm(out, vector, 1e-5, out, accumulate=True)

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight

    wide = x.astype(np.float64)
    sums = 2 * norm(wide) + wide
    np.testing.assert_allclose(bench.apply(x, width, op), sums + norm(sums), rtol=1e-4, atol=1e-6)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    return centred / np.sqrt(wide.var(axis=1, keepdims=True) + eps) * weight + bias


@pytest.mark.parametrize("width", [1, 8, 33, 96, 576])
@pytest.mark.parametrize("biased", [True, False])
def test_layer_norm(bench: Any, width: int, biased: bool) -> None:
    """Rows far from 0 lose no more than their float32 sums do."""
    rng = np.random.default_rng(width)
    sizes, means = [[1], [1e-3], [1e3], [0], [1]], [[0], [0], [10], [5], [100]]
    x = (rng.normal(size=(5, width)) * sizes + means).astype(np.float32)
    weight, bias = rng.normal(size=(2, width)).astype(np.float32)
    vectors = bench.vector(weight), bench.vector(bias) if biased else None

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.layer_norm(source, *vectors, 1e-5, out)

    expected = layer_norm(x, weight, bias if biased else 0 * bias, 1e-5)
    np.testing.assert_allclose(bench.apply(x, width, op), expected, rtol=1e-4, atol=1e-4)


def test_layer_norm_fills_form_q8(bench: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 96)).astype(np.float32)
    ones, half = bench.vector(np.ones(96, np.float32)), bench.vector(np.full(96, 0.5, np.float32))
    matrix = bench.backend.matrix([bench.raw(np.eye(96) * 127, WeightType.Q8_0)])

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        operand = recorder.operand(Rows.TOKENS, matrix)
        recorder.layer_norm(source, ones, half, 1e-5, operand)
        recorder.linear(operand, matrix, out)

    normed = layer_norm(x, np.ones(96), np.full(96, 0.5), 1e-5)
    steps = np.abs(normed.reshape(4, 3, 32)).max(axis=2).repeat(32, axis=1) / 127
    assert (np.abs(bench.apply(x, 96, op) / 127 - normed) < 0.502 * steps).all()


def test_embed_positions(bench: Any) -> None:
    """Positions add their rows to what is there, each token by its own."""
    rng = np.random.default_rng(1)
    x, table = rng.normal(size=(2, 9, 40)).astype(np.float32)
    positions = bench.dense(table)

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.copy(source, out)
        recorder.embed_positions(positions, out)

    np.testing.assert_array_equal(bench.apply(x, 40, op), x + table)


def test_embed_positions_of_a_quantised_table(bench: Any) -> None:
    rng = np.random.default_rng(1)
    x = np.zeros((5, 64), np.float32)
    tensor = bench.raw(rng.normal(size=(7, 64)), WeightType.Q8_0)
    positions = bench.backend.matrix([tensor])

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.copy(source, out)
        recorder.embed_positions(positions, out)

    expected = bench.dequantised(tensor)[:5].astype(np.float32)
    np.testing.assert_array_equal(bench.apply(x, 64, op), expected)


def test_copy_fills_the_forms_a_product_reads(bench: Any) -> None:
    """A copy in form Q8 multiplies as a norm that changes nothing would have left it."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 64)).astype(np.float32)
    for kind in (WeightType.F32, WeightType.Q8_0):
        matrix = bench.backend.matrix([bench.raw(rng.normal(size=(50, 64)), kind)])

        def op(recorder: Recorder, source: Buffer, out: Buffer, matrix: Any = matrix) -> None:
            operand = recorder.operand(Rows.TOKENS, matrix)
            recorder.copy(source, operand)
            recorder.linear(operand, matrix, out)

        np.testing.assert_array_equal(bench.apply(x, 50, op), bench.linear(x, matrix))


def phi(x: np.ndarray) -> np.ndarray:
    """The standard normal distribution function."""
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x.flat]).reshape(x.shape)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * np.exp(-np.logaddexp(0, -2 * inner))


ACTIVATIONS = {
    "silu": lambda x: x * np.exp(-np.logaddexp(0, -x)),
    "gelu": lambda x: x * phi(x),
    "gelu_tanh": gelu_tanh,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 31, 96])
def test_gated(bench: Any, width: int, activation: Any) -> None:
    rng = np.random.default_rng(width)
    gate = rng.normal(size=(6, width)) * [[1], [10], [100], [1e-6], [1e12], [0]]
    up = rng.normal(size=(6, width))
    x = np.concatenate([gate, up], axis=1).astype(np.float32)

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.gated(source, activation, out)

    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(
        bench.apply(x, width, op), ACTIVATIONS[activation](gate) * up, rtol=1e-5, atol=2e-6
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 31, 96])
def test_activate(bench: Any, width: int, activation: Any) -> None:
    rng = np.random.default_rng(width)
    x = (rng.normal(size=(6, width)) * [[1], [10], [100], [1e-6], [1e12], [0]]).astype(np.float32)

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.activate(source, activation, source)
        recorder.copy(source, out)

    expected = ACTIVATIONS[activation](x.astype(np.float64))
    np.testing.assert_allclose(bench.apply(x, width, op), expected, rtol=1e-5, atol=2e-6)


def test_activate_fills_form_q8(bench: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 96)).astype(np.float32)
    matrix = bench.backend.matrix([bench.raw(np.eye(96) * 127, WeightType.Q8_0)])

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        operand = recorder.operand(Rows.TOKENS, matrix)
        recorder.activate(source, "gelu", operand)
        recorder.linear(operand, matrix, out)

    expected = x * phi(x)
    steps = np.abs(expected.reshape(4, 3, 32)).max(axis=2).repeat(32, axis=1) / 127
    assert (np.abs(bench.apply(x, 96, op) / 127 - expected) < 0.502 * steps).all()


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
