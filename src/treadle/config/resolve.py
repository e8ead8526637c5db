"""From what the user set to what is in force: `resolve` is pure, one small rule per value.

Each rule returns the value, where it comes from, and one sentence naming what it depends on. The
result is frozen and without None; whatever runs takes its values from there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import msgspec

from treadle.config.hardware import Hardware
from treadle.config.kv_budget import GroupDemand, divide, useful_bytes
from treadle.config.settings import (
    BackendName,
    CacheSettings,
    EngineSettings,
    KVType,
    PrefixCacheKind,
)
from treadle.errors import StartError

T = TypeVar("T")

Source = Literal["argument", "default", "model", "hardware", "limit"]

_KV_SHARE = 0.5
_MAX_NUM_SEQS = 64
_MAX_BATCHED_TOKENS = 512


class KVGroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of a model that share block tables."""

    values_per_token: int
    """Numbers in K and V of the group's layers for one token."""
    window: int | None = None
    """Tokens that a token sees, itself included; None sees all."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What configuration must know of a model."""

    max_positions: int
    """The window it was made for, in tokens."""
    kv_groups: tuple[KVGroupFacts, ...]
    weights_bytes: int
    step_bytes: int | None = None
    """What the largest step takes beside weights and KV, as the trial before KV is allocated
    measured it; None before the trial."""


class Reason(msgspec.Struct, frozen=True):
    """Why a value is what it is."""

    source: Source
    sentence: str


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Every value in force, and the reason for each under the value's name."""

    max_model_len: int
    prefix_cache: PrefixCacheKind
    block_size: int
    kv_dtype: KVType
    num_blocks: tuple[int, ...]
    """Per KV group."""
    max_num_seqs: int
    max_num_batched_tokens: int
    overlap_depth: int
    backend: BackendName
    threads: int
    reasons: dict[str, Reason]


class _Choice(NamedTuple):
    value: object
    reason: Reason


def resolve(settings: EngineSettings, facts: ModelFacts, hardware: Hardware) -> Resolved:
    """Raises StartError when a setting cannot hold on this model or machine."""
    chosen: dict[str, _Choice] = {}

    def settle(name: str, value: T, source: Source, sentence: str) -> T:
        chosen[name] = _Choice(value, Reason(source, sentence))
        return value

    window = settle("max_model_len", *_window(settings, facts))
    settle("prefix_cache", *_prefix_cache(settings.cache))
    block_size = settle("block_size", *_block_size(settings.cache))
    kv_dtype = settle("kv_dtype", *_kv_dtype(settings, hardware))
    num_seqs = settle("max_num_seqs", *_max_num_seqs(settings))
    budget = settle("max_num_batched_tokens", *_max_num_batched_tokens(settings, num_seqs))
    settle("overlap_depth", *_overlap_depth(settings))
    settle("backend", *_backend(settings))
    settle("threads", *_threads(settings, hardware))
    running = _Running(num_seqs, window, budget, block_size, 4 if kv_dtype == "f32" else 2)
    settle("num_blocks", *_num_blocks(settings.cache, facts, hardware, running))
    values = {name: choice.value for name, choice in chosen.items()}
    reasons = {name: choice.reason for name, choice in chosen.items()}
    return msgspec.convert({**values, "reasons": reasons}, Resolved)


def _window(settings: EngineSettings, facts: ModelFacts) -> tuple[int, Source, str]:
    asked = settings.model.max_model_len
    if asked is None:
        return facts.max_positions, "model", f"the model's window is {facts.max_positions} tokens"
    if asked > facts.max_positions:
        raise StartError(
            f"max_model_len is {asked}; the model's window is {facts.max_positions} tokens"
        )
    return asked, "argument", f"asked for, of the model's {facts.max_positions}"


def _prefix_cache(cache: CacheSettings) -> tuple[PrefixCacheKind, Source, str]:
    if cache.prefix_cache is not None:
        return cache.prefix_cache, "argument", "asked for"
    return "radix", "default", "a radix tree reuses any shared prefix, exact to a block"


def _block_size(cache: CacheSettings) -> tuple[int, Source, str]:
    if cache.block_size is not None:
        return cache.block_size, "argument", "asked for"
    return 16, "default", "16 tokens keep block tables short and lose at most 15 tokens of a match"


