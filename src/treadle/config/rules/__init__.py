"""The rules, one per value, in the order in which they can be decided: each may read the values
before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from treadle.config.rules import (
    cache,
    kv_memory,
    order,
    policy,
    processes,
    runtime,
    schedule,
    window,
)
from treadle.config.rules.asked import chosen
from treadle.config.view import Choice, View


class Rule(NamedTuple):
    name: str
    section: str
    decide: Callable[[View], Choice]


def as_asked(name: str, section: str) -> Rule:
    """What was asked for, else what the preset would have: many values depend on nothing more."""

    def decide(see: View) -> Choice:
        return chosen(see, name, getattr(getattr(see.user, section), name))

    return Rule(name, section, decide)


RULES = (
    Rule("max_model_len", "model", window.max_model_len),
    Rule("backend", "runtime", runtime.backend),
    Rule("isa", "runtime", runtime.isa),
    Rule("threads", "runtime", runtime.threads),
    Rule("processes", "runtime", processes.processes),
    Rule("num_postprocess_workers", "runtime", processes.num_postprocess_workers),
    Rule("context_form", "runtime", runtime.context_form),
    as_asked("write_and_attend", "runtime"),
    Rule("grammar_backend", "runtime", runtime.grammar_backend),
    as_asked("prefix_cache", "cache"),
    Rule("eviction_policy", "cache", cache.eviction_policy),
    Rule("partial_reuse", "cache", cache.partial_reuse),
    Rule("copy_on_partial_reuse", "cache", cache.copy_on_partial_reuse),
    as_asked("block_size", "cache"),
    Rule("publication", "cache", cache.publication),
    Rule("prefix_wait_tokens", "cache", cache.prefix_wait_tokens),
    as_asked("kv_dtype", "cache"),
    Rule("kv_memory_rule", "cache", kv_memory.kv_memory_rule),
    Rule("kv_memory_fraction", "cache", kv_memory.kv_memory_fraction),
    Rule("max_num_seqs", "schedule", schedule.max_num_seqs),
    Rule("max_num_batched_tokens", "schedule", schedule.max_num_batched_tokens),
    as_asked("overlap_depth", "schedule"),
    Rule("length_rule", "schedule", schedule.length_rule),
    Rule("allow_auto_truncate", "schedule", schedule.allow_auto_truncate),
    Rule("order", "order", order.order),
    Rule("priorities", "order", order.priorities),
    as_asked("low_priority_values_first", "order"),
    Rule("missing_priority", "order", order.missing_priority),
    as_asked("priority_preemption", "order"),
    as_asked("priority_preemption_threshold", "order"),
    as_asked("in_batch_check_threshold", "order"),
    as_asked("in_batch_share_threshold", "order"),
    as_asked("sort_limit", "order"),
    Rule("order_seed", "order", order.order_seed),
    Rule("composition", "policy", policy.composition),
    Rule("admission", "policy", policy.admission),
    Rule("shortage", "policy", policy.shortage),
    as_asked("chunked_prefill", "policy"),
    as_asked("long_prefill_token_threshold", "policy"),
    as_asked("max_prefill_tokens", "policy"),
    as_asked("mixed_chunk", "policy"),
    as_asked("chunk_policy", "policy"),
    Rule("chunk_unit_tokens", "policy", policy.chunk_unit_tokens),
    as_asked("reserve_full_prompt", "policy"),
    as_asked("watermark", "policy"),
    as_asked("schedule_conservativeness", "policy"),
    Rule("kv_budget_bytes", "cache", kv_memory.kv_budget_bytes),
    Rule("num_blocks", "cache", kv_memory.num_blocks),
    Rule("num_soft_blocks", "cache", kv_memory.num_soft_blocks),
)
