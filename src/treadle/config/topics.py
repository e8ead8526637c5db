"""Where the presets differ, topic by topic: each engine's knob for the same thing, and ours.

A topic without a knob in some engine has what that engine always does, in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from treadle.config import conduct
from treadle.config.axes import AXES
from treadle.config.settings import ServerSettings
from treadle.config.view import Settled

Cause = Literal["different default", "different rule", "different structure"]
CAUSES: tuple[Cause, ...] = ("different default", "different rule", "different structure")

_SERVER = ServerSettings()


class Fixed(NamedTuple):
    """What an engine always does, where no knob of its says it."""

    value: Any


class IsOn(NamedTuple):
    """Whether the setting that the knob chooses is on, whatever the knob calls it."""

    knob: str


class Follows(NamedTuple):
    """What treadle does, as the settings in force have it."""

    tell: Callable[[Settled], Any]


Side = str | Fixed | IsOn | Follows | None
"""A knob, as group.name; None where nothing can be said."""


class Topic(NamedTuple):
    """An axis where a topic is one, else a side for each preset."""

    key: str
    title: str
    axis: str = ""
    treadle: Side = None
    vllm: Side = None
    sglang: Side = None
    trtllm: Side = None
    cause: Cause | None = None
    """Where it does not follow from the knobs."""


_DEFAULT: Cause = "different default"
_RULE: Cause = "different rule"
_STRUCTURE: Cause = "different structure"
_ONE, _NONE, _OFF, _ON = Fixed(1), Fixed(None), Fixed(False), Fixed(True)
_FILE = Fixed("as the checkpoint has them")


def _choices(axis: str) -> Fixed:
    return Fixed(AXES[axis].here)


# fmt: off
_MEMORY = (
    Topic("kv_memory_rule", "KV memory rule", "kv_memory"),
    Topic("kv_memory_fraction", "KV memory fraction", "", "cache.kv_memory_fraction",
          "kv_budget.gpu_memory_utilization", "kv_budget.mem_fraction_static",
          "kv_budget.free_gpu_memory_fraction"),
    Topic("kv_memory_fraction_fallback", "where memory is unread", "", _NONE, _NONE, Fixed(0.88),
          _NONE, _RULE),
    Topic("block_size_tokens", "tokens per block", "", "cache.block_size", "kv_budget.block_size",
          "kv_budget.page_size", "kv_budget.tokens_per_block"),
    Topic("kv_dtype", "KV type", "", "cache.kv_dtype", "kv_budget.cache_dtype",
          "kv_budget.kv_cache_dtype", "kv_budget.dtype"),
    Topic("kv_offload", "KV in other memory", "", _NONE, "offload.kv_offloading_size", _NONE,
          "offload.host_cache_size", _DEFAULT),
)

_STEPS = (
    Topic("step_composition", "composition of a step", "composition"),
    Topic("step_priority", "first in a step", "", Follows(conduct.first_in_step),
          Fixed("running requests"), Fixed("prompts"), Fixed("requests in progress"), _STRUCTURE),
    Topic("max_batched_tokens", "tokens of a step", "", "schedule.max_num_batched_tokens",
          "scheduler.max_num_batched_tokens", "scheduler.max_prefill_tokens",
          "scheduler.max_num_tokens"),
    Topic("max_sequences", "requests at once", "", "schedule.max_num_seqs",
          "scheduler.max_num_seqs", "kv_budget.max_running_requests", "scheduler.max_batch_size"),
    Topic("chunked_prefill", "chunked prefill", "", "policy.chunked_prefill",
          "scheduler.enable_chunked_prefill", _ON, "scheduler.enable_chunked_prefill"),
    Topic("chunk_size_tokens", "tokens of a chunk", "", Follows(conduct.chunk_size),
          Fixed("what a step has left"), "scheduler.chunked_prefill_size", Fixed("no chunks"),
          _RULE),
    Topic("chunked_requests_at_once", "prompts in chunks at once", "",
          Follows(conduct.chunked_at_once), Fixed("any"), _ONE, Fixed("any"), _STRUCTURE),
    Topic("overlap", "steps planned ahead", "overlap"),
    Topic("stream_interval", "tokens between two events", "", _ONE, "scheduler.stream_interval",
          "scheduler.stream_interval", "scheduler.stream_interval"),
)

_QUEUE = (
    Topic("waiting_policy", "waiting order", "order"),
    Topic("waiting_policies_available", "waiting orders to choose", "", _choices("order"),
          Fixed(("fcfs", "priority")),
          Fixed(("fcfs", "lpm", "dfs-weight", "hrrn", "lof", "random", "routing-key")),
          Fixed(("fcfs",)), _STRUCTURE),
    Topic("admission_rule", "admission", "admission"),
    Topic("capacity_policies_available", "admissions to choose", "", _choices("admission"),
          Fixed(("stepwise",)), Fixed(("estimate",)),
          Fixed(("no-evict", "max-utilization", "static")), _STRUCTURE),
    Topic("out_of_memory_action", "when KV runs out", "shortage"),
    Topic("victim_order", "who gives way", "", Follows(conduct.victims), Fixed("who began last"),
          Fixed("fewest generated, then longest input"), Fixed("nobody"), _STRUCTURE),
    Topic("victim_reinserted_at", "and waits", "", Follows(conduct.victims_wait), Fixed("in front"),
          Fixed("at the end"), Fixed("where it was in order"), _STRUCTURE),
    Topic("queue_limit", "most requests waiting", "", Fixed(_SERVER.max_queued_requests),
          "scheduler.max_num_queued", "admission.max_queued_requests", _NONE, _DEFAULT),
    Topic("priority_scheduling", "priorities", "", Follows(conduct.priorities_count), _OFF,
          "priority.enable_priority_scheduling", Fixed("not available"), _STRUCTURE),
    Topic("priority_smaller_is_better", "smaller goes first", "",
          "order.low_priority_values_first", _ON, _OFF, _NONE, _STRUCTURE),
    Topic("priority_preemption_threshold", "priority above another's", "",
          Follows(conduct.displacement_threshold), _NONE, "priority.preemption_threshold",
          _NONE, _STRUCTURE),
)

_PREFIXES = (
    Topic("prefix_cache", "prefix cache", "", IsOn("cache.prefix_cache"),
          IsOn("prefix_cache.enable_prefix_caching"), IsOn("prefix_cache.disable_radix_cache"),
          IsOn("prefix_cache.enable_block_reuse")),
    Topic("prefix_index", "prefix index", "prefix_index"),
    Topic("publication", "when computed KV is found", "publication"),
    Topic("prefix_granularity_tokens", "a prefix counts by", "",
          Follows(conduct.prefix_granularity), "kv_budget.block_size", "kv_budget.page_size",
          Fixed("32, and part of one by copy")),
    Topic("prefix_dedupe", "equal KV is kept once", "", Follows(conduct.keeps_equal_once), _OFF,
          _ON, _OFF, _STRUCTURE),
    Topic("recompute_at_full_hit", "computed at a full hit", "",
          Follows(conduct.computed_at_full_hit), Fixed("the last block"), Fixed("the last token"),
          Fixed("the last token"), _STRUCTURE),
    Topic("eviction_policy", "eviction", "eviction"),
    Topic("eviction_policies_available", "evictions to choose", "", _choices("eviction"),
          Fixed(("free-queue",)), Fixed(("lru", "lfu", "slru", "priority")),
          Fixed(("priority-lru",)), _STRUCTURE),
)

_EXECUTION = (
    Topic("capture", "capture and replay", "capture"),
    Topic("graph_decode", "graphs of decode", "", Fixed("a program of any shape"),
          Fixed("whole, padded"), Fixed("whole, padded"), Fixed("whole, exact sizes"), _STRUCTURE),
    Topic("graph_prefill", "graphs of prefill", "", Fixed("a program of any shape"),
          Fixed("piecewise"), Fixed("breakable"), Fixed("none"), _STRUCTURE),
    Topic("graph_padding", "padding to a graph", "", _OFF, "graphs.padding", "graphs.padding",
          "graphs.enable_padding", _DEFAULT),
    Topic("attention_backend_default", "attention backend", "", Fixed("its own"),
          "attention.backend", "attention.backend", "attention.attn_backend"),
    Topic("sampler_backend", "sampler", "", Fixed("its own"), "sampler.backend",
          "sampler.sampling_backend", "sampler.sampler_type", _DEFAULT),
    Topic("logprobs_from", "log-probabilities from", "", Fixed("raw_logprobs"),
          "sampler.logprobs_mode", "sampler.logprob_source", "sampler.logprob_source"),
    Topic("weight_quantization", "weights", "", _FILE, _FILE, _FILE, _FILE),
)

_FEATURES = (
    Topic("structured_output_backend", "structured output", "", "runtime.grammar_backend",
          "structured_output.backend", "structured_output.grammar_backend",
          "structured_output.guided_decoding_backend"),
    Topic("structured_output_needs_switch", "and a switch for it", "", _OFF,
          "structured_output.needs_server_switch", _OFF, _ON, _STRUCTURE),
    Topic("speculative_method", "speculation", "", _NONE, "speculative.speculative_config",
          "speculative.speculative_algorithm", "speculative.speculative_config"),
    Topic("lora_enabled", "adapters", "", _OFF, "lora.enable_lora", Fixed("when paths are given"),
          "lora.enable_lora", _DEFAULT),
    Topic("lora_max_per_batch", "adapters at once", "", None, "lora.max_loras",
          "lora.max_loras_per_batch", Fixed("as the cache has pages"), _DEFAULT),
)

_DEVICES = (
    Topic("tp", "tensor parallelism", "", _ONE, "parallel.tensor_parallel_size",
          "parallel.tp_size", "parallel.tensor_parallel_size"),
    Topic("pp", "pipeline parallelism", "", _ONE, "parallel.pipeline_parallel_size",
          "parallel.pp_size", "parallel.pipeline_parallel_size"),
    Topic("ep", "expert parallelism", "", _ONE, _ONE, "parallel.ep_size", _ONE, _DEFAULT),
    Topic("dp", "data parallelism", "", _ONE, "parallel.data_parallel_size", "parallel.dp_size",
          _ONE, _DEFAULT),
    Topic("dp_attention", "data-parallel attention", "", _OFF, "parallel.data_parallel_attention",
          "parallel.enable_dp_attention", "parallel.enable_attention_dp", _DEFAULT),
    Topic("pd_disaggregation", "prefill and decode apart", "", _NONE,
          "disaggregation.kv_connector", _NONE, "disaggregation.cache_transceiver_backend",
          _DEFAULT),
)

_PROCESSES = (
    Topic("processes", "processes", "processes"),
    Topic("processes_single_gpu", "processes for a device", "", Follows(conduct.processes),
          Fixed(2), Fixed(3), Fixed(2), _STRUCTURE),
    Topic("detokenizer_process", "texts are made in", "", Follows(conduct.texts_made_in),
          Fixed("the API's process"), Fixed("a process for it"), Fixed("the server's process"),
          _STRUCTURE),
    Topic("watchdog_seconds", "hang watchdog", "", Fixed(_SERVER.watchdog_timeout),
          "watchdog.engine_hang_watchdog", "watchdog.watchdog_timeout",
          "watchdog.hang_detection_timeout", _DEFAULT),
    Topic("execute_timeout_seconds", "limit on a step's seconds", "", _NONE,
          "watchdog.execute_model_timeout", _NONE, _NONE, _DEFAULT),
)
# fmt: on

TOPICS = (
    *_MEMORY,
    *_STEPS,
    *_QUEUE,
    *_PREFIXES,
    *_EXECUTION,
    *_FEATURES,
    *_DEVICES,
    *_PROCESSES,
)
