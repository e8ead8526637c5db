"""Running requests under chosen schedules, for tests that compare answers bit for bit."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

from treadle.config.settings import (
    CacheSettings,
    EngineSettings,
    Isa,
    ModelSettings,
    RuntimeSettings,
    ScheduleSettings,
)
from treadle.engine.build import build_engine
from treadle.engine.loop import Engine
from treadle.wire.messages import Delta, Generate, Stats, TokenLogprob
from treadle.wire.sampling_params import SamplingParams

Answer = list[tuple[int, TokenLogprob | None]]

WINDOW = 320


@dataclasses.dataclass(frozen=True)
class Schedule:
    """One way to serve a set of requests."""

    index: str = "none"
    eviction: str | None = None
    publication: str | None = None
    block_size: int = 16
    kv_tokens: int = 4096
    rows: int = 1
    budget: int = 512
    depth: int = 0
    threads: int = 1
    window: int = WINDOW
    steps_between: int = 0
    """Requests arrive this many steps apart."""
    order: int = 0
    """Seed of the order of arrival."""


def random_schedule(rng: random.Random, longest: int) -> Schedule:
    """Small pools, odd chunks, every index: whatever could move a bit."""
    rows = rng.choice([1, 2, 3, 8])
    index = rng.choice(["none", "radix", "hashed", "block-tree"])
    return Schedule(
        index=index,
        eviction=rng.choice(["lru", "lfu", "slru", "priority"]) if index == "radix" else None,
        publication=rng.choice([None, "postpone", "at-plan" if index == "hashed" else None]),
        block_size=rng.choice([1, 2, 4, 8, 16, 32, 64]),
        kv_tokens=longest + rng.choice([32, 64, 200, 4000]),
        rows=rows,
        budget=rng.choice([rows, rows + 4, 17, 33, 64, 100, 512]),
        depth=rng.choice([0, 1]),
        threads=rng.choice([1, 2]),
        steps_between=rng.choice([0, 0, 1, 5]),
        order=rng.randrange(1000),
    )


def requests(
    rng: random.Random, vocab_size: int, count: int, *, longest: int = 200
) -> list[Generate]:
    """Prompts that share prefixes and whose lengths cross pieces, blocks and chunks; parameters of
    every kind."""
    stem = [rng.randrange(vocab_size) for _ in range(longest)]
    kinds = [
        SamplingParams(temperature=0, logprobs=3),
        SamplingParams(temperature=0, max_tokens=70, ignore_eos=True),
        SamplingParams(temperature=1.0, top_p=0.9, logprobs=0),
        SamplingParams(temperature=0.8, top_k=20, min_p=0.02),
        SamplingParams(temperature=1.2, logprobs=1),
        SamplingParams(temperature=0.7, top_p=0.8, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=1.0, frequency_penalty=0.4, logit_bias={5: 3.0, 9: -100.0}),
        SamplingParams(temperature=0, repetition_penalty=1.2, min_tokens=4, logprobs=2),
    ]
    lengths = [1, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, longest]
    made = []
    for at in range(count):
        length = lengths[at % len(lengths)]
        shared = rng.choice([0, length // 2, length - 1, length])
        prompt = stem[:shared] + [rng.randrange(vocab_size) for _ in range(length - shared)]
        params = kinds[at % len(kinds)]
        if params.max_tokens == 16:
            params = SamplingParams(
                **{**_fields(params), "max_tokens": max(params.min_tokens, rng.choice([1, 6, 24]))}
            )
        made.append(
            Generate(
                request_id=f"r{at}",
                prompt=prompt,
                params=params,
                seed=rng.randrange(2**64),
                choice=rng.randrange(2),
            )
        )
    return made


def start(
    path: Path,
    schedule: Schedule,
    *,
    isa: Isa | None = None,
    kv_dtype: str = "f16",
    runtime: RuntimeSettings | None = None,
) -> Engine:
    """`runtime` in place of the native backend's."""
    per_token = kv_bytes_per_token(path, kv_dtype)
    settings = EngineSettings(
        model=ModelSettings(max_model_len=schedule.window),
        cache=CacheSettings(
            prefix_cache=schedule.index,  # type: ignore[arg-type]
            eviction_policy=schedule.eviction,  # type: ignore[arg-type]
            publication=schedule.publication,  # type: ignore[arg-type]
            block_size=schedule.block_size,  # type: ignore[arg-type]
            kv_dtype=kv_dtype,  # type: ignore[arg-type]
            kv_cache_memory_bytes=schedule.kv_tokens * per_token,
        ),
        schedule=ScheduleSettings(
            max_num_seqs=schedule.rows,
            max_num_batched_tokens=schedule.budget,
            overlap_depth=schedule.depth,  # type: ignore[arg-type]
        ),
        runtime=runtime or RuntimeSettings(backend="native", isa=isa, threads=schedule.threads),
    )
    return build_engine(settings, path, lambda _: None)


def serve(engine: Engine, messages: list[Generate], schedule: Schedule) -> dict[str, Answer]:
    """Send the requests as the schedule says; all answers."""
    waiting = list(messages)
    random.Random(schedule.order).shuffle(waiting)
    answers: dict[str, Answer] = {message.request_id: [] for message in messages}
    while waiting or engine.has_work:
        if waiting:
            batch = waiting if schedule.steps_between == 0 else waiting[:1]
            waiting = waiting[len(batch) :]
            for message in batch:
                engine.handle(message)
        for _ in range(max(schedule.steps_between, 1)):
            for delta in engine.step():
                assert isinstance(delta, Delta), delta
                entries = delta.logprobs or [None] * len(delta.tokens)
                answers[delta.request_id] += zip(delta.tokens, entries, strict=True)
    return answers


def answers_alone(
    path: Path,
    messages: list[Generate],
    *,
    isa: Isa | None = None,
    kv_dtype: str = "f16",
    window: int = WINDOW,
) -> dict[str, Answer]:
    """Each request by itself: no cache, one thread, the whole prompt in one step."""
    schedule = Schedule(window=window)
    engine = start(path, schedule, isa=isa, kv_dtype=kv_dtype)
    alone: dict[str, Answer] = {}
    for message in messages:
        alone |= serve(engine, [message], schedule)
    engine.close()
    return alone


def total(stats: list[Stats], name: str) -> int:
    return sum(getattr(entry, name) for entry in stats)


def _fields(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def kv_bytes_per_token(path: Path, kv_dtype: str) -> int:
    from treadle.models.loader import read_card

    specs = read_card(path).kv_specs(block_size=1, type=kv_dtype)  # type: ignore[arg-type]
    return sum(spec.bytes_per_token for spec in specs)
