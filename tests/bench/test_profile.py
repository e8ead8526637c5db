"""`bench profile` on a tiny model, against the sizes that the gguf package reads in its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gguf
import pytest

from tests.tiny import tiny_llama
from tests.tiny_gguf import write_tiny_gguf
from treadle.bench.floors import Machine, Recording
from treadle.bench.load import Load
from treadle.bench.passes import Shape, drive, fitted
from treadle.bench.profile import Op, ProfileReport, measure_profile, ops_of
from treadle.bench.profile_tables import sums_by_kind, sums_by_layer
from treadle.bench.step_parts import StepClock
from treadle.cli.main import run
from treadle.config.given import engine_settings
from treadle.config.settings import EngineSettings
from treadle.engine.build import build_parts
from treadle.errors import StartError

LAYERS = 2
TOKEN_BYTES = 2 * 2 * 16 * 2
"""K and V of two heads of 16 in one layer, two bytes each."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def decode(path: Path) -> ProfileReport:
    return measure_profile(settings(path), path, Shape(batch_size=3, context=16, passes=4))


def settings(path: Path, **given: object) -> EngineSettings:
    return engine_settings(
        {"model": str(path), "threads": 1, "max_model_len": 256, "kv_dtype": "f16", **given}
    )


def test_every_op_is_named_once(decode: ProfileReport) -> None:
    layer = [
        ("attn_norm", "rms_norm"),
        ("qkv", "linear"),
        ("rope", "rope_store"),
        ("attention", "attention"),
        ("attn_out", "linear"),
        ("ffn_norm", "rms_norm"),
        ("gate_up", "linear"),
        ("activation", "gated"),
        ("down", "linear"),
    ]
    assert [(op.label, op.kernel) for op in decode.ops] == [
        ("embed", "embed"),
        *((f"{index}.{kind}", kernel) for index in range(LAYERS) for kind, kernel in layer),
        ("select", "select"),
        ("norm", "rms_norm"),
        ("head", "head"),
    ]
    sums = sums_by_kind(decode.ops)
    assert [sums[key].count for key in layer] == [LAYERS] * len(layer)
    layers = sums_by_layer(decode.ops)
    assert {key: each.count for key, each in layers.items()} == {None: 4, 0: 9, 1: 9}
    assert sum(each.seconds for each in layers.values()) == pytest.approx(
        sum(op.seconds for op in decode.ops)
    )


