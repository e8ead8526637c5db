"""One workload of two hundred requests, and the ways to serve it: presets, and choices on the axes
drawn from those that compose."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.engine.bits import Answer, kv_bytes_per_token
from treadle.config.axes import AXES
from treadle.config.composition import check_composition
from treadle.config.settings import EngineSettings
from treadle.engine.build import build_engine
from treadle.engine.loop import Engine
from treadle.errors import StartError
from treadle.wire.messages import Abort, Delta, Failed, Generate, Stats
from treadle.wire.sampling_params import SamplingParams

COUNT = 200
SEED = 20_240_817
WINDOW = 192
KV_TOKENS = 384
ROWS = 6
BUDGET = 48
PROMPT = -1
"""In place of a token: the entry is of one of the prompt's."""
DRAWN = ("composition", "admission", "shortage", "order", "prefix_index", "publication", "eviction")
GROUPS = {
    "composition": "policy",
    "admission": "policy",
    "shortage": "policy",
    "order": "order",
    "prefix_cache": "cache",
    "publication": "cache",
    "eviction_policy": "cache",
}
"""Which section of the settings an axis's setting is in."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests in the order in which they arrive, so many a step, and whose clients leave."""

    messages: list[Generate]
    arrivals: list[int]
    leaves: Mapping[str, int]
    """Request → after so many tokens."""


def recorded(vocab_size: int) -> Workload:
    """The same each time: prompts of a few families under three salts, answers of every length."""
    rng = random.Random(SEED)
    stems = [[rng.randrange(3, vocab_size) for _ in range(70)] for _ in range(4)]
    messages, leaves = [], {}
    for at in range(COUNT):
        stem = rng.choice(stems)
        shared = rng.choice([0, 5, 16, 33, 64, 70])
        tail = [rng.randrange(3, vocab_size) for _ in range(rng.choice([1, 2, 9, 20, 45]))]
        params = _params(rng)
        messages.append(
            Generate(
                request_id=f"r{at}",
                prompt=stem[:shared] + tail,
                params=params,
                seed=rng.randrange(2**64),
                cache_salt=rng.choice(["", "", "", "a", "b"]),
                priority=rng.choice([None, None, 0, 3, -4, 40]),
                routing_key=rng.choice(["", "x", "y"]),
            )
        )
        if at % 10 == 7:
            leaves[f"r{at}"] = rng.choice([1, 2, 5])
    return Workload(messages, [rng.choice([0, 0, 1, 3, 9]) for _ in messages], leaves)


def _params(rng: random.Random) -> SamplingParams:
    length = rng.choice([0, 1, 1, 4, 7, 12, 20, 60])
    logprobs = rng.choice([None, None, 0, 2])
    kind: dict[str, Any] = rng.choice(
        [
            {"temperature": 0},
            {"temperature": 1.0},
            {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.2},
            {"temperature": 1.1, "top_p": 0.9, "presence_penalty": 0.3},
        ]
    )
    scores = {"prompt_logprobs": 1} if length == 0 else {}
    ignore_eos = rng.random() < 0.7
    return SamplingParams(
        **kind, **scores, max_tokens=length, logprobs=logprobs, ignore_eos=ignore_eos
    )


def combinations(count: int, seed: int) -> Iterator[EngineSettings]:
    """Choices on the axes that compose, with the sizes and switches that go with them. As long as
    there are choices that were never drawn, each combination has one of them."""
    rng = random.Random(seed)
    unseen = {(name, choice) for name in DRAWN for choice in AXES[name].here}
    while count:
        choices = {name: rng.choice(AXES[name].here) for name in DRAWN}
        if unseen and unseen.isdisjoint(choices.items()):
            continue
        try:
            check_composition(choices)
        except StartError:
            continue
        unseen -= set(choices.items())
        count -= 1
        # Both depths get the same number of combinations.
        yield _drawn(rng, choices, depth=count % 2)


