"""Where the presets differ, topic by topic: each engine's knob for the same thing, and ours."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """Knobs by preset, as group.name; an axis where a topic is one; empty where there is none."""

    title: str
    treadle: str = ""
    vllm: str = ""
    sglang: str = ""
    trtllm: str = ""
    axis: str = ""


TOPICS = (
    Topic("composition of a step", axis="composition"),
    Topic("admission", axis="admission"),
    Topic("when KV runs out", axis="shortage"),
    Topic("waiting order", axis="order"),
    Topic("prefix index", axis="prefix_index"),
    Topic("when computed KV is found", axis="publication"),
    Topic("eviction", axis="eviction"),
    Topic("capture and replay", axis="capture"),
    Topic("processes", axis="processes"),
    Topic("KV memory rule", axis="kv_memory"),
    Topic("KV memory fraction", "cache.kv_memory_fraction", "kv_budget.gpu_memory_utilization",
          "kv_budget.mem_fraction_static", "kv_budget.free_gpu_memory_fraction"),
    Topic("tokens per block", "cache.block_size", "kv_budget.block_size", "kv_budget.page_size",
          "kv_budget.tokens_per_block"),
    Topic("KV type", "cache.kv_dtype", "kv_budget.cache_dtype", "kv_budget.kv_cache_dtype",
          "kv_budget.dtype"),
    Topic("tokens of a step", "schedule.max_num_batched_tokens", "scheduler.max_num_batched_tokens",
          "scheduler.chunked_prefill_size", "scheduler.max_num_tokens"),
    Topic("requests at once", "schedule.max_num_seqs", "scheduler.max_num_seqs",
          "kv_budget.max_running_requests", "scheduler.max_batch_size"),
    Topic("steps planned ahead", axis="overlap"),
    Topic("attention backend", "", "attention.backend", "attention.backend",
          "attention.attn_backend"),
    Topic("sampler", "", "sampler.backend", "sampler.sampling_backend", "sampler.sampler_type"),
    Topic("log-probabilities from", "", "sampler.logprobs_mode", "sampler.logprob_source",
          "sampler.logprob_source"),
    Topic("structured output", "", "structured_output.backend", "structured_output.grammar_backend",
          "structured_output.guided_decoding_backend"),
    Topic("speculation", "", "speculative.speculative_config", "speculative.speculative_algorithm",
          "speculative.speculative_config"),
    Topic("adapters at once", "", "lora.max_loras", "lora.max_loras_per_batch", ""),
    Topic("hang watchdog", "", "watchdog.engine_hang_watchdog", "watchdog.watchdog_timeout",
          "watchdog.hang_detection_timeout"),
)  # fmt: skip
