"""The same request gives the same tokens and log-probabilities, bit for bit, whatever else is in
the batch and however it is chunked, cached, preempted, overlapped or threaded."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engine.bits import (
    Schedule,
    answers_alone,
    random_schedule,
    requests,
    serve,
    start,
    total,
)
from tests.tiny import VOCAB_SIZE, tiny_llama
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import FIRST_OF_KIND, POSITIONS, save_tiny
from tests.tiny_models import VOCAB_SIZE as MODEL_VOCAB_SIZE
from treadle.config.settings import Isa
from treadle.kernels.native.backend import available_variants
from treadle.kernels.ops import WeightType
from treadle.wire.messages import Generate, Stats
from treadle.wire.sampling_params import SamplingParams

LONGEST = 200 + 70
SCHEDULES = 12


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


FEW_SCHEDULES = (
    Schedule(index="radix", kv_tokens=LONGEST + 32, rows=8, budget=33, threads=2),
    Schedule(index="hashed", block_size=1, rows=3, budget=17, depth=1, steps_between=1),
    Schedule(index="none", block_size=32, rows=8, threads=2, depth=1),
    Schedule(index="block-tree", block_size=32, rows=3, budget=40, depth=1, kv_tokens=600),
)


def check_bits(
    path: Path,
    messages: list[Generate],
    isa: Isa | None,
    kv_dtype: str,
    schedules: Sequence[Schedule] = (),
) -> None:
    """By default random schedules."""
    rng = random.Random(f"{path.name}{isa}")
    alone = answers_alone(path, messages, isa=isa, kv_dtype=kv_dtype)
    seen: list[Stats] = []
    for schedule in schedules or [random_schedule(rng, LONGEST) for _ in range(SCHEDULES)]:
        engine = start(path, schedule, isa=isa, kv_dtype=kv_dtype)
        for warmth in ("cold", "warm"):
            answers = serve(engine, messages, schedule)
            for key, answer in alone.items():
                assert answers[key] == answer, (key, warmth, schedule)
        seen.append(engine.stats())
        engine.close()
    assert total(seen, "preemptions") > 0
    assert total(seen, "prefix_hits") > 0


@pytest.mark.parametrize("weight_type", ["f32", "f16", "bf16", "q4_0", "q4_1", "q8_0"])
def test_tiny_models(weight_type: str, tiny_folder: Path) -> None:
    path = tiny_llama(weight_type, tiny_folder)
    messages = requests(random.Random(weight_type), VOCAB_SIZE, 24)
    check_bits(path, messages, None, "f16")


@pytest.mark.parametrize(
    "weight_type",
    ["q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"],
)
def test_further_weight_types(weight_type: str, tiny_folder: Path) -> None:
    path = tiny_llama(weight_type, tiny_folder)
    messages = requests(random.Random(weight_type), VOCAB_SIZE, 12)
    check_bits(path, messages, None, "f16", FEW_SCHEDULES)


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_kv_types(kv_dtype: str, tiny_folder: Path) -> None:
    messages = requests(random.Random(kv_dtype), VOCAB_SIZE, 24)
    check_bits(tiny_llama("q4_0", tiny_folder), messages, None, kv_dtype)


@pytest.mark.parametrize("isa", available_variants()[1:])
def test_other_variants(isa: Isa, tiny_folder: Path) -> None:
    """The best variant is what the other tests run."""
    for weight_type in ("bf16", "q4_1", "q8_0"):
        messages = requests(random.Random(weight_type), VOCAB_SIZE, 12)
        check_bits(tiny_llama(weight_type, tiny_folder), messages, isa, "f16")


def check_architecture(path: Path, messages: list[Generate], schedules: Sequence[Schedule]) -> None:
    """Whose layers may look back no further than a window."""
    alone = answers_alone(path, messages, kv_dtype="f32", window=POSITIONS)
    hits = 0
    for schedule in schedules:
        # A group with a window has its share of the pool, and needs all of one window.
        roomy = dataclasses.replace(schedule, window=POSITIONS, kv_tokens=schedule.kv_tokens + 600)
        engine = start(path, roomy, kv_dtype="f32")
        for warmth in ("cold", "warm"):
            answers = serve(engine, messages, roomy)
            for key, answer in alone.items():
                assert answers[key] == answer, (key, warmth, roomy)
        hits += engine.stats().prefix_hits
        assert engine.stats().kv_usage == 0
        engine.close()
    assert hits > 0


@pytest.mark.parametrize("name", FIRST_OF_KIND)
def test_architectures(name: str, tiny_folder: Path) -> None:
    """Windows, soft-caps, norms of every kind, learned positions, experts; from directories."""
    path = save_tiny(name, tiny_folder / name)
    messages = requests(random.Random(name), MODEL_VOCAB_SIZE, 12, longest=150)
    rng = random.Random(f"schedules of {name}")
    check_architecture(path, messages, [random_schedule(rng, 150 + 70) for _ in range(4)])


@pytest.mark.parametrize("name", FIRST_OF_KIND)
def test_architectures_with_mixed_types(name: str, tiny_folder: Path) -> None:
    """Rows of every length, and products whose parts differ in type."""
    path = write_tiny_gguf(f"{name}-uneven", tiny_folder, "q4_k_m")
    messages = requests(random.Random(name), MODEL_VOCAB_SIZE, 8, longest=150)
    check_architecture(path, messages, FEW_SCHEDULES)


@pytest.mark.parametrize("weight_type", WeightType)
def test_experts_of_every_type(weight_type: WeightType, tiny_folder: Path) -> None:
    path = write_tiny_gguf("mixtral-wide", tiny_folder, weight_type)
    messages = requests(random.Random(weight_type), MODEL_VOCAB_SIZE, 8, longest=150)
    check_architecture(path, messages, FEW_SCHEDULES[:2])


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("depth", [0, 1])
def test_what_begins_in_a_copied_block(block_size: int, depth: int, tiny_folder: Path) -> None:
    """Prompts that share 45 tokens with one that runs beside them: whole blocks are shared, and of
    the next one a copy is."""
    path = tiny_llama("q8_0", tiny_folder)
    rng = random.Random(block_size)
    stem = [rng.randrange(VOCAB_SIZE) for _ in range(100)]
    prompts = [stem, *(stem[:45] + [rng.randrange(VOCAB_SIZE) for _ in range(9)] for _ in "ab")]
    params = SamplingParams(temperature=0.8, max_tokens=30, ignore_eos=True, logprobs=2)
    messages = [
        Generate(request_id=f"r{at}", prompt=prompt, params=params, seed=at)
        for at, prompt in enumerate(prompts)
    ]
    alone = answers_alone(path, messages)
    schedule = Schedule(index="block-tree", block_size=block_size, rows=3, depth=depth)
    engine = start(path, schedule)
    assert serve(engine, messages[:1], schedule) == {"r0": alone["r0"]}
    assert serve(engine, messages, schedule) == alone
    assert engine.stats().prefix_hits == 99 + 2 * 45
    engine.close()


def test_the_demo_model(demo_gguf: Path) -> None:
    messages = requests(random.Random(7), 49152, 10)
    alone = answers_alone(demo_gguf, messages)
    schedules = [
        Schedule(index="radix", block_size=16, rows=8, budget=64, threads=2, kv_tokens=400),
        Schedule(index="hashed", block_size=1, rows=3, budget=33, depth=1, steps_between=2),
        Schedule(index="radix", block_size=1, rows=8, budget=100, threads=2, depth=1),
    ]
    for schedule in schedules:
        engine = start(demo_gguf, schedule)
        for warmth in ("cold", "warm"):
            answers = serve(engine, messages, schedule)
            for key, answer in alone.items():
                assert answers[key] == answer, (key, warmth, schedule)
        engine.close()


@pytest.mark.parametrize("block_size", [2, 4, 8, 64, 128, 256])
def test_blocks_of_any_size(block_size: int, tiny_folder: Path) -> None:
    messages = requests(random.Random(block_size), VOCAB_SIZE, 12)
    schedules = [
        Schedule(index="radix", block_size=block_size, rows=8, budget=33, kv_tokens=768),
        Schedule(index="hashed", publication="at-plan", block_size=block_size, rows=3, depth=1),
    ]
    path = tiny_llama("q8_0", tiny_folder)
    alone = answers_alone(path, messages)
    hits = 0
    for schedule in schedules:
        engine = start(path, schedule)
        for _ in ("cold", "warm"):
            assert serve(engine, messages, schedule) == alone
        hits += engine.stats().prefix_hits
        engine.close()
    assert (hits > 0) == (block_size < 256), "a prompt has 200 tokens at most"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("isa", available_variants())
def test_a_block_is_read_in_the_step_that_writes_it(
    isa: Isa, depth: int, tiny_folder: Path
) -> None:
    """Every layer writes the K and V of the whole batch before it reads any: eight equal prompts
    compute theirs once, in one step, and answer as if each were alone."""
    path = tiny_llama("q8_0", tiny_folder)
    prompt = [token % VOCAB_SIZE for token in range(7, 7 + 150)]
    messages = [
        Generate(
            request_id=f"r{at}",
            prompt=prompt[: 150 - at],
            params=SamplingParams(temperature=0, max_tokens=8, logprobs=3, ignore_eos=True),
            seed=at,
        )
        for at in range(8)
    ]
    alone = answers_alone(path, messages, isa=isa)
    for threads in (1, 2):
        schedule = Schedule(
            index="hashed", publication="at-plan", rows=8, depth=depth, threads=threads
        )
        engine = start(path, schedule, isa=isa)
        assert serve(engine, messages, schedule) == alone
        stats = engine.stats()
        # What is behind the last full block, and the last token, each computes for itself.
        assert stats.prefix_hits >= 7 * 128
        assert stats.steps == 8
        engine.close()
