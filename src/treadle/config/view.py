"""What a rule sees, and a record of what it looked at.

A rule gets a `View` and reads attributes, nothing else. `watch` hands out the same view through
recorders, so the inputs that a reason names are those that the rule has read, not those that it
says it reads.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any, NamedTuple, cast

import msgspec

from treadle.config.device import Device
from treadle.config.facts import ModelFacts
from treadle.config.hardware import Hardware
from treadle.config.settings import (
    AdmissionName,
    BackendName,
    ChunkPolicy,
    CompositionName,
    ContextForm,
    EngineSettings,
    EvictionPolicy,
    GrammarBackendName,
    KVMemoryRule,
    KVType,
    LengthRule,
    OrderName,
    PrefixCacheKind,
    PriorityRule,
    PublicationName,
    ShortageName,
    Source,
)


class Choice(NamedTuple):
    """A value, where it comes from, and one sentence naming what it depends on."""

    value: Any
    source: Source
    sentence: str


class Settled:
    """Values decided so far; reading one that is not decided yet is a bug in the rules' order."""

    max_model_len: int
    prefix_cache: PrefixCacheKind
    eviction_policy: EvictionPolicy
    publication: PublicationName
    prefix_wait_tokens: int
    partial_reuse: bool
    copy_on_partial_reuse: bool
    block_size: int
    kv_dtype: KVType
    kv_memory_rule: KVMemoryRule
    kv_memory_fraction: float
    kv_budget_bytes: int
    num_blocks: tuple[int, ...]
    num_soft_blocks: tuple[int, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    overlap_depth: int
    length_rule: LengthRule
    allow_auto_truncate: bool
    composition: CompositionName
    admission: AdmissionName
    shortage: ShortageName
    chunked_prefill: bool
    long_prefill_token_threshold: int
    max_prefill_tokens: int
    mixed_chunk: bool
    chunk_policy: ChunkPolicy
    chunk_unit_tokens: int
    reserve_full_prompt: bool
    watermark: float
    schedule_conservativeness: float
    order: OrderName
    priorities: PriorityRule
    low_priority_values_first: bool
    missing_priority: str
    priority_preemption: bool
    priority_preemption_threshold: int
    in_batch_check_threshold: int
    in_batch_share_threshold: int
    sort_limit: int
    order_seed: int
    backend: BackendName
    isa: str
    threads: int
    processes: str
    num_postprocess_workers: int
    context_form: ContextForm
    write_and_attend: bool
    grammar_backend: GrammarBackendName


@dataclasses.dataclass(frozen=True)
class View:
    """All that values may depend on. `device` is where the model runs, `machine` its host; on a CPU
    the two are one."""

    user: EngineSettings
    model: ModelFacts
    machine: Hardware
    device: Device
    settled: Settled = dataclasses.field(default_factory=Settled)


_NODES = (msgspec.Struct, Settled)


class _Watched:
    """Stands for one object and notes the path of every plain value that is read from it.

    Methods and properties run on the recorder itself, so what they read is noted too.
    """

    __slots__ = ("_of", "_path", "_seen")

    def __init__(self, of: object, path: str, seen: dict[str, None]) -> None:
        self._of = of
        self._path = path
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        member = inspect.getattr_static(type(self._of), name, None)
        if isinstance(member, property):
            assert member.fget is not None
            return member.fget(self)
        if isinstance(member, types.FunctionType):
            return types.MethodType(member, self)
        value = getattr(self._of, name)
        path = f"{self._path}{name}"
        if isinstance(value, _NODES):
            return _Watched(value, f"{path}.", self._seen)
        self._seen[path] = None
        return value


def watch(view: View) -> tuple[View, dict[str, None]]:
    """The view as a rule gets it, and where the paths of what it reads are noted, in order."""
    seen: dict[str, None] = {}
    return cast("View", _Watched(view, "", seen)), seen


def this_device(machine: Hardware) -> Device:
    """The machine itself as the device that the model runs on."""
    return Device(machine.cpu, "cpu", machine.memory_bytes)