def _drawn(rng: random.Random, choices: Mapping[str, str], depth: int) -> EngineSettings:
    sections: dict[str, dict[str, Any]] = {
        "cache": {"block_size": rng.choice([1, 4, 16, 32])},
        "schedule": {"overlap_depth": depth},
        "policy": {"chunked_prefill": rng.random() < 0.8},
        "order": {},
    }
    for name, choice in choices.items():
        setting = AXES[name].setting
        sections[GROUPS[setting]][setting] = choice
    if choices["prefix_index"] == "none":
        del sections["cache"]["eviction_policy"]
    if choices["prefix_index"] == "block-tree":
        sections["cache"]["partial_reuse"] = rng.random() < 0.7
        partial = sections["cache"]["partial_reuse"]
        sections["cache"]["copy_on_partial_reuse"] = partial and rng.random() < 0.5
    if choices["admission"] == "estimate":
        # Too little is set aside, as when answers turn out longer than expected.
        sections["policy"]["schedule_conservativeness"] = rng.choice([0.1, 0.1, 1.0])
    if choices["composition"] == "unified":
        sections["policy"]["long_prefill_token_threshold"] = rng.choice([0, 7, 33])
    if choices["composition"] == "prefill-first":
        sections["policy"]["mixed_chunk"] = rng.random() < 0.5
    if choices["composition"] == "two-stage":
        sections["policy"]["chunk_policy"] = rng.choice(["in-turn", "equal-progress"])
    counts = choices["order"] in ("priority", "lof")
    sections["order"]["priorities"] = "count" if counts else "ignore"
    displaces = choices["admission"] == "estimate" and choices["composition"] == "prefill-first"
    if counts and displaces:
        sections["order"]["priority_preemption"] = True
        sections["order"]["priority_preemption_threshold"] = 2
    return settings(sections)


def settings(
    sections: Mapping[str, Mapping[str, Any]] | None = None, preset: str = "treadle"
) -> EngineSettings:
    """With a pool in which few of the requests fit beside each other."""
    given: dict[str, Any] = {name: dict(values) for name, values in (sections or {}).items()}
    given["preset"] = preset
    given.setdefault("model", {})["max_model_len"] = WINDOW
    given.setdefault("cache", {})["kv_dtype"] = "f32"
    given.setdefault("schedule", {}).update(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET)
    given["runtime"] = {"backend": "native", "threads": 1, "grammar_backend": "none"}
    return msgspec.convert(given, EngineSettings)


def start(path: Path, chosen: EngineSettings, kv_tokens: int = KV_TOKENS) -> Engine:
    memory = kv_tokens * kv_bytes_per_token(path, "f32")
    cache = msgspec.structs.replace(chosen.cache, kv_cache_memory_bytes=memory)
    return build_engine(msgspec.structs.replace(chosen, cache=cache), path, lambda _: None)


def play(engine: Engine, workload: Workload, most_steps: int = 20_000) -> dict[str, Answer | None]:
    """All answers, as far as clients stay; None for a request that was refused."""
    answers: dict[str, Answer | None] = {one.request_id: [] for one in workload.messages}
    waiting = list(zip(workload.messages, workload.arrivals, strict=True))
    wait = 0
    for _ in range(most_steps):
        while waiting and wait <= 0:
            message, wait = waiting.pop(0)
            engine.handle(message)
        wait -= 1
        if not waiting and not engine.has_work:
            return answers
        for event in engine.step():
            _take(engine, workload, answers, event)
    raise AssertionError(f"{engine.stats()} after {most_steps} steps")


def _take(
    engine: Engine, workload: Workload, answers: dict[str, Answer | None], event: object
) -> None:
    if isinstance(event, Failed):
        assert not answers[event.request_id], event
        answers[event.request_id] = None
        return
    assert isinstance(event, Delta), event
    answer = answers[event.request_id]
    assert answer is not None
    answer += [(PROMPT, entry) for entry in event.prompt_logprobs or []]
    entries = event.logprobs or [None] * len(event.tokens)
    answer += zip(event.tokens, entries, strict=True)
    leaves = workload.leaves.get(event.request_id)
    if leaves is not None and sum(token != PROMPT for token, _ in answer) >= leaves:
        engine.handle(Abort(event.request_id))


def acted(stats: list[Stats], name: str) -> int:
    return sum(getattr(one, name) for one in stats)
