"""The native backend's promise: a row's bits do not depend on anything else.

Each test computes one request in a plain way (alone, one thread, whole, blocks of 16) and then
in others, and compares bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
import torch

from tests.blocks import SIZES, random_blocks, whole_blocks
from tests.kernels.network import Mixed, Network, prompt, raw
from treadle.kernels.native.backend import NativeBackend, available_variants
from treadle.kernels.ops import (
    FloatArray,
    KVType,
    LogitEdits,
    RawTensor,
    Rows,
    SampleRows,
    StepInputs,
    StepLimits,
    WeightType,
)

VARIANTS = available_variants()
# The types whose blocks the networks' widths are multiples of.
NARROW = [kind for kind in WeightType if SIZES[kind][0] <= 32]


@pytest.fixture(params=VARIANTS)
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def networks() -> Iterator[list[Network]]:
    made: list[Network] = []
    yield made
    for network in made:
        network.backend.close()


class Product:
    """One matrix, and rows of activations that meet it."""

    def __init__(
        self, backend: NativeBackend, weight: RawTensor, rows: int, x: RawTensor | None = None
    ) -> None:
        n, k = weight.shape
        matrix = backend.matrix([weight])
        self._inputs = StepInputs(StepLimits(rows, rows, ()))
        r = backend.recorder(self._inputs, [])
        table = r.buffer(Rows.TOKENS, k)
        operand = r.operand(Rows.TOKENS, matrix)
        out = r.buffer(Rows.TOKENS, n)
        logits = r.buffer(Rows.LOGITS, n)
        r.embed(backend.matrix([x or raw((rows, k), WeightType.F32, 2)]), table)
        if x is None:
            ones = np.ones(k, np.float32).view(np.uint8)
            weights = backend.vector(RawTensor("ones", WeightType.F32, (k,), ones))
            r.rms_norm(table, weights, 1e-6, operand)
        else:
            r.copy(table, operand)
        r.linear(operand, matrix, out)
        r.select(out, logits)
        self._program = r.finish(logits)
        self._inputs.logit_tokens[:] = np.arange(rows)

    def run(self, ids: np.ndarray) -> FloatArray:
        self._inputs.token_ids[: len(ids)] = ids
        self._inputs.row_starts[1] = len(ids)
        return self._program.run(len(ids), 1, len(ids)).copy()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", WeightType)
def test_rows_of_a_product_do_not_meet(isa: str, kind: WeightType, threads: int) -> None:
    most = 40
    backend = NativeBackend(isa=isa, threads=threads)
    product = Product(backend, raw((75, whole_blocks(kind, 128)), kind, 1), most)
    alone = np.concatenate([product.run(np.array([i])) for i in range(most)])
    assert len(np.unique(alone, axis=0)) == most
    for count in (2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 23, 31, 33, 40):
        ids = np.random.default_rng(count).permutation(most)[:count]
        np.testing.assert_array_equal(product.run(ids), alone[ids], err_msg=f"{count} rows")
    backend.close()


@pytest.mark.parametrize("kind", [WeightType.Q4_1, WeightType.Q6_K])
def test_rows_of_odd_numbers_do_not_meet(isa: str, kind: WeightType) -> None:
    """Zeros, NaN, infinities and subnormal numbers are quantised in ways of their own."""
    most, k = 16, whole_blocks(kind, 64)
    x = np.random.default_rng(1).normal(size=(most, k)).astype(np.float32)
    x[1], x[4, 5], x[7, 3], x[8, 40], x[10], x[13] = 0, np.nan, np.inf, -np.inf, 1e-40, 1e-38
    tensor = RawTensor("x", WeightType.F32, x.shape, x.view(np.uint8).reshape(-1))
    backend = NativeBackend(isa=isa, threads=1)
    product = Product(backend, raw((32, k), kind, 1), most, tensor)
    alone = np.concatenate([product.run(np.array([i])) for i in range(most)])
    assert (np.isfinite(alone).all(axis=1) == ~np.isin(np.arange(most), [4, 7, 8])).all()
    assert (alone[1] == 0).all()
    assert np.abs(alone[10]).max() > 0
    for count in (2, 3, 5, 11, 16):
        ids = np.random.default_rng(count).permutation(most)[:count]
        np.testing.assert_array_equal(product.run(ids), alone[ids], err_msg=f"{count} rows")
    backend.close()


@pytest.mark.parametrize(
    ("network", "kv_type"), [*((Network, kind) for kind in get_args(KVType)), (Mixed, "f16")]
)
def test_blocks_chunks_threads_and_neighbours(
    isa: str, network: type[Network], kv_type: KVType, networks: list[Network]
) -> None:
    ids = prompt(150)
    plain = network(isa=isa, kv_type=kv_type)
    networks.append(plain)
    expected = plain.in_chunks(ids, 1)
    np.testing.assert_array_equal(plain.in_chunks(ids, 150), expected[-1:])
    for block_size, threads in ((1, 2), (16, 2), (32, 1), (24, 2)):
        other = network(isa=isa, kv_type=kv_type, block_size=block_size, threads=threads)
        networks.append(other)
        for size in (7, 64, 150):
            ends = [*range(size, 150, size), 150]
            np.testing.assert_array_equal(
                other.in_chunks(ids, size),
                expected[np.array(ends) - 1],
                err_msg=f"blocks of {block_size}, chunks of {size}",
            )
        others = [(0, 0, prompt(90, 2)), (7, 0, prompt(1, 3)), (5, 0, prompt(33, 4))]
        other.step([*others, (3, 0, ids[:100])])
        joined = other.step([(0, 90, [1]), (3, 100, ids[100:]), (7, 1, [5, 6]), (5, 33, [9])])
        np.testing.assert_array_equal(joined[1], expected[-1])


@pytest.mark.parametrize("kind", NARROW)
def test_weight_types_in_a_whole_network(
    isa: str, kind: WeightType, networks: list[Network]
) -> None:
    ids = prompt(40)
    networks += [Network(isa=isa, kind=kind), Network(isa=isa, kind=kind, threads=2)]
    expected = networks[0].in_chunks(ids, 1)
    for size in (3, 16, 39, 40):
        ends = [*range(size, 40, size), 40]
        np.testing.assert_array_equal(
            networks[1].in_chunks(ids, size), expected[np.array(ends) - 1]
        )


class LongWindow(Mixed):
    window = 600


class OneWindow(Mixed):
    last_window = Mixed.window


@pytest.mark.parametrize(("network", "block_size"), [(Network, 1), (Network, 16), (LongWindow, 16)])
def test_long_contexts_split_over_threads(
    isa: str, network: type[Network], block_size: int, networks: list[Network]
) -> None:
    """900 tokens are 15 pieces, 600 are 10: several threads share them, one takes them in order."""
    ids = prompt(900)
    networks += [network(isa=isa, block_size=block_size, threads=threads) for threads in (1, 2, 5)]
    ends = []
    for made in networks:
        made.step([(2, 0, ids[:880])])
        ends.append(
            [
                made.step([(2, 880, ids[880:881])]),
                made.step([(2, 881, ids[881:895])]),
                made.step([(1, 0, prompt(5)), (2, 895, ids[895:])])[1:],
            ]
        )
    for other in ends[1:]:
        np.testing.assert_array_equal(other, ends[0])


def test_what_left_the_window_leaves_no_trace(isa: str, networks: list[Network]) -> None:
    """The same bits where its blocks are gone and where they are kept."""
    ids = prompt(300)
    window = Network.window

    def results(network: OneWindow, forget: bool) -> list[FloatArray]:
        made = []
        for start, end in (0, 150), (150, 151), (151, 230), (230, 300):
            if forget:
                first = max(0, start - window + 1) // 16
                network.inputs.tables[0][3, :first] = -1
            made.append(network.step([(3, start, ids[start:end])]))
        return made

    networks += [OneWindow(isa=isa, threads=threads) for threads in (1, 2)]
    np.testing.assert_array_equal(results(networks[0], True), results(networks[1], False))


def test_fused_variants_agree(networks: list[Network]) -> None:
    """AVX2 and AVX-512 take the same steps lane by lane, so that their bits are the same."""
    if not {"avx2", "avx512"} <= set(VARIANTS):
        pytest.skip("this processor runs one of the two at most")
    ids = prompt(200)
    made = [(Network, kind) for kind in NARROW]
    for network, kind in [*made, (Mixed, WeightType.F32)]:
        pair = [network(isa=isa, kind=kind, block_size=1) for isa in ("avx2", "avx512")]
        networks += pair
        np.testing.assert_array_equal(pair[0].in_chunks(ids, 64), pair[1].in_chunks(ids, 64))


@pytest.mark.parametrize("kind", WeightType)
def test_products_of_fused_variants_agree(kind: WeightType) -> None:
    """Any scales, any numbers."""
    if not {"avx2", "avx512"} <= set(VARIANTS):
        pytest.skip("this processor runs one of the two at most")
    n, k, rows = 35, 512, 21
    weight = raw((n, k), kind, 3)
    if kind.quantised:
        data = random_blocks(np.random.default_rng(3), n, k, kind, exponents=220)
        weight = RawTensor("weight", kind, (n, k), data.reshape(-1))
    results = []
    for isa in ("avx2", "avx512"):
        backend = NativeBackend(isa=isa, threads=2)
        results.append(Product(backend, weight, rows).run(np.arange(rows)))
        backend.close()
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0], results[1])


def test_the_callers_float_mode_does_not_matter(isa: str) -> None:
    """Subnormal numbers survive also where the caller flushes them to zero."""
    values = np.random.default_rng(1).normal(size=(64, 96)).astype(np.float32) * 1e-39
    table = RawTensor("table", WeightType.F32, values.shape, values.view(np.uint8).reshape(-1))
    one = np.eye(96, dtype=np.float32)
    identity = RawTensor("one", WeightType.F32, one.shape, one.view(np.uint8).reshape(-1))
    assert torch.set_flush_denormal(True)
    try:
        backend = NativeBackend(isa=isa, threads=2)
        inputs = StepInputs(StepLimits(64, 64, ()))
        r = backend.recorder(inputs, [])
        x, out = r.buffer(Rows.TOKENS, 96), r.buffer(Rows.TOKENS, 96)
        logits = r.buffer(Rows.LOGITS, 96)
        r.embed(backend.matrix([table]), x, scale=0.5)
        r.linear(x, backend.matrix([identity]), out)
        r.select(out, logits)
        program = r.finish(logits)
        inputs.token_ids[:] = inputs.logit_tokens[:] = np.arange(64)
        inputs.row_starts[1] = 64
        result = program.run(64, 1, 64).copy()
        backend.close()
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(result, values * np.float32(0.5))
    assert (result != 0).all()


def sample_rows(count: int, seed: int) -> SampleRows:
    rng = np.random.default_rng(seed)
    return SampleRows(
        temperature=rng.choice([0, 0.3, 1, 2], count).astype(np.float32),
        top_k=rng.choice([0, 1, 5, 40, 4000], count).astype(np.int32),
        top_p=rng.choice([0.1, 0.9, 0.999, 1], count).astype(np.float32),
        min_p=rng.choice([0, 0, 0.05], count).astype(np.float32),
        uniform=rng.random(count),
    )


def test_sampling_alone_and_in_a_batch(isa: str) -> None:
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(24, 3001)) * 3).astype(np.float32)
    rows = sample_rows(24, 6)
    one, two = NativeBackend(isa=isa, threads=1), NativeBackend(isa=isa, threads=2)
    together = two.sampling.sample(logits, rows)
    logprobs = two.sampling.top_logprobs(logits, np.arange(24, dtype=np.int32), 7)
    for i in range(24):
        alone = SampleRows(
            rows.temperature[i : i + 1],
            rows.top_k[i : i + 1],
            rows.top_p[i : i + 1],
            rows.min_p[i : i + 1],
            rows.uniform[i : i + 1],
        )
        assert one.sampling.sample(logits[i : i + 1].copy(), alone)[0] == together[i]
        single = one.sampling.top_logprobs(logits, np.array([i], np.int32), 7)
        assert single.log_sum_exp[0] == logprobs.log_sum_exp[i]
        np.testing.assert_array_equal(single.tokens[0], logprobs.tokens[i])
    edits = LogitEdits(
        rows=np.array([3, 3, 9], np.int32),
        tokens=np.array([0, 3000, 5], np.int32),
        add=np.array([1, 0, -np.inf], np.float32),
        repetition=np.array([1.3, 2, 1], np.float32),
        subtract=np.array([0, 0.5, 0], np.float32),
    )
    before = logits.copy()
    two.sampling.edit(logits, edits)
    changed = np.argwhere(before != logits).tolist()
    assert changed == [[3, 0], [3, 3000], [9, 5]]
    one.close()
    two.close()
