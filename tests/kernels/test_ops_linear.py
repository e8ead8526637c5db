"""embed and linear against float64 products of what the `gguf` package reads from the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.blocks import SIZES, dequantised, magnitudes, random_blocks, whole_blocks
from treadle.errors import ModelFileError
from treadle.kernels.ops import Buffer, Form, RawTensor, Recorder, WeightType

QUANTISED = [kind for kind in WeightType if kind.quantised]


@pytest.mark.parametrize("kind", WeightType)
@pytest.mark.parametrize(
    ("tokens", "n", "k"), [(1, 1, 32), (3, 17, 96), (9, 40, 160), (7, 50, 1057)]
)
def test_linear(bench: Any, kind: WeightType, tokens: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    k = whole_blocks(kind, k)
    x = rng.normal(size=(tokens, k)).astype(np.float32)
    tensor = bench.raw(rng.normal(size=(n, k)), kind)
    weight = bench.dequantised(tensor)

    result = bench.linear(x, bench.backend.matrix([tensor]))

    seen = bench.met(x, kind)
    bound = 2e-6 * (np.abs(seen) @ np.abs(weight).T) + 1e-6
    assert (np.abs(result - seen @ weight.T) < bound).all()


@pytest.mark.parametrize("blocks", [1, 4])  # in one block, a small scale is not lost among others
@pytest.mark.parametrize("kind", QUANTISED)
def test_linear_with_any_scale(bench: Any, kind: WeightType, blocks: int) -> None:
    rng = np.random.default_rng(4)
    n, k = 300, SIZES[kind][0] * blocks
    data = random_blocks(rng, n, k, kind, exponents=220)
    tensor = RawTensor("weight", kind, (n, k), data.reshape(-1))
    weight = bench.dequantised(tensor)
    x = rng.normal(size=(5, k)) * 10.0 ** rng.integers(-6, 6, (5, k))
    x[1, -16:] = 0
    x[2] = 0

    result = bench.linear(x.astype(np.float32), bench.backend.matrix([tensor]))

    seen = bench.met(x, kind)
    # Where all is tiny, results are subnormal.
    bound = 4e-6 * (np.abs(seen) @ magnitudes(data, kind, n).T) + 2.0**-147
    assert (np.abs(result - seen @ weight.T) <= bound).all()
    assert (result[2] == 0).all()


def test_activations_round_half_to_even(bench: Any) -> None:
    """An identity matrix shows what form Q8 holds."""
    identity = bench.raw(np.eye(32) * 127, WeightType.Q8_0)
    # The largest value is 127, so the scale is 1 and every half is a tie.
    x = np.concatenate([[127.0], np.arange(31) - 15.5])[None].astype(np.float32)
    result = bench.linear(x, bench.backend.matrix([identity]))
    np.testing.assert_array_equal(result[0] / 127, np.rint(x[0]))


@pytest.mark.parametrize("kind", WeightType)
def test_bias_and_accumulation(bench: Any, kind: WeightType) -> None:
    rng = np.random.default_rng(5)
    k = whole_blocks(kind, 64)
    x = rng.normal(size=(4, k)).astype(np.float32)
    tensor = bench.raw(rng.normal(size=(19, k)), kind)
    bias = rng.normal(size=19).astype(np.float32)

    result = bench.linear(x, bench.backend.matrix([tensor]), bias=bias, repeat=3)

    product = bench.met(x, kind) @ bench.dequantised(tensor).T + bias
    np.testing.assert_allclose(result, 3 * product, atol=2e-4)


@pytest.mark.parametrize(
    "kinds",
    [
        (WeightType.Q4_1, WeightType.Q8_0, WeightType.F16),
        (WeightType.BF16, WeightType.F32),
        (WeightType.Q4_0, WeightType.Q4_0),
        (WeightType.Q4_K, WeightType.Q6_K, WeightType.Q5_0),
        (WeightType.Q5_K, WeightType.BF16, WeightType.Q3_K),
        (WeightType.IQ4_XS, WeightType.MXFP4, WeightType.Q2_K),
        (WeightType.Q5_1, WeightType.IQ4_NL),
    ],
    ids="+".join,
)
def test_stacked_parts_keep_their_types(bench: Any, kinds: tuple[WeightType, ...]) -> None:
    rng = np.random.default_rng(6)
    k = max(whole_blocks(kind, 96) for kind in kinds)
    x = rng.normal(size=(6, k)).astype(np.float32)
    parts = [
        bench.raw(rng.normal(size=(n, k)), kind)
        for n, kind in zip((24, 7, 33), kinds, strict=False)
    ]
    matrix = bench.backend.matrix(parts)

    result = bench.linear(x, matrix)

    expected = [bench.met(x, part.type) @ bench.dequantised(part).T for part in parts]
    np.testing.assert_allclose(result, np.concatenate(expected, axis=1), atol=1e-4)
    assert (matrix.n, matrix.k) == (sum(p.shape[0] for p in parts), k)
    assert matrix.forms == {Form.Q8 if kind.quantised else Form.F32 for kind in kinds}


def embedded(bench: Any, tensor: RawTensor, scale: float) -> np.ndarray:
    matrix = bench.backend.matrix([tensor])
    n, k = tensor.shape

    def op(recorder: Recorder, _: Buffer, out: Buffer) -> None:
        recorder.embed(matrix, out, scale=scale)

    return bench.apply(np.zeros((n, 8)), k, op)


@pytest.mark.parametrize("kind", WeightType)
def test_embed(bench: Any, kind: WeightType) -> None:
    rng = np.random.default_rng(7)
    tensor = bench.raw(rng.normal(size=(13, whole_blocks(kind, 96))), kind)
    expected = bench.dequantised(tensor) * 2.5
    np.testing.assert_allclose(embedded(bench, tensor, 2.5), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_are_what_the_file_says_to_the_bit(bench: Any, kind: WeightType) -> None:
    """Any bytes; 97 rows are six panels and one column, 1024 values four super-blocks."""
    n, k = 97, 1024
    data = random_blocks(np.random.default_rng(9), n, k, kind)
    result = embedded(bench, RawTensor("weight", kind, (n, k), data.reshape(-1)), 1.0)
    np.testing.assert_array_equal(result, dequantised(data, kind, n))


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_that_are_not_whole_blocks_are_refused(bench: Any, kind: WeightType) -> None:
    values, size = SIZES[kind]
    ragged = RawTensor("ragged", kind, (2, values + 16), np.zeros(2 * size, np.uint8))
    with pytest.raises(ModelFileError, match=f"tensor ragged .*multiple of {values}"):
        bench.backend.matrix([ragged])


def test_unsupported_tensors_are_named(bench: Any) -> None:
    good = bench.raw(np.ones((4, 64)), WeightType.Q8_0, "good")
    narrow = bench.raw(np.ones((4, 32)), WeightType.Q8_0, "narrow")
    cube = RawTensor("cube", WeightType.F32, (2, 2, 2), np.zeros(32, np.uint8))
    odd = RawTensor("odd", WeightType.Q8_0, (1, 33), np.zeros(34, np.uint8))
    for parts, culprit in (([good, narrow], "narrow"), ([cube], "cube"), ([odd], "odd")):
        with pytest.raises(ModelFileError, match=culprit):
            bench.backend.matrix(parts)
    with pytest.raises(ModelFileError, match="good"):
        bench.backend.vector(good)


@pytest.mark.parametrize("kind", [WeightType.F32, WeightType.F16, WeightType.BF16])
def test_vectors_of_float_types(bench: Any, kind: WeightType) -> None:
    values = np.random.default_rng(8).normal(size=(1, 48)).astype(np.float32)
    raw = bench.raw(values, kind)
    vector = bench.backend.vector(RawTensor("v", kind, (48,), raw.data))
    x = np.ones((1, 48), np.float32)

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.rms_norm(source, vector, 0.0, out)

    np.testing.assert_allclose(bench.apply(x, 48, op), bench.dequantised(raw), rtol=1e-6)


def spoiled(tensor: RawTensor) -> list[RawTensor]:
    """The tensor with one number, or the scale of one block, that is no finite number: everywhere
    that one may stand in its last row."""
    bits = {
        WeightType.F32: (0x7F800000, 0xFF800000, 0x7FC00000),
        WeightType.BF16: (0x7F80, 0xFF80, 0x7FC0),
        WeightType.MXFP4: (0xFF,),
    }.get(tensor.type, (0x7C00, 0xFC00, 0x7E00))
    width = {WeightType.F32: 4, WeightType.MXFP4: 1}.get(tensor.type, 2)
    size = SIZES[tensor.type][1]
    result = []
    for offset in HALVES.get(tensor.type, (0,)):
        for value in bits:
            data = tensor.data.copy().reshape(-1)
            at = len(data) - size + offset
            data[at : at + width] = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
            result.append(RawTensor("spoiled", tensor.type, tensor.shape, data))
    return result


HALVES = {
    WeightType.Q4_1: (0, 2),
    WeightType.Q5_1: (0, 2),
    WeightType.Q2_K: (80, 82),
    WeightType.Q3_K: (108,),
    WeightType.Q4_K: (0, 2),
    WeightType.Q5_K: (0, 2),
    WeightType.Q6_K: (208,),
}
"""Where a block's f16 scales stand; at its start where nothing is said."""


@pytest.mark.parametrize("kind", WeightType)
def test_numbers_that_are_not_finite_are_found(bench: Any, kind: WeightType) -> None:
    rng = np.random.default_rng(7)
    tensor = bench.raw(rng.normal(size=(19, whole_blocks(kind, 64))), kind, "sound")
    assert bench.backend.matrix([tensor, tensor]).flawed == ()
    for wrong in spoiled(tensor):
        if kind is not WeightType.MXFP4:
            with np.errstate(invalid="ignore"):
                assert not np.isfinite(bench.dequantised(wrong)).all()
        assert bench.backend.matrix([tensor, wrong]).flawed == ("spoiled",)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [WeightType.F32, WeightType.F16, WeightType.BF16])
def test_vectors_that_are_not_finite_are_found(bench: Any, kind: WeightType, value: float) -> None:
    assert bench.backend.vector(bench.raw(np.array([1.0, 2.0]), kind, "sound")).flawed == ()
    tensor = bench.raw(np.array([1.0, value, 2.0]), kind, "spoiled")
    assert bench.backend.vector(tensor).flawed == ("spoiled",)
