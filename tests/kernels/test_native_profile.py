"""Times and costs of a program's ops, against sizes worked out by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.kernels.network import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    Mixed,
    Network,
    prompt,
    raw,
)
from treadle.kernels.native import _native
from treadle.kernels.native.backend import NativeBackend
from treadle.kernels.native.program import NativeProgram
from treadle.kernels.ops import (
    Buffer,
    RawTensor,
    Recorder,
    Routing,
    Rows,
    StepInputs,
    StepLimits,
    WeightType,
)

QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
RECORD = 60
"""Bytes of 32 quantised activations: the values, a scale and six sums."""


@pytest.fixture
def backend() -> Iterator[NativeBackend]:
    made = NativeBackend(threads=2)
    yield made
    made.close()


def panels(n: int) -> int:
    """Columns as packed."""
    return -(-n // 16) * 16


def profiled(network: Network, tokens: int, rows: int) -> list[_native.OpTime]:
    assert isinstance(network._program, NativeProgram)
    return network._program.profile(tokens, rows, rows)[1]


@pytest.mark.parametrize("network", [Network, Mixed])
def test_a_profiled_run_is_a_run(network: type[Network]) -> None:
    made = network(isa=_native.variants()[0], threads=2)
    wanted = made.step([(2, 0, prompt(40)), (3, 0, prompt(7, seed=2))])
    assert isinstance(made._program, NativeProgram)
    began = time.perf_counter_ns()
    logits, ops = made._program.profile(47, 2, 2)
    took = time.perf_counter_ns() - began
    np.testing.assert_array_equal(logits, wanted)
    assert 0 < sum(op.nanoseconds for op in ops) <= took
    made.backend.close()


def test_costs_of_every_op_of_a_network() -> None:
    """A row of five new tokens, and one token on 70; float weights, KV in two bytes."""
    made = Network(isa=_native.variants()[0])
    made.step([(3, 0, prompt(70))])
    made.step([(2, 0, prompt(5)), (3, 70, prompt(1))])
    ops = profiled(made, 6, 2)
    heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    turned = heads + kv
    seen = 1 + 2 + 3 + 4 + 5 + 71

    def norm(rows: int) -> tuple[int, ...]:
        return 4 * HIDDEN, 0, rows * 8 * HIDDEN, rows * 4 * HIDDEN

    def linear(rows: int, n: int, k: int, *, added: bool = False) -> tuple[int, ...]:
        moved = rows * 4 * (k + n * (1 + added))
        return 4 * panels(n) * k, 0, moved, rows * n * (2 * k + added)

    layer = [
        ("rms_norm", norm(6)),
        ("linear", linear(6, QKV, HIDDEN)),
        # Rope turns the first 16 values of each head: 8 pairs.
        (
            "rope_store",
            (
                0,
                6 * 2 * kv * 2,
                6 * 4 * (QKV + turned + 2 * 8),
                6 * 6 * 8 * (HEADS + KV_HEADS),
            ),
        ),
        ("attention", (0, (5 + 71) * 2 * kv * 2, 6 * 2 * 4 * heads, 4 * seen * heads)),
        ("linear", linear(6, HIDDEN, heads, added=True)),
        ("rms_norm", norm(6)),
        ("linear", linear(6, 2 * FFN, HIDDEN)),
        ("gated", (0, 0, 6 * 4 * 3 * FFN, 6 * 4 * FFN)),
        ("linear", linear(6, HIDDEN, FFN, added=True)),
    ]
    wanted = [
        ("embed", (6 * 4 * HIDDEN, 0, 6 * 4 * HIDDEN, 0)),
        *layer,
        *layer,
        ("select", (0, 0, 2 * 8 * HIDDEN, 0)),
        ("rms_norm", norm(2)),
        ("head", linear(2, VOCAB, HIDDEN)),
    ]
    found = [
        (op.kernel, (op.weight_bytes, op.kv_bytes, op.activation_bytes, op.operations))
        for op in ops
    ]
    assert found == wanted
    assert not any(op.on_bytes for op in ops)
    made.backend.close()


def test_quantised_products_read_packed_weights_and_records(backend: NativeBackend) -> None:
    inputs = StepInputs(StepLimits(4, 4, ()))
    recorder = backend.recorder(inputs, ())
    matrix = backend.matrix([raw((32, 64), WeightType.Q8_0, 0), raw((20, 64), WeightType.Q4_0, 1)])
    table = backend.matrix([raw((8, 64), WeightType.Q8_0, 2)])
    x = recorder.buffer(Rows.TOKENS, 64)
    operand, out = recorder.operand(Rows.TOKENS, matrix), recorder.buffer(Rows.TOKENS, matrix.n)
    recorder.label("in")
    recorder.embed(table, x)
    recorder.copy(x, operand)
    recorder.label("product")
    recorder.linear(operand, matrix, out)
    ops = run(recorder, inputs, out, 3)
    assert [(op.label, op.kernel, op.on_bytes) for op in ops[:4]] == [
        ("in", "embed", False),
        ("in", "copy", False),
        ("product", "linear", True),
        ("product", "linear", True),
    ]
    # Blocks of 32 in a file: 34 bytes of Q8_0, 18 of Q4_0; packed in columns of 16.
    assert [op.weight_bytes for op in ops[:4]] == [3 * 2 * 34, 0, 32 * 2 * 34, 32 * 2 * 18]
    assert ops[1].activation_bytes == 3 * (64 * 4 + 2 * RECORD)
    assert [op.activation_bytes for op in ops[2:4]] == [
        3 * (2 * RECORD + 32 * 4),
        3 * (2 * RECORD + 20 * 4),
    ]
    assert [op.operations for op in ops[2:4]] == [3 * 2 * 32 * 64, 3 * 2 * 20 * 64]


def test_experts_cost_what_was_chosen(backend: NativeBackend) -> None:
    """Two of four experts for each of three tokens, the same two for all."""
    inputs = StepInputs(StepLimits(4, 4, ()))
    recorder = backend.recorder(inputs, ())
    table = backend.matrix([raw((8, 32), WeightType.F32, 2)])
    choice = np.repeat(np.array([[0, 2, 1, -1]], np.float32), 8, axis=0)
    choices = RawTensor("choices", WeightType.F32, (8, 4), choice.view(np.uint8).reshape(-1))
    gate_up = [backend.matrix([raw((32, 32), WeightType.F32, e)]) for e in range(4)]
    down = [backend.matrix([raw((32, 16), WeightType.F32, e)]) for e in range(4)]
    x, router = recorder.buffer(Rows.TOKENS, 32), recorder.buffer(Rows.TOKENS, 4)
    recorder.embed(table, x)
    recorder.embed(backend.matrix([choices]), router)
    out = recorder.buffer(Rows.TOKENS, 32)
    recorder.copy(x, out)
    recorder.experts(x, router, gate_up, down, out, routing=Routing(2, True), activation="silu")
    op = run(recorder, inputs, out, 3)[3]
    assert op.kernel == "experts"
    assert op.weight_bytes == 2 * 4 * (32 * 32 + 32 * 16)
    assert op.operations == 3 * 2 * (2 * (32 * 32 + 32 * 16) + 4 * 16 + 2 * 32)


def run(recorder: Recorder, inputs: StepInputs, out: Buffer, tokens: int) -> list[_native.OpTime]:
    logits = recorder.buffer(Rows.LOGITS, out.width)
    recorder.select(out, logits)
    program = recorder.finish(logits)
    inputs.token_ids[:tokens] = inputs.positions[:tokens] = np.arange(tokens)
    inputs.logit_tokens[:tokens] = np.arange(tokens)
    inputs.row_starts[1] = tokens
    assert isinstance(program, NativeProgram)
    return program.profile(tokens, 1, tokens)[1]


@pytest.mark.parametrize("isa", _native.variants())
def test_a_peak_is_above_what_a_product_reaches(isa: str) -> None:
    """A product whose operands lie in the first caches; the peak has nothing to fetch."""
    backend = NativeBackend(threads=1, isa=isa)
    inputs = StepInputs(StepLimits(256, 1, ()))
    recorder = backend.recorder(inputs, ())
    table = backend.matrix([raw((256, 256), WeightType.F32, 0)])
    for kind in (WeightType.F32, WeightType.Q4_0):
        matrix = backend.matrix([raw((64, 256), kind, 1)])
        x, out = recorder.buffer(Rows.TOKENS, 256), recorder.buffer(Rows.TOKENS, 64)
        operand = recorder.operand(Rows.TOKENS, matrix)
        recorder.embed(table, x)
        recorder.copy(x, operand)
        recorder.linear(operand, matrix, out)
    logits = recorder.buffer(Rows.LOGITS, 64)
    recorder.select(out, logits)
    program = recorder.finish(logits)
    inputs.row_starts[1] = 256
    inputs.positions[:] = np.arange(256)
    assert isinstance(program, NativeProgram)
    for at, on_bytes in (2, False), (5, True):
        rates = []
        for _ in range(20):
            op = program.profile(256, 1, 1)[1][at]
            assert (op.kernel, op.on_bytes) == ("linear", on_bytes)
            rates.append(op.operations / op.nanoseconds * 1e9)
        # The machine may be busy with others: the best of some tries counts.
        assert max(backend.peak(on_bytes=on_bytes) for _ in range(5)) > np.median(rates)
    backend.close()
