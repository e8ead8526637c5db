"""The trial before KV is allocated: what it measures is what the program then holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from tests.tiny_models import save_tiny
from treadle.config.settings import EngineSettings, RuntimeSettings, ScheduleSettings
from treadle.engine.build import build_parts
from treadle.engine.trial import measure_step_bytes
from treadle.kernels.native.backend import NativeBackend
from treadle.kernels.ops import KVSpec, StepInputs, StepLimits
from treadle.models.loader import Model, load_model
from treadle.wire.messages import Progress


@pytest.fixture
def backend() -> Iterator[NativeBackend]:
    made = NativeBackend(threads=2)
    yield made
    made.close()


def specs_of(model: Model) -> tuple[KVSpec, ...]:
    return model.card.kv_specs(block_size=16, type="f16")


def limits(model: Model, tokens: int, rows: int = 4) -> StepLimits:
    blocks = -(-model.positions // 16)
    return StepLimits(tokens, rows, tuple(blocks for _ in specs_of(model)), extra_logits=rows)


def measured(model: Model, backend: NativeBackend, tokens: int, rows: int = 4) -> int:
    return measure_step_bytes(model, backend, specs_of(model), limits(model, tokens, rows))


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral"])
def test_the_program_holds_what_was_measured(
    name: str, backend: NativeBackend, tmp_path: Path
) -> None:
    """Whatever the pools: only a block of them is there during the trial."""
    model = load_model(save_tiny(name, tmp_path), backend)
    bounds = limits(model, 64)
    inputs = StepInputs(bounds)
    pools = [backend.kv_pool(spec, 100) for spec in specs_of(model)]
    program = model.record(backend.recorder(inputs, pools))
    held = program.memory_bytes + inputs.memory_bytes
    sampling = backend.sampling.memory_bytes(model.card.vocab_size)
    assert measured(model, backend, 64) == held + sampling


def test_each_token_costs_the_same(backend: NativeBackend, tmp_path: Path) -> None:
    model = load_model(tiny_llama("q4_0", tmp_path), backend)
    sizes = [measured(model, backend, tokens) for tokens in (512, 1024, 2048)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    card = model.card
    # q, k, v and the embedding at least, in float32.
    least = 4 * (card.hidden + (card.heads + 2 * card.kv_heads) * card.head_dim)
    assert sizes[1] - sizes[0] >= 512 * least


def test_rows_cost_their_logits(backend: NativeBackend, tmp_path: Path) -> None:
    model = load_model(tiny_llama("f32", tmp_path), backend)
    more = measured(model, backend, 64, rows=40) - measured(model, backend, 64, rows=4)
    assert more >= 2 * 36 * 4 * model.card.vocab_size


def test_memory_grows_by_what_was_measured(backend: NativeBackend, demo_gguf: Path) -> None:
    """A whole step is run, and the system asked. Not all that is held is touched: rows of float32
    beside quantised ones, for one. Huge pages round up."""
    model = load_model(demo_gguf, backend, positions=2048)
    expected = measured(model, backend, 2048, rows=64)
    before = anonymous_bytes()
    inputs = StepInputs(limits(model, 2048, rows=64))
    pools = [backend.kv_pool(spec, 128) for spec in specs_of(model)]
    program = model.record(backend.recorder(inputs, pools))
    tokens = range(2048)
    inputs.positions[:], inputs.row_starts[1] = tokens, 2048
    inputs.slots[0][:], inputs.tables[0][0] = tokens, range(128)
    program.run(2048, 1, 128)
    grown = anonymous_bytes() - before - sum(pool.memory.nbytes for pool in pools)
    assert 0.6 * expected < grown < 1.1 * expected


def anonymous_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("backend_name", ["native", "torch"])
def test_a_start_says_what_a_step_takes(backend_name: str, tmp_path: Path) -> None:
    path = tiny_llama("f32", tmp_path)
    printed = []
    for tokens in (128, 256):
        phases: list[Progress] = []
        settings = EngineSettings(
            schedule=ScheduleSettings(max_num_batched_tokens=tokens, max_num_seqs=2),
            runtime=RuntimeSettings(backend=backend_name, threads=1),  # type: ignore[arg-type]
        )
        build_parts(settings, path, phases.append).runner.close()
        details = next(phase.detail for phase in phases if phase.phase == "allocate KV")
        found = re.search(rf"a step of {tokens} tokens takes ([\d.]+ [KMG]iB)", details)
        assert found is not None
        printed.append(found[1])
    assert printed[0] != printed[1]