def _kv_dtype(settings: EngineSettings, hardware: Hardware) -> tuple[KVType, Source, str]:
    if settings.cache.kv_dtype is not None:
        return settings.cache.kv_dtype, "argument", "asked for"
    native = _backend(settings)[0] == "native"
    if native and settings.runtime.isa in (None, "avx512bf16") and hardware.multiplies_bf16:
        sentence = "half the memory traffic of f32, and this processor multiplies bf16 itself"
        return "bf16", "hardware", f"{sentence}, twice as fast as floats"
    return "f16", "default", "half the memory traffic of f32, and three bits more than bf16"


def _max_num_seqs(settings: EngineSettings) -> tuple[int, Source, str]:
    asked = settings.schedule.max_num_seqs
    if asked is not None:
        return asked, "argument", "asked for"
    return _MAX_NUM_SEQS, "default", "beyond that a CPU gains nothing from larger batches"


def _max_num_batched_tokens(settings: EngineSettings, num_seqs: int) -> tuple[int, Source, str]:
    asked = settings.schedule.max_num_batched_tokens
    if asked is None:
        tokens = max(_MAX_BATCHED_TOKENS, num_seqs)
        return tokens, "default", f"{_MAX_BATCHED_TOKENS} keep a step short, {num_seqs} rows fit"
    if asked < num_seqs:
        raise StartError(
            f"max_num_batched_tokens is {asked}; max_num_seqs is {num_seqs}, and each running"
            " request needs a token in every step"
        )
    return asked, "argument", "asked for"


def _overlap_depth(settings: EngineSettings) -> tuple[int, Source, str]:
    asked = settings.schedule.overlap_depth
    if asked is not None:
        return asked, "argument", "asked for"
    return 0, "default", "on a CPU planning and computing share the cores"


def _backend(settings: EngineSettings) -> tuple[BackendName, Source, str]:
    asked = settings.runtime.backend
    if asked is not None:
        return asked, "argument", "asked for"
    return "native", "default", "the C++ kernels need no PyTorch"


def _threads(settings: EngineSettings, hardware: Hardware) -> tuple[int, Source, str]:
    asked = settings.runtime.threads
    if asked is not None:
        return asked, "argument", "asked for"
    return hardware.cores, "hardware", f"{hardware.cores} cores are open to this process"


class _Running(NamedTuple):
    """What the values settled so far say of the requests that may run at once."""

    num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    block_size: int
    value_bytes: int

    def demand(self, group: KVGroupFacts) -> GroupDemand:
        size = self.block_size
        most = -(-self.max_model_len // size)
        least = 1
        if group.window is not None:
            # The window before a step, and the step, wherever block borders fall.
            held = -(-(group.window - 1 + self.max_num_batched_tokens) // size) + 1
            most = least = min(most, held)
        return GroupDemand(
            block_bytes=group.values_per_token * self.value_bytes * size,
            least_blocks=least,
            useful_blocks=max(self.num_seqs * most, least),
        )


def _num_blocks(
    cache: CacheSettings, facts: ModelFacts, hardware: Hardware, running: _Running
) -> tuple[tuple[int, ...], Source, str]:
    """What was asked for, or a share of the free memory, but no more than can be used."""
    demands = [running.demand(group) for group in facts.kv_groups]
    asked = cache.kv_cache_memory_bytes
    if asked is not None:
        if asked > hardware.memory_bytes:
            raise StartError(
                f"kv_cache_memory_bytes is {asked}; this machine has {hardware.memory_bytes}"
            )
        return divide(asked, demands), "argument", f"{_size(asked)} asked for"
    step = facts.step_bytes or 0
    free = hardware.available_bytes - facts.weights_bytes - step
    share = int(_KV_SHARE * free)
    beside = f"the weights and {_size(step)} for a step" if step else "the weights"
    if share <= 0:
        raise StartError(
            f"{_size(hardware.available_bytes)} of memory are free ({hardware.available_from}),"
            f" the weights need {_size(facts.weights_bytes)} and a step of"
            f" {running.max_num_batched_tokens} tokens {_size(step)}: nothing is left for KV"
        )
    useful = useful_bytes(demands)
    if useful <= share:
        blocks = tuple(demand.useful_blocks for demand in demands)
        requests = f"{running.num_seqs} running requests × {running.max_model_len} tokens"
        return blocks, "limit", f"{requests} take {_size(useful)}, all that can be used"
    sentence = f"{_KV_SHARE:.0%} of the {_size(free)} that {hardware.available_from} leaves"
    return divide(share, demands), "hardware", f"{sentence} beside {beside}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