def test_weights_are_those_of_the_file(path: Path, decode: ProfileReport) -> None:
    """A decode step reads every tensor once, of the embedding a row for each token. Panels of 16
    columns begin at whole cache lines."""
    wanted = 0
    for tensor in gguf.GGUFReader(path).tensors:
        columns = int(tensor.shape[-1])
        row = int(tensor.n_bytes) // columns
        if tensor.name == "token_embd.weight":
            wanted += 3 * row
        elif len(tensor.shape) == 1:
            wanted += int(tensor.n_bytes)
        else:
            wanted += -(-columns // 16) * -(-16 * row // 64) * 64
    assert sum(op.weight_bytes for op in decode.ops) == wanted


def test_kv_of_a_decode_step(decode: ProfileReport) -> None:
    """The fourth step after 16 tokens: each row reads 20 tokens and has stored one of them."""
    assert decode.num_tokens == 3
    assert sum(op.kv_bytes for op in decode.ops) == LAYERS * 3 * (20 + 1) * TOKEN_BYTES


def test_kv_of_a_prefill_after_a_prefix(path: Path) -> None:
    shape = Shape(batch_size=2, context=32, tokens=24, passes=2)
    report = measure_profile(settings(path), path, shape)
    assert report.num_tokens == 48
    assert report.step.num_rows == 2
    kv = LAYERS * 2 * (56 + 24) * TOKEN_BYTES
    assert sum(op.kv_bytes for op in report.ops) == kv
    pairs = sum(range(33, 57))
    attention = [op.operations for op in report.ops if op.kernel == "attention"]
    assert attention == [4 * 2 * pairs * 64] * LAYERS


@pytest.fixture
def driven(path: Path) -> Iterator[tuple[Load, StepClock, Recording]]:
    shape = Shape(batch_size=2, context=16)
    parts = build_parts(fitted(settings(path), shape), path, lambda _: None)
    with closing(parts.engine()) as engine:
        recording = Recording(parts.backend, parts.program)
        yield Load(engine), StepClock(parts, engine), recording
        assert engine.stats().kv_usage == 0


def test_ops_take_no_longer_than_their_pass(
    driven: tuple[Load, StepClock, Recording],
) -> None:
    load, clock, recording = driven
    shape = Shape(batch_size=2, context=16, passes=5)
    assert len(drive(load, shape, clock.take)) == 5
    assert recording.take() == [], "it was off"
    recording.on = True
    passes = drive(load, shape, recording.take)
    assert [each.num_rows for each in passes] == [2] * 5
    for each in passes:
        assert 0 < sum(op.nanoseconds for op in each.ops) <= each.seconds * 1e9


def test_parts_of_a_step_add_up(driven: tuple[Load, StepClock, Recording]) -> None:
    load, clock, _ = driven
    for step in drive(load, Shape(batch_size=2, context=16, passes=5), clock.take):
        parts = (step.plan_s, step.fill_s, step.forward_s, step.sample_s, step.settle_s)
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(step.step_s)


ATTENTION = ["qkv linear", "rope rope_store", "attention attention", "attn_out linear"]
ENDS = ["embed embed", "select select", "head head"]
KINDS = {
    "mixtral": [
        *ENDS,
        *ATTENTION,
        *("attn_norm rms_norm", "ffn_norm rms_norm", "router linear", "experts experts"),
        "norm rms_norm",
    ],
    "gemma2": [
        *ENDS,
        *ATTENTION,
        *("attn_norm rms_norm", "post_attn_norm rms_norm", "gate_up linear", "activation gated"),
        *("ffn_norm rms_norm", "post_ffn_norm rms_norm", "down linear"),
        "norm rms_norm",
    ],
    "gpt2": [
        *ENDS,
        *ATTENTION,
        *("positions embed_positions", "attn_norm layer_norm", "ffn_norm layer_norm"),
        *("up linear", "activation activate", "down linear", "norm layer_norm"),
    ],
}
"""Float weights: nothing is quantised."""


@pytest.mark.parametrize("name", KINDS)
def test_ops_of_other_architectures(tmp_path: Path, name: str) -> None:
    path = write_tiny_gguf(name, tmp_path)
    shape = Shape(batch_size=2, context=16, passes=1)
    chosen = engine_settings({"model": str(path), "threads": 1})
    parts = build_parts(fitted(chosen, shape), path, lambda _: None)
    with closing(parts.engine()) as engine:
        recording = Recording(parts.backend, parts.program)
        recording.on = True
        (one,) = drive(Load(engine), shape, recording.take)
    ops = ops_of([one], Machine(1e9, 1e9, 1e9))
    assert {f"{op.kind} {op.kernel}" for op in ops} == set(KINDS[name])
    assert len({(op.label, op.kernel) for op in ops}) == len(ops)


def test_floors() -> None:
    machine = Machine(read_bytes_per_s=1e9, byte_operations_per_s=1e10, float_operations_per_s=1e8)

    class Cost:
        weight_bytes, kv_bytes, operations, on_bytes = 4_000_000, 1_000_000, 10_000_000, True

    reading, computing = Cost(), Cost()
    computing.on_bytes = False
    assert machine.floor_s(reading) == pytest.approx(5e-3)  # type: ignore[arg-type]
    assert machine.floor_s(computing) == pytest.approx(0.1)  # type: ignore[arg-type]


def test_kinds_and_layers_of_labels() -> None:
    def op(label: str) -> Op:
        return Op(
            label=label,
            kernel="linear",
            seconds=1,
            floor_s=1,
            weight_bytes=1,
            kv_bytes=1,
            activation_bytes=1,
            operations=1,
        )

    labels = ["12.qkv", "head", "norm"]
    assert [(op(each).layer, op(each).kind) for each in labels] == [
        (12, "qkv"),
        (None, "head"),
        (None, "norm"),
    ]


@pytest.mark.parametrize(
    ("given", "shape", "sentence"),
    [
        ({"backend": "torch"}, Shape(context=16), "only the native backend times its ops"),
        ({"max_num_seqs": 1}, Shape(batch_size=2, context=16), "max_num_seqs is 1; a batch of 2"),
        ({}, Shape(context=500), "exceed the window of 256 tokens"),
        (
            {"max_num_batched_tokens": 16},
            Shape(context=0, tokens=64, passes=1),
            "0 of 1 steps had 1 rows of 64 tokens; raise max_num_batched_tokens",
        ),
    ],
)
def test_what_cannot_be_profiled(
    path: Path, given: dict[str, object], shape: Shape, sentence: str
) -> None:
    with pytest.raises(StartError, match=sentence):
        measure_profile(settings(path, **given), path, shape)


def test_the_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "profile.json"
    small = ["--context", "16", "--passes", "2", "--threads", "1", "--json", str(target)]
    assert run(["bench", "profile", str(path), *small]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "qkv" in shown
    assert "layer" not in shown
    assert len(json.loads(target.read_text())["ops"]) == 22
    assert run(["bench", "profile", str(path), *small, "--layers"]) == 0
    assert "\nlayer" in capsys.readouterr().out
    assert run(["bench", "profile", str(path), *small, "--temperature", "1", "--top-p", "0.9"]) == 0
    assert "1, 0.9" in capsys.readouterr().out
    assert json.loads(target.read_text())["top_p"] == 0.9
    assert run(["bench", "profile", str(path), "--context", "0"]) == 1
    assert "a decode step needs context" in capsys.readouterr().err
