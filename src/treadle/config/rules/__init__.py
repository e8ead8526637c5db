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
from treadle.config.view import Choice, View


class Rule(NamedTuple):
    name: str
    section: str
    decide: Callable[[View], Choice]


RULES = (
    Rule("max_model_len", "model", window.max_model_len),
    Rule("backend", "runtime", runtime.backend),
    Rule("isa", "runtime", runtime.isa),
    Rule("threads", "runtime", runtime.threads),
    Rule("processes", "runtime", processes.processes),
    Rule("num_postprocess_workers", "runtime", processes.num_postprocess_workers),
    Rule("context_form", "runtime", runtime.context_form),
    Rule("write_and_attend", "runtime", runtime.write_and_attend),
    Rule("grammar_backend", "runtime", runtime.grammar_backend),
    Rule("prefix_cache", "cache", cache.prefix_cache),
    Rule("eviction_policy", "cache", cache.eviction_policy),
    Rule("partial_reuse", "cache", cache.partial_reuse),
    Rule("copy_on_partial_reuse", "cache", cache.copy_on_partial_reuse),
    Rule("block_size", "cache", cache.block_size),
    Rule("publication", "cache", cache.publication),
    Rule("prefix_wait_tokens", "cache", cache.prefix_wait_tokens),
    Rule("kv_dtype", "cache", cache.kv_dtype),
    Rule("kv_memory_rule", "cache", kv_memory.kv_memory_rule),
    Rule("kv_memory_fraction", "cache", kv_memory.kv_memory_fraction),
    Rule("max_num_seqs", "schedule", schedule.max_num_seqs),
    Rule("max_num_batched_tokens", "schedule", schedule.max_num_batched_tokens),
    Rule("overlap_depth", "schedule", schedule.overlap_depth),
    Rule("length_rule", "schedule", schedule.length_rule),
    Rule("allow_auto_truncate", "schedule", schedule.allow_auto_truncate),
    Rule("order", "order", order.order),
    Rule("priorities", "order", order.priorities),
    Rule("low_priority_values_first", "order", order.low_priority_values_first),
    Rule("missing_priority", "order", order.missing_priority),
    Rule("priority_preemption", "order", order.priority_preemption),
    Rule("priority_preemption_threshold", "order", order.priority_preemption_threshold),
    Rule("in_batch_check_threshold", "order", order.in_batch_check_threshold),
    Rule("in_batch_share_threshold", "order", order.in_batch_share_threshold),
    Rule("sort_limit", "order", order.sort_limit),
    Rule("order_seed", "order", order.order_seed),
    Rule("composition", "policy", policy.composition),
    Rule("admission", "policy", policy.admission),
    Rule("shortage", "policy", policy.shortage),
    Rule("chunked_prefill", "policy", policy.chunked_prefill),
    Rule("long_prefill_token_threshold", "policy", policy.long_prefill_token_threshold),
    Rule("max_prefill_tokens", "policy", policy.max_prefill_tokens),
    Rule("mixed_chunk", "policy", policy.mixed_chunk),
    Rule("chunk_policy", "policy", policy.chunk_policy),
    Rule("chunk_unit_tokens", "policy", policy.chunk_unit_tokens),
    Rule("reserve_full_prompt", "policy", policy.reserve_full_prompt),
    Rule("watermark", "policy", policy.watermark),
    Rule("schedule_conservativeness", "policy", policy.schedule_conservativeness),
    Rule("kv_budget_bytes", "cache", kv_memory.kv_budget_bytes),
    Rule("num_blocks", "cache", kv_memory.num_blocks),
    Rule("num_soft_blocks", "cache", kv_memory.num_soft_blocks),
)
