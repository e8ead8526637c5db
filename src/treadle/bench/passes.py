"""Has an engine run passes of one shape: so many rows, so much context, so many new tokens each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from treadle.bench.load import Load
from treadle.config.settings import EngineSettings
from treadle.errors import StartError

_LARGEST_BLOCK = 32
"""A prefix is found again in whole blocks."""

_BATCHED_TOKENS = 512


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Of a forward pass; its rows are alike."""

    batch_size: int = 1
    context: int = 512
    """Tokens of each row that have KV already."""
    tokens: int = 1
    """Computed for each row: 1 is decode, more is prefill."""
    passes: int = 16

    @property
    def window(self) -> int:
        """Positions that a request needs at most, while the passes run."""
        return self.context + (self.tokens + 1 if self.tokens > 1 else self.num_output)

    @property
    def num_output(self) -> int:
        """Early rows decode while later ones have not their context yet."""
        waiting = self.batch_size * self.context // _BATCHED_TOKENS
        return self.passes + waiting + self.batch_size + 2


class Measured(Protocol):
    """What was recorded of one pass."""

    num_tokens: int
    num_rows: int


M = TypeVar("M", bound=Measured)


def fitted(settings: EngineSettings, shape: Shape) -> EngineSettings:
    """The settings, with room for the shape in one step and steps one after the other."""
    schedule = settings.schedule
    rows = schedule.max_num_seqs or shape.batch_size
    widest = shape.batch_size * (shape.tokens + _LARGEST_BLOCK)
    budget = schedule.max_num_batched_tokens or max(_BATCHED_TOKENS, widest)
    if rows < shape.batch_size:
        raise StartError(f"max_num_seqs is {rows}; a batch of {shape.batch_size} needs as many")
    chosen = msgspec.structs.replace(
        schedule, max_num_seqs=rows, max_num_batched_tokens=budget, overlap_depth=0
    )
    return msgspec.structs.replace(settings, schedule=chosen)


def drive(load: Load, shape: Shape, take: Callable[[], list[M]]) -> list[M]:
    """What was recorded of `shape.passes` passes of the shape; `take` gives what was since it was
    last called."""
    measured = (_decode if shape.tokens == 1 else _prefill)(load, shape, take)
    if len(measured) < shape.passes:
        raise StartError(
            f"{len(measured)} of {shape.passes} steps had {shape.batch_size} rows of {shape.tokens}"
            " tokens; raise max_num_batched_tokens or kv_cache_memory_bytes"
        )
    return measured


def _decode(load: Load, shape: Shape, take: Callable[[], list[M]]) -> list[M]:
    take()
    prompts = [load.prompt(shape.context) for _ in range(shape.batch_size)]
    load.run(prompts, shape.num_output)
    rows = shape.batch_size
    found = [each for each in take() if each.num_rows == rows == each.num_tokens]
    return found[: shape.passes]


def _prefill(load: Load, shape: Shape, take: Callable[[], list[M]]) -> list[M]:
    measured: list[M] = []
    for _ in range(shape.passes):
        prompts = [load.prompt(shape.context) for _ in range(shape.batch_size)]
        if shape.context:
            load.run(prompts, 1)
        take()
        load.run([prompt + load.prompt(shape.tokens) for prompt in prompts], 1)
        measured += [each for each in take()[:1] if _fits(shape, each)]
    return measured


def _fits(shape: Shape, measured: Measured) -> bool:
    least = shape.batch_size * shape.tokens
    most = least + shape.batch_size * (_LARGEST_BLOCK - 1)
    return measured.num_rows == shape.batch_size and least <= measured.num_tokens <= most
