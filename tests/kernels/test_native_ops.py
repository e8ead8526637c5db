"""Each variant of the native kernels against float64, at odd widths and extreme values.

The conformance tests run on the best variant alone; these run on all that the processor has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.blocks import whole_blocks, with_numbers
from tests.kernels.conftest import Bench, Headed, Paged
from treadle.errors import ModelFileError
from treadle.kernels.native.backend import NativeBackend, available_variants
from treadle.kernels.ops import (
    NO_TOKEN,
    Buffer,
    KVLayer,
    KVSpec,
    Masking,
    RawTensor,
    Recorder,
    RopeTable,
    Routing,
    Rows,
    SampleRows,
    StepInputs,
    StepLimits,
    WeightType,
)


@pytest.fixture(params=available_variants())
def native(request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    backend = NativeBackend(isa=request.param, threads=2)
    yield backend
    backend.close()


@pytest.fixture
def desk(native: NativeBackend) -> Bench:
    return Bench(native)


@pytest.mark.parametrize("kind", WeightType)
@pytest.mark.parametrize(("tokens", "n"), [(1, 129), (19, 7), (70, 80)])
def test_linear(desk: Bench, kind: WeightType, tokens: int, n: int) -> None:
    rng = np.random.default_rng(tokens)
    k = whole_blocks(kind, 160)
    x = rng.normal(size=(tokens, k)).astype(np.float32)
    x[0, 32:64] = 0
    tensor = desk.raw(rng.normal(size=(n, k)), kind)
    weight = desk.dequantised(tensor)
    wanted = desk.met(x, kind) @ weight.T
    result = desk.linear(x, desk.backend.matrix([tensor]))
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [kind for kind in WeightType if kind.quantised])
def test_integer_sums_are_exact_at_their_limits(desk: Bench, kind: WeightType) -> None:
    """Every product as large as it can be, of one sign: nothing may saturate."""
    k = whole_blocks(kind, 64)
    for byte in (0x00, 0x0F, 0xF0, 0xFF, 0x80, 0x7F, 0x88):
        tensor = RawTensor("limit", kind, (3, k), with_numbers(kind, (3, k), byte).reshape(-1))
        for sign in (1, -1):
            x = np.full((2, k), sign * 127.0, np.float32)
            x[1, ::2] *= -1
            wanted = x.astype(np.float64) @ desk.dequantised(tensor).T
            result = desk.linear(x, desk.backend.matrix([tensor]))
            # Sums of whole numbers are exact below 2^24, which scales of groups lead beyond.
            largest = np.abs(x.astype(np.float64)) @ np.abs(desk.dequantised(tensor)).T
            bound = 1e-6 * largest if largest.max() >= 2**24 else 0
            assert (np.abs(result - wanted) <= bound).all()


def test_every_exponent(desk: Bench) -> None:
    """Each alone in its row, down to subnormal scales, whose products have few bits."""
    count = 252
    data = with_numbers(WeightType.MXFP4, (count, 32), 0x35)
    data[:, 0] = np.arange(count)
    tensor = RawTensor("powers", WeightType.MXFP4, (count, 32), data.reshape(-1))
    x = np.linspace(0.1, 1, 32, dtype=np.float32)[None]
    wanted = desk.met(x, WeightType.MXFP4) @ desk.dequantised(tensor).T
    result = desk.linear(x, desk.backend.matrix([tensor]))
    finite = wanted < np.finfo(np.float32).max
    assert finite.sum() > count - 6
    np.testing.assert_allclose(result[finite], wanted[finite], rtol=1e-4)


@pytest.mark.parametrize("size", [1e-38, 3e-41, 1e-44, 1e30])
def test_activations_of_any_size(desk: Bench, size: float) -> None:
    """Subnormal scales are coarse, but never wrap around or turn to NaN."""
    rng = np.random.default_rng(2)
    x = (rng.uniform(0.5, 1, size=(3, 64)) * size).astype(np.float32)
    # Weights of 1 with a scale of 1, so that the activations' scale is the product's.
    blocks = np.full((4 * 2, 34), 1, np.uint8)
    blocks[:, :2] = np.array([1.0], np.float16).view(np.uint8)
    tensor = RawTensor("ones", WeightType.Q8_0, (4, 64), blocks.reshape(-1))

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        matrix = desk.backend.matrix([tensor])
        operand = recorder.operand(Rows.TOKENS, matrix)
        recorder.gated(source, "silu", operand)
        recorder.linear(operand, matrix, out)

    result = desk.apply(np.concatenate([np.full_like(x, 1), x], axis=1), 4, op)
    exact = x.astype(np.float64).sum(axis=1, keepdims=True) / (1 + np.exp(-1))
    assert np.isfinite(result).all()
    # A scale of n units of the smallest number is off by half a unit, so by 1 / 2n of itself.
    unit = 2.0**-149
    scale = size / (1 + np.exp(-1)) / 127
    tolerance = 0.01 + min(1.0, unit / (2 * scale))
    np.testing.assert_allclose(result, np.broadcast_to(exact, (3, 4)), rtol=tolerance)


def test_exponential_over_the_float_range(desk: Bench) -> None:
    """silu(x) = x / (1 + exp(-x)), for magnitudes from the smallest to the largest float."""
    magnitudes = np.concatenate(
        [np.geomspace(1e-45, 3.4e38, 3000), np.linspace(0, 104, 3000)]
    ).astype(np.float32)
    x = np.concatenate([magnitudes, -magnitudes])
    gate_up = np.stack([x, np.ones_like(x)], axis=1)
    result = desk.apply(gate_up, 1, lambda r, source, out: r.gated(source, "silu", out))[:, 0]
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = wide / (1 + np.exp(-wide))
    # Below -88.7 the denominator leaves the float range.
    big = wide > -88
    np.testing.assert_allclose(result[big], wanted[big], rtol=4e-7, atol=1e-45)
    assert np.abs(result[~big]).max() < 1e-36
    special = np.array([[np.inf, 1], [np.nan, 1], [-0.0, 1]], np.float32)
    ends = desk.apply(special, 1, lambda r, source, out: r.gated(source, "silu", out))[:, 0]
    assert ends[0] == np.inf
    assert np.isnan(ends[1])
    assert ends[2] == 0


def every_magnitude(least: float, most: float) -> np.ndarray:
    half = np.concatenate([np.geomspace(least, most, 4000), np.linspace(0, 20, 4000)])
    return np.concatenate([half, -half]).astype(np.float32)


def ulps(result: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of float32."""
    spacing = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
    return np.abs(result.astype(np.float64) - wanted) / spacing


