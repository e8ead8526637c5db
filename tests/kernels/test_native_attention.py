"""Attention of each native variant: its arithmetic, and what rows that share blocks or hold NaN
do to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import pytest

from tests.kernels.conftest import Bench, Paged
from tests.kernels.contexts import Context, Layer, no_rope
from tests.kernels.network import Mixed, Network, prompt
from treadle.kernels.native.backend import NativeBackend, available_variants
from treadle.kernels.ops import FloatArray, KVPool, KVSpec, KVType, Masking, StepLimits

Make = Callable[[Layer, list[int]], Context]


@pytest.fixture(params=available_variants())
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(isa: str) -> Iterator[Make]:
    backend = NativeBackend(isa=isa, threads=2)

    def paged(pool: KVPool, record: Any, *, heads: int, limits: StepLimits) -> Paged:
        return Paged(backend, pool, record, heads=heads, limits=limits)

    def made(layer: Layer, lengths: list[int]) -> Context:
        context = Context(Bench(backend), paged, layer)
        context.prepare(lengths)
        return context

    yield made
    backend.close()


@pytest.mark.parametrize("kind", get_args(KVType))
@pytest.mark.parametrize(
    ("head_dim", "ratio", "window", "cap"),
    [
        (64, 3, None, None),
        (128, 4, None, None),
        (256, 4, 50, None),
        (80, 1, None, 2.0),
        (8, 7, 33, 4.0),
        (24, 13, None, None),
    ],
)
def test_against_float64(
    make: Make, kind: KVType, head_dim: int, ratio: int, window: int | None, cap: float | None
) -> None:
    """Whole register tiles and leftovers, dimensions that fill no vector, windows, caps."""
    scale = 1 / head_dim**0.5
    for block_size in (16, 1):
        spec = KVSpec(1, 2, head_dim, block_size, kind)
        layer = Layer(spec, 2 * ratio, no_rope(head_dim, 150), Masking(scale, window, cap))
        batch = make(layer, [150, 70])
        first, second = batch.run([(0, 0, 100), (1, 0, 70)])
        (third,), (last,) = batch.run([(0, 100, 149)]), batch.run([(0, 149, 150)])
        batch.check(0, np.concatenate([first, third, last]), atol=1e-5)
        batch.check(1, second, atol=1e-5)


@pytest.mark.parametrize("kind", get_args(KVType))
@pytest.mark.parametrize("block_size", [1, 16])
def test_what_a_token_may_not_see_may_be_nan(make: Make, kind: KVType, block_size: int) -> None:
    """Later tokens of the same pair, group and piece, and whole other rows of the step."""
    layer = Layer(KVSpec(1, 2, 32, block_size, kind), 6, no_rope(32, 90), Masking(0.2))
    batch = make(layer, [90, 90])
    (clean,) = batch.run([(0, 0, 90)])
    batch.qkv[1][:] = np.nan
    for end in (69, 70, 75):
        soiled = batch.qkv[0].copy()
        soiled[end:] = np.nan
        whole, batch.qkv[0] = batch.qkv[0], soiled
        nan, result = batch.run([(1, 0, 90), (0, 0, 90)])
        assert np.isnan(nan).all()
        np.testing.assert_array_equal(result[:end], clean[:end])
        assert np.isnan(result[end:]).all()
        batch.qkv[0] = whole


@pytest.mark.parametrize("network", [Network, Mixed])
@pytest.mark.parametrize("block_size", [1, 16, 24])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_rows_that_share_blocks_have_the_bits_of_rows_that_do_not(
    isa: str, kind: KVType, block_size: int, network: type[Network]
) -> None:
    """Rows with 192 and 432 tokens in common, then each its own; decoding and short chunks."""
    common = {row: 432 if row in (4, 5) else 192 for row in range(1, 8)}
    stem = prompt(432)
    prompts = {row: [*stem[: common[row]], *prompt(11 + 9 * row, 20 + row)] for row in common}
    prompts[2] = stem
    ends = {row: len(ids) for row, ids in prompts.items()}

    def results(threads: int, *, shares: bool) -> list[FloatArray]:
        made = network(isa=isa, kv_type=kind, block_size=block_size, threads=threads)
        tables = made.inputs.tables[0]
        made.step([(2, 0, stem)])
        for row in prompts.keys() - {2}:
            count = common[row]
            if shares:
                tables[row, : count // block_size] = tables[2, : count // block_size]
            else:
                made.step([(row, 0, stem[:count])])
            made.step([(row, count, prompts[row][count:])])
        decode = made.step([(row, end, [row]) for row, end in ends.items()])
        chunks = made.step([(row, end + 1, prompt(row, 3)) for row, end in ends.items()])
        made.backend.close()
        return [decode, chunks]

    expected = results(1, shares=False)
    for threads in (1, 2):
        for found in zip(expected, results(threads, shares=True), strict=True):
            np.testing.assert_array_equal(*found)
