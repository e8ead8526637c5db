"""Work on which policies part: several workloads at once, each request with its time, and a pool.

Sizes are for a small model on a few cores, where a run takes seconds. Draws; sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from treadle.bench.workloads import Prompts, Workload, arrivals, conversations

ScenarioName = Literal["long-prompts", "chat", "shared-prefix", "bursts"]
NAMES: tuple[ScenarioName, ...] = get_args(ScenarioName)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: ScenarioName
    about: str
    parts: tuple[Workload, ...]
    burst: int = 1
    """So many requests of a workload arrive together."""
    think_s: float = 0.0
    """From an answer to what the user says next."""
    pool_tokens: int
    """Of KV."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(
            part.prefix_len + part.turns * (part.input_len + part.output_len) for part in self.parts
        )


class Conversation(msgspec.Struct):
    """What one user asks: the first turn at its time, the others after the answers."""

    due_s: float
    turns: list[list[int]]
    output_len: int


def _workload(name: str, num_requests: int, sizes: tuple[int, int], **more: object) -> Workload:
    fields = {"name": name, "num_requests": num_requests, "concurrency": 1_000_000, **more}
    return msgspec.convert({**fields, "input_len": sizes[0], "output_len": sizes[1]}, Workload)


SCENARIOS: Mapping[ScenarioName, Scenario] = {
    one.name: one
    for one in (
        Scenario(
            name="long-prompts",
            about="6 answers of 96 tokens are under way while 4 prompts of 768 arrive",
            parts=(
                _workload("concurrent", 6, (32, 96)),
                _workload("poisson", 4, (768, 8), rate=2.0),
            ),
            pool_tokens=8192,
        ),
        Scenario(
            name="chat",
            about="10 conversations of 3 turns, 48 tokens in and 24 out a turn",
            parts=(_workload("multi-turn", 10, (48, 24), turns=3, rate=6.0),),
            think_s=0.2,
            pool_tokens=8192,
        ),
        Scenario(
            name="shared-prefix",
            about="24 requests, 12 at once, that begin with the same 384 tokens",
            parts=(_workload("shared-prefix", 24, (16, 24), prefix_len=384, rate=1.0),),
            burst=12,
            pool_tokens=16384,
        ),
        Scenario(
            name="bursts",
            about="2 times 8 requests at once, 64 tokens in and 64 out, over 512 tokens of KV",
            parts=(_workload("concurrent", 16, (64, 64), rate=0.5),),
            burst=8,
            pool_tokens=512,
        ),
    )
}


def draw(scenario: Scenario, vocabulary: range, seed: int) -> list[Conversation]:
    """By the seed alone, so that every policy gets the same."""
    prompts = Prompts(vocabulary, seed)
    drawn = []
    for part in scenario.parts:
        times = list(arrivals(msgspec.structs.replace(part, seed=seed)))
        for at, turns in enumerate(conversations(part, prompts)):
            due_s = times[at // scenario.burst]
            drawn.append(Conversation(due_s, turns, part.output_len))
    return sorted(drawn, key=lambda one: one.due_s)


def order(count: int, seed: int) -> list[int]:
    """In which to take so many, different in each round, so that a machine's moods fall on all."""
    places = list(range(count))
    random.Random(seed).shuffle(places)  # noqa: S311 (nothing secret)
    return places
