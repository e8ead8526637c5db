"""From what the user set to what is in force: `resolve` is pure, one small rule per value.

Each rule returns the value, where it comes from, and one sentence naming what it depends on; what
it has read is recorded. The result is frozen and without None; whatever runs takes its own section.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.config.axes import in_force
from treadle.config.composition import check_composition, check_displacement, check_settings
from treadle.config.device import Device
from treadle.config.facts import ModelFacts
from treadle.config.hardware import Hardware
from treadle.config.rules import RULES
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
    PresetName,
    PriorityRule,
    PublicationName,
    ShortageName,
    Source,
)
from treadle.config.view import Choice, View, this_device, watch


class Reason(msgspec.Struct, frozen=True):
    """Why a value is what it is."""

    source: Source
    sentence: str
    inputs: tuple[str, ...] = ()
    """What the rule read: another value with another of these may be another."""


class ModelValues(msgspec.Struct, frozen=True, kw_only=True):
    max_model_len: int


class CacheValues(msgspec.Struct, frozen=True, kw_only=True):
    prefix_cache: PrefixCacheKind
    eviction_policy: EvictionPolicy
    partial_reuse: bool
    copy_on_partial_reuse: bool
    block_size: int
    publication: PublicationName
    prefix_wait_tokens: int
    kv_dtype: KVType
    kv_memory_rule: KVMemoryRule
    kv_memory_fraction: float
    kv_budget_bytes: int
    """Memory that K and V may take."""
    num_blocks: tuple[int, ...]
    """Per KV group."""
    num_soft_blocks: tuple[int, ...]
    """Once so many of them were taken, cached ones make room before others are."""


class ScheduleValues(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: int
    max_num_batched_tokens: int
    overlap_depth: int
    length_rule: LengthRule
    allow_auto_truncate: bool


class PolicyValues(msgspec.Struct, frozen=True, kw_only=True):
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


class OrderValues(msgspec.Struct, frozen=True, kw_only=True):
    order: OrderName
    priorities: PriorityRule
    low_priority_values_first: bool
    missing_priority: Literal["zero", "worst"]
    priority_preemption: bool
    priority_preemption_threshold: int
    in_batch_check_threshold: int
    in_batch_share_threshold: int
    sort_limit: int
    order_seed: int


class RuntimeValues(msgspec.Struct, frozen=True, kw_only=True):
    backend: BackendName
    isa: str
    """Variant of the native kernels; "none" where others are used."""
    threads: int
    processes: str
    """A Layout, or in-process."""
    num_postprocess_workers: int
    context_form: ContextForm
    write_and_attend: bool
    grammar_backend: GrammarBackendName


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Every value in force, and the reason for each under the value's name."""

    preset: PresetName
    model: ModelValues
    cache: CacheValues
    schedule: ScheduleValues
    policy: PolicyValues
    order: OrderValues
    runtime: RuntimeValues
    reasons: dict[str, Reason]

    def flat(self) -> dict[str, Any]:
        """The values by name, without sections, and their reasons; plain enough for JSON."""
        sections = (self.model, self.cache, self.schedule, self.policy, self.order, self.runtime)
        values: dict[str, Any] = {"preset": self.preset}
        for section in sections:
            values |= msgspec.to_builtins(section)
        return {**values, "reasons": msgspec.to_builtins(self.reasons)}


def resolve(
    user: EngineSettings, model: ModelFacts, machine: Hardware, device: Device | None = None
) -> Resolved:
    """Of a model on this machine, or on a described device. Raises StartError when a setting cannot
    hold on the model or the device, or two do not compose."""
    return resolve_view(user, model, machine, device)[0]


def resolve_view(
    user: EngineSettings, model: ModelFacts, machine: Hardware, device: Device | None = None
) -> tuple[Resolved, View]:
    """Also the view that the last rule saw, with all that is settled: for who asks presets."""
    check_settings(user)
    view = View(user, model, machine, device or this_device(machine))
    values: dict[str, dict[str, Any]] = {}
    reasons: dict[str, Reason] = {}
    for rule in RULES:
        seen_view, seen = watch(view)
        choice: Choice = rule.decide(seen_view)
        setattr(view.settled, rule.name, choice.value)
        values.setdefault(rule.section, {})[rule.name] = choice.value
        reasons[rule.name] = Reason(choice.source, choice.sentence, tuple(seen))
    settled = view.settled
    choices = in_force(vars(settled))
    check_composition(choices)
    check_displacement(user, choices)
    resolved = msgspec.convert({"preset": user.preset, **values, "reasons": reasons}, Resolved)
    return resolved, view
