"""The last product: logits, capped logits, and the likeliest token of rows that want no logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.kernels.conftest import Headed
from treadle.kernels.native.backend import NativeBackend, available_variants
from treadle.kernels.ops import (
    NO_TOKEN,
    Buffer,
    Matrix,
    RawTensor,
    Rows,
    StepInputs,
    StepLimits,
    WeightType,
)

ROWS, WIDTH, VOCAB = 40, 64, 1000


def head_matrix(bench: Any, kinds: Sequence[WeightType]) -> Matrix:
    """A part of each type; every column twice, so that each row's largest logit is tied."""
    rng = np.random.default_rng(3)
    parts = []
    for kind in kinds:
        half = rng.normal(size=(VOCAB // len(kinds) // 2, WIDTH))
        parts.append(bench.raw(np.concatenate([half, half]), kind))
    matrix: Matrix = bench.backend.matrix(parts)
    return matrix


def first_largest(logits: np.ndarray) -> np.ndarray:
    """By the definition."""
    known = np.where(np.isnan(logits), -np.inf, logits)
    return np.where(np.isneginf(known.max(axis=1)), NO_TOKEN, known.argmax(axis=1))


HEADS = {
    "f32": [WeightType.F32],
    "q4_1": [WeightType.Q4_1],
    "q8_0": [WeightType.Q8_0],
    "mixed": [WeightType.F16, WeightType.Q8_0],
}


@pytest.mark.parametrize("kinds", HEADS)
@pytest.mark.parametrize("cap", [None, 0.5, 30.0])
def test_tokens_are_those_of_the_logits(bench: Any, kinds: str, cap: float | None) -> None:
    """Any rows, in any order, beside rows whose logits are wanted; a low cap makes many ties."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, WIDTH)) * rng.choice([1e-3, 1, 9], (ROWS, 1))
    headed = Headed(bench.backend, x, head_matrix(bench, HEADS[kinds]), cap)
    order = rng.permutation(ROWS).tolist()
    every = headed.run(order, [])[0].copy()
    tokens = first_largest(every)
    for count in (0, 1, 3, 15, 16, 17, 33, ROWS - 1, ROWS):
        logits, likeliest = headed.run(order[:count], order[count:])
        assert likeliest.tolist() == tokens[count:].tolist(), count
        np.testing.assert_array_equal(logits, every[:count])


def test_logits_are_those_of_a_product(bench: Any) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    matrix = head_matrix(bench, [WeightType.Q4_1])
    product = bench.linear(x, matrix)
    plain = Headed(bench.backend, x, matrix).run(range(ROWS), [])[0]
    np.testing.assert_allclose(plain, product, rtol=1e-5, atol=1e-4)
    capped = Headed(bench.backend, x, matrix, 2.5).run(range(ROWS), [])[0]
    np.testing.assert_allclose(capped, 2.5 * np.tanh(plain.astype(np.float64) / 2.5), rtol=5e-7)


@pytest.mark.parametrize("width", [1, 31, 96])
def test_a_cap(bench: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    scale = [[1], [30], [1e3], [1e-6], [1e30], [0]]
    x = (rng.normal(size=(6, width)) * scale).astype(np.float32)
    logits, _ = Headed(bench.backend, x, bench.dense(np.eye(width)), 30.0).run(range(6), [])
    np.testing.assert_allclose(logits, 30 * np.tanh(x.astype(np.float64) / 30), rtol=5e-7)


def test_logits_that_nobody_wants_are_not_written(bench: Any) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(ROWS, WIDTH))
    headed = Headed(bench.backend, x, head_matrix(bench, [WeightType.F32]))
    buffer, _ = headed.run(range(ROWS), [])
    before = buffer.copy()
    logits, likeliest = headed.run([ROWS - 1], range(1, ROWS))
    np.testing.assert_array_equal(logits, before[-1:])
    assert likeliest.tolist() == first_largest(before[1:]).tolist()
    np.testing.assert_array_equal(buffer[1:], before[1:])


def test_nan_never_wins_and_nothing_is_no_token(bench: Any) -> None:
    """The first input of every row but the last two is 1, so a logit is what its column begins
    with; the last rows make all logits NaN and all of them infinite."""
    columns = np.zeros((VOCAB, 2))
    columns[:, 0] = np.random.default_rng(5).normal(size=VOCAB)
    columns[::3, 0], columns[1::3, 0] = np.nan, -np.inf
    x = np.array([[1, 0], [1, 1], [np.nan, 0]], np.float32)
    matrix = bench.dense(columns)
    logits, _ = Headed(bench.backend, x, matrix).run([0, 1, 2], [])
    expected = first_largest(logits)
    assert expected[2] == NO_TOKEN
    assert expected[0] % 3 == 2
    _, tokens = Headed(bench.backend, x, matrix).run([], [0, 1, 2])
    assert tokens.tolist() == expected.tolist()
    largest = bench.dense(np.full((VOCAB, 2), [np.inf, 0]))
    _, tokens = Headed(bench.backend, x, largest).run([], [0, 2])
    assert tokens.tolist() == [0, NO_TOKEN]


@pytest.mark.parametrize("isa", available_variants())
@pytest.mark.parametrize("threads", [1, 3])
def test_every_variant_and_number_of_threads(isa: str, threads: int) -> None:
    """Strips of one row are seen by several threads, in any order."""
    rng = np.random.default_rng(6)
    values = np.round(rng.normal(size=(9000, 8)) * 2).astype(np.float32)
    backend = NativeBackend(isa=isa, threads=threads)
    matrix = backend.matrix(
        [RawTensor("m", WeightType.F32, values.shape, values.view(np.uint8).reshape(-1))]
    )
    x = np.round(rng.normal(size=(5, 8)))
    headed = Headed(backend, x, matrix)
    wanted = first_largest(x @ values.astype(np.float64).T).tolist()
    for _ in range(50):
        assert headed.run([], range(5))[1].tolist() == wanted
    backend.close()


def test_tokens_need_a_head() -> None:
    backend = NativeBackend(threads=1)
    inputs = StepInputs(StepLimits(4, 4, ()))
    recorder = backend.recorder(inputs, ())
    source, logits = recorder.buffer(Rows.TOKENS, 8), recorder.buffer(Rows.LOGITS, 8)
    recorder.embed(ones(backend, 4, 8), source)
    recorder.select(source, logits)
    inputs.row_starts[1] = 1
    with pytest.raises(ValueError, match="without a head"):
        recorder.finish(logits).run(1, 1, 0, 1)
    backend.close()


def test_a_head_that_does_not_fit_is_refused() -> None:
    backend = NativeBackend(threads=1)
    recorder = backend.recorder(StepInputs(StepLimits(4, 4, ())), ())
    matrix = ones(backend, 6, 8)
    x, logits = recorder.buffer(Rows.LOGITS, 8), recorder.buffer(Rows.LOGITS, 6)
    wrong: list[tuple[Buffer, Buffer, float | None, str]] = [
        (recorder.buffer(Rows.TOKENS, 8), logits, None, "a row per tokens"),
        (x, recorder.buffer(Rows.LOGITS, 7), None, "to width 7"),
        (x, logits, 0.0, "capped at 0"),
    ]
    for source, to, cap, message in wrong:
        with pytest.raises(ValueError, match=message):
            recorder.head(source, matrix, to, cap=cap)
    backend.close()


def ones(backend: NativeBackend, n: int, k: int) -> Matrix:
    values = np.ones((n, k), np.float32)
    data = values.view(np.uint8).reshape(-1)
    return backend.matrix([RawTensor("m", WeightType.F32, values.shape, data)])