def test_gelu_keeps_its_digits_on_both_tails(desk: Bench) -> None:
    """x * Φ(x) by erfc in float64; down to where a float has no more digits."""
    x = every_magnitude(1e-30, 1e30)
    result = desk.apply(x[:, None], 1, lambda r, source, out: r.activate(source, "gelu", out))
    wide = x.astype(np.float64)
    chance = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in wide])
    normal = (wide > -12.9) & (np.abs(wide) > 0)
    # The portable variant rounds twice where the others fuse.
    assert ulps(result[:, 0], wide * chance)[normal].max() < 6
    assert np.abs(result[~normal]).max() < 1e-36


def test_gelu_tanh_keeps_its_digits(desk: Bench) -> None:
    x = every_magnitude(1e-30, 5)
    x = x[np.abs(x) < 5]
    result = desk.apply(x[:, None], 1, lambda r, source, out: r.activate(source, "gelu_tanh", out))
    wide = x.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    wanted = wide / (1 + np.exp(-2 * inner))
    # A rounding of the exponent, up to 17 here, is that much larger in the result.
    np.testing.assert_allclose(result[:, 0], wanted, rtol=3e-6)
    assert ulps(result[:, 0], wanted)[np.abs(wide) < 1].max() < 5


@pytest.mark.parametrize("cap", [1.0, 30.0])
def test_tanh_over_the_float_range(desk: Bench, cap: float) -> None:
    one = desk.dense(np.ones((1, 1)))

    def capped(x: np.ndarray) -> np.ndarray:
        return Headed(desk.backend, x[:, None], one, cap).run(range(len(x)), [])[0][:, 0]

    x = every_magnitude(1e-30, 1e38)
    result = capped(x)
    assert ulps(result, cap * np.tanh(x.astype(np.float64) / cap)).max() < 4
    assert np.abs(result).max() == cap
    ends = capped(np.array([np.inf, -np.inf, np.nan, -0.0], np.float32))
    np.testing.assert_array_equal(ends, [cap, -cap, np.nan, 0])


