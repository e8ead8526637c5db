"""Workloads: what is asked, how much of it, and when. Prompts are drawn from a seed.

A prompt is a list of units, each one token of the model: token ids, or pieces of text that the
model's tokenizer keeps whole. Ordinary units only, none special. Sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Generic, Literal, TypeVar, get_args

import msgspec

from treadle.errors import InvalidRequest

Unit = TypeVar("Unit", int, str)

Name = Literal["single", "concurrent", "poisson", "shared-prefix", "multi-turn", "long-prompt"]

NAMES: tuple[Name, ...] = get_args(Name)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind. `num_requests` counts conversations where there are turns."""

    name: Name
    num_requests: int
    concurrency: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    """Tokens that begin every prompt alike."""
    turns: int = 1
    rate: float | None = None
    """Requests per second, at random times; None: all at once, as far as concurrency lets them."""
    seed: int = 0

    @property
    def num_answers(self) -> int:
        return self.num_requests * self.turns


_UNBOUNDED = 1_000_000

DEFAULTS: dict[Name, Workload] = {
    "single": Workload(name="single", num_requests=10, concurrency=1, input_len=32, output_len=128),
    "concurrent": Workload(
        name="concurrent", num_requests=64, concurrency=32, input_len=128, output_len=128
    ),
    "poisson": Workload(
        name="poisson",
        num_requests=64,
        concurrency=_UNBOUNDED,
        rate=1.0,
        input_len=128,
        output_len=128,
    ),
    "shared-prefix": Workload(
        name="shared-prefix",
        num_requests=32,
        concurrency=32,
        prefix_len=1024,
        input_len=32,
        output_len=32,
    ),
    "multi-turn": Workload(
        name="multi-turn", num_requests=8, concurrency=8, turns=4, input_len=64, output_len=64
    ),
    "long-prompt": Workload(
        name="long-prompt", num_requests=4, concurrency=1, input_len=2048, output_len=1
    ),
}

_SPECIFIC = {
    "prefix_len": ("shared-prefix",),
    "turns": ("multi-turn",),
    "concurrency": tuple(name for name in NAMES if name != "single"),
    "rate": tuple(name for name in NAMES if name != "single"),
}
"""Field → the workloads that read it; those not named are read by all."""


def workload(name: Name, **given: float | None) -> Workload:
    """The workload's defaults, and what was given; None means not given."""
    chosen = {field: value for field, value in given.items() if value is not None}
    for field in chosen:
        users = _SPECIFIC.get(field, NAMES)
        if name not in users:
            option = f"--{field.replace('_', '-')}"
            raise InvalidRequest(f"{option} has no meaning for {name}, only for {', '.join(users)}")
    return msgspec.structs.replace(DEFAULTS[name], **chosen)


class Prompts(Generic[Unit]):
    """Endless prompts of one seed over one pool; no two begin alike unless a prefix is asked for.

    The same seed and pool give the same prompts.
    """

    def __init__(self, pool: Sequence[Unit], seed: int) -> None:
        assert len(pool) > 1
        self._pool: Sequence[Unit] = pool
        self._rng = random.Random(seed)  # noqa: S311 (nothing secret)

    def units(self, length: int) -> list[Unit]:
        return self._rng.choices(self._pool, k=length)


def conversations(
    chosen: Workload, prompts: Prompts[Unit], count: int | None = None
) -> list[list[list[Unit]]]:
    """Per conversation, what the user adds at each turn. A prefix is of this call: another call of
    the same generator shares another one."""
    prefix = prompts.units(chosen.prefix_len)
    return [
        [
            (prefix if turn == 0 else []) + prompts.units(chosen.input_len)
            for turn in range(chosen.turns)
        ]
        for _ in range(chosen.num_requests if count is None else count)
    ]


def arrivals(chosen: Workload) -> Iterator[float]:
    """Seconds after the start at which each request arrives; gaps are exponential."""
    rng = random.Random(chosen.seed)  # noqa: S311
    now = 0.0
    for _ in range(chosen.num_requests):
        yield now
        if chosen.rate is not None:
            now += rng.expovariate(chosen.rate)