@pytest.mark.parametrize("width", [1, 15, 33, 100, 576])
@pytest.mark.parametrize("size", [0, 1e-15, 1, 1e15])
def test_rms_norm(desk: Bench, width: int, size: float) -> None:
    rng = np.random.default_rng(width)
    x = (rng.normal(size=(5, width)) * size).astype(np.float32)
    weight = rng.normal(size=width).astype(np.float32)
    vector = desk.vector(weight)
    result = desk.apply(x, width, lambda r, source, out: r.rms_norm(source, vector, 1e-6, out))
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=1e-30)


def no_rotation(head_dim: int) -> RopeTable:
    assert head_dim >= 2
    return RopeTable(np.ones((512, 1), np.float32), np.zeros((512, 1), np.float32), True)


def attention(backend: NativeBackend, spec: KVSpec, heads: int, scale: float = 1.0) -> Paged:
    pool = backend.kv_pool(spec, 400 // spec.block_size + 2)

    def record(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        recorder.rope_store(source, heads, no_rotation(spec.head_dim), KVLayer(0, 0))
        recorder.attention(source, heads, KVLayer(0, 0), out, masking=Masking(scale))

    limits = StepLimits(400, 400, (400 // spec.block_size + 1,))
    return Paged(backend, pool, record, heads=heads, limits=limits)


@pytest.mark.parametrize("block_size", [5, 16])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_values_are_rounded_to_the_cache_type(
    native: NativeBackend, kind: Any, block_size: int
) -> None:
    """The attention of a first token is its own V, as stored."""
    rng = np.random.default_rng(3)
    edges = np.array([65504, 65519.99, 65520, 1e30, 6e-8, 2.9e-8, 6.1e-5, 1.00048828125, -0.0])
    values = np.concatenate(
        [edges, -edges, rng.normal(size=230) * 10.0 ** rng.integers(-9, 6, 230)]
    ).astype(np.float32)
    values = np.resize(values, 256)
    paged = attention(native, KVSpec(1, 1, 256, block_size, kind), 1)
    qkv = np.concatenate([np.zeros(512, np.float32), values])[None]
    result = paged.step([(qkv, 0, np.arange(1))])[0]
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[kind]
    np.testing.assert_array_equal(result, torch.from_numpy(values).to(dtype).float().numpy())


@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(8, 2, 2), (20, 10, 1), (256, 6, 2)])
def test_attention(
    native: NativeBackend, block_size: int, head_dim: int, heads: int, kv_heads: int
) -> None:
    rng = np.random.default_rng(head_dim)
    spec = KVSpec(1, kv_heads, head_dim, block_size, "f32")
    paged = attention(native, spec, heads, scale=0.2)
    tokens = 143
    qkv = rng.normal(size=(tokens, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    table = rng.permutation(400 // block_size + 1)
    first = paged.step([(qkv[:100], 0, table)])
    result = np.concatenate([first, paged.step([(qkv[100:], 100, table)])])
    every = qkv.astype(np.float64).reshape(tokens, -1, head_dim).transpose(1, 0, 2)
    q, k, v = np.split(every, [heads, heads + kv_heads])
    k, v = (np.repeat(a, heads // kv_heads, axis=0) for a in (k, v))
    scores = q @ k.transpose(0, 2, 1) * 0.2
    scores[:, *np.triu_indices(tokens, 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = weights / weights.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(
        result, wanted.transpose(1, 0, 2).reshape(tokens, -1), rtol=1e-4, atol=2e-5
    )


def test_values_out_of_sight_do_not_spread(native: NativeBackend) -> None:
    """A later token of the same piece may hold anything, infinities included."""
    paged = attention(native, KVSpec(1, 1, 16, 16, "f32"), 1)
    qkv = np.random.default_rng(4).normal(size=(10, 48)).astype(np.float32)
    clean = paged.step([(qkv, 0, np.arange(1))])
    qkv[6:, 16:] = np.inf
    spoiled = paged.step([(qkv, 0, np.arange(1))])
    np.testing.assert_array_equal(spoiled[:6], clean[:6])


def mixture(desk: Bench, kinds: list[WeightType], width: int) -> Any:
    """Runs experts of these types on rows of [input, router logits]."""
    rng = np.random.default_rng(5)
    picks = np.eye(width + len(kinds))
    plain, router = desk.dense(picks[:width]), desk.dense(picks[width:])
    gate_up = [desk.raw(rng.normal(size=(64, width)), kind) for kind in kinds]
    down = [desk.raw(rng.normal(size=(width, 32)), kind) for kind in reversed(kinds)]
    every_form = desk.backend.matrix(gate_up)
    experts = [[desk.backend.matrix([raw]) for raw in raws] for raws in (gate_up, down)]

    def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
        values = recorder.buffer(Rows.TOKENS, width)
        operand = recorder.operand(Rows.TOKENS, every_form)
        logits = recorder.buffer(Rows.TOKENS, len(kinds))
        recorder.linear(source, plain, values)
        recorder.linear(source, router, logits)
        recorder.copy(values, operand)
        recorder.copy(values, out)
        routing = Routing(2, renormalise=True)
        recorder.experts(operand, logits, *experts, out, routing=routing, activation="gelu")

    return lambda x: desk.apply(x, width, op)


def test_router_logits_without_a_number(desk: Bench) -> None:
    """A token whose logits are NaN or infinite chooses somebody, and spoils no other token."""
    run = mixture(desk, [WeightType.F32] * 7, 32)
    x = np.random.default_rng(5).normal(size=(6, 39)).astype(np.float32)
    sound = [0, 2, 5]
    clean = run(x)[sound]
    x[1, 32:], x[3, 32:], x[4, 34] = np.nan, np.inf, np.nan
    result = run(x)[sound]
    np.testing.assert_array_equal(result, clean)
    assert np.isfinite(result).all()


def test_a_token_among_thousands_that_choose_its_experts(desk: Bench) -> None:
    """Alone, in a few, and in a step whose choices pass in several chunks: the same bits."""
    kinds = [WeightType.F32, WeightType.Q8_0, WeightType.Q4_1, WeightType.F16]
    run = mixture(desk, kinds, 32)
    x = np.random.default_rng(6).normal(size=(1300, 36)).astype(np.float32)
    x[::2, 33] = 4
    whole = run(x)
    assert len(np.unique(whole, axis=0)) == len(x)
    for chosen in ([0], [1299], [1298, 3, 640], list(range(1, 1300, 37))):
        np.testing.assert_array_equal(run(x[chosen]), whole[chosen])


@pytest.mark.parametrize("vocab", [1, 17, 5000])
def test_sampling(native: NativeBackend, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    count = 40
    logits = (rng.normal(size=(count, vocab)) * 2).astype(np.float32)
    logits[:, rng.integers(0, vocab, vocab // 3)] = -np.inf
    logits[:, 0] = rng.normal(size=count)
    logits[::7, -1] = np.nan
    ones = np.ones(count, np.float32)
    uniform = rng.random(count)
    rows = SampleRows(0.8 * ones, np.zeros(count, np.int32), ones, 0 * ones, uniform)
    wide = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    wide[0::7, 0] = np.where(vocab == 1, 0, wide[0::7, 0])
    weights = np.exp((wide - wide.max(axis=1, keepdims=True)) / np.float64(np.float32(0.8)))
    running = weights.cumsum(axis=1)
    wanted = (running > uniform[:, None] * running[:, -1:]).argmax(axis=1)
    wanted[np.isnan(logits).all(axis=1)] = NO_TOKEN
    np.testing.assert_array_equal(native.sampling.sample(logits, rows), wanted)

    top = native.sampling.top_logprobs(logits, np.arange(count, dtype=np.int32), min(vocab, 5))
    with np.errstate(divide="ignore"):
        lse = wide.max(axis=1) + np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1))
    finite = ~np.isnan(logits).all(axis=1)
    np.testing.assert_allclose(top.log_sum_exp[finite], lse[finite], rtol=1e-6, atol=1e-6)
    order = np.argsort(-np.where(np.isnan(logits), -np.inf, logits), axis=1, kind="stable")
    np.testing.assert_array_equal(top.tokens, order[:, : min(vocab, 5)])


def test_long_flat_distributions(native: NativeBackend) -> None:
    """Nothing stands out, so the candidates of a cut are the whole vocabulary, in id order."""
    vocab = 4000
    logits = np.zeros((4, vocab), np.float32)
    ones = np.ones(4, np.float32)
    uniform = np.array([0, 0.3, 0.6, 1 - 2**-53])
    kept = {"top_p": 1000, "top_k": 500, "min_p": vocab}
    for cut, count in kept.items():
        rows = SampleRows(
            ones,
            np.full(4, 500 if cut == "top_k" else 0, np.int32),
            np.full(4, 0.25 if cut == "top_p" else 1, np.float32),
            np.full(4, 0.5 if cut == "min_p" else 0, np.float32),
            uniform,
        )
        np.testing.assert_array_equal(
            native.sampling.sample(logits, rows), np.floor(uniform * count)
        )


@pytest.mark.parametrize("kind", [WeightType.BF16, WeightType.Q4_0])
def test_stacked_parts_are_the_parts(desk: Bench, kind: WeightType) -> None:
    """Parts of whole panels become one product; whether they do shows in no result."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(5, 64)).astype(np.float32)
    parts = [desk.raw(rng.normal(size=(n, 64)), kind, f"part {n}") for n in (16, 32, 17, 5, 48)]
    stacked = desk.backend.matrix(parts)
    singly = [desk.linear(x, desk.backend.matrix([part])) for part in parts]
    np.testing.assert_array_equal(desk.linear(x, stacked), np.concatenate(singly, axis=1))
    bias = rng.normal(size=118).astype(np.float32)
    biased = desk.linear(x, stacked, bias=bias)
    np.testing.assert_array_equal(biased, np.concatenate(singly, axis=1) + bias)


def test_bad_input_is_refused_when_recording(native: NativeBackend, desk: Bench) -> None:
    inputs = StepInputs(StepLimits(4, 2, (3,)))
    pool = native.kv_pool(KVSpec(1, 1, 16, 16, "f16"), 3)
    r = native.recorder(inputs, [pool])
    matrix = desk.backend.matrix([desk.raw(np.ones((8, 32)), WeightType.Q8_0)])
    x, out = r.buffer(Rows.TOKENS, 32), r.buffer(Rows.TOKENS, 8)
    with pytest.raises(ValueError, match="form"):
        r.linear(x, matrix, out)
    with pytest.raises(ValueError, match="width 8"):
        r.embed(matrix, out)
    with pytest.raises(ValueError, match="row per"):
        r.select(x, out)
    with pytest.raises(ValueError, match="no layer 1"):
        r.attention(r.buffer(Rows.TOKENS, 48), 1, KVLayer(0, 1), x, masking=Masking(1))
    with pytest.raises(ValueError, match="another recording"):
        native.recorder(inputs, [pool]).embed(matrix, x)
    with pytest.raises(ValueError, match="KV pools"):
        native.recorder(inputs, [])
    with pytest.raises(ModelFileError, match="short"):
        native.matrix([RawTensor("short", WeightType.F32, (2, 2), np.zeros(15, np.uint8))])
    r.finish(r.buffer(Rows.LOGITS, 8))
    with pytest.raises(ValueError, match="finished"):
        r.embed(matrix, x)


def test_bad_indices_are_refused_when_run(native: NativeBackend) -> None:
    inputs = StepInputs(StepLimits(4, 2, (2,)))
    pool = native.kv_pool(KVSpec(1, 1, 16, 16, "f16"), 3)
    r = native.recorder(inputs, [pool])
    table = RawTensor("t", WeightType.F32, (5, 48), np.zeros(960, np.uint8))
    x, out = r.buffer(Rows.TOKENS, 48), r.buffer(Rows.TOKENS, 16)
    logits = r.buffer(Rows.LOGITS, 16)
    r.embed(native.matrix([table]), x)
    r.rope_store(x, 1, no_rotation(16), KVLayer(0, 0))
    r.attention(x, 1, KVLayer(0, 0), out, masking=Masking(1))
    r.select(out, logits)
    program = r.finish(logits)
    inputs.row_starts[1] = 1
    good = [
        (inputs.token_ids, 4, 5, "token id"),
        (inputs.positions, 31, 32, "position"),
        (inputs.slots[0], 47, 48, "slot"),
        (inputs.table_rows, 1, 2, "table row"),
        (inputs.tables[0][0], 2, 3, "block table"),
        (inputs.logit_tokens, 0, 1, "logits"),
    ]
    for array, last, past, message in good:
        array[0] = last
        program.run(1, 1, 1)
        array[0] = past
        with pytest.raises(ValueError, match=message):
            program.run(1, 1, 1)
        array[0] = -1
        with pytest.raises(ValueError, match=message):
            program.run(1, 1, 1)
        array[0] = 0
    with pytest.raises(ValueError, match="too many tokens"):
        program.run(5, 1, 1)
    with pytest.raises(ValueError, match="row_starts"):
        program.run(2, 1, 1)
