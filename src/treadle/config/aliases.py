"""Flags of other engines, and what they are here: a table.

A flag that means the same sets our setting; one whose meaning differs says so; one that asks for
what runs anyway is taken; one whose feature is absent is refused by name. None is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from treadle.config.settings import KVMemoryRule, OrderName
from treadle.errors import StartError

Takes = Literal["value", "nothing", "values"]


class Alias(NamedTuple):
    """A flag by its name without dashes, all words joined by underscores."""

    name: str
    engine: str
    setting: str = ""
    """Ours; empty where the flag asks for what is always so, or for what is absent."""
    fixed: Any = None
    """What a flag without a value sets."""
    values: Mapping[str, Any] | None = None
    """The values it may have → ours; any other is refused. Ours may be None: left open."""
    apart: Mapping[str, Mapping[str, Any]] | None = None
    """Values that are no amount → what they set in its place."""
    rule: KVMemoryRule | None = None
    """The memory rule that a fraction belongs to."""
    against: tuple[str, Any] | None = None
    """A setting's value that contradicts what the flag asks for."""
    note: str = ""
    """What differs, or why it is refused."""
    takes: Takes = "value"

    @property
    def refused(self) -> bool:
        return not self.setting and self.values is None and self.fixed is None


class Meant(NamedTuple):
    """What a flag became."""

    settings: dict[str, Any]
    note: str


_GRAMMARS = {
    "auto": "auto",
    "guidance": "llguidance",
    "llguidance": "llguidance",
    "xgrammar": "xgrammar",
    "outlines": "outlines",
    "lm-format-enforcer": "lm-format-enforcer",
}
_DRAFTS = "speculative decoding is not there yet"
_LORA = "LoRA adapters are not there yet"
_APART = "prefill and decode cannot be on different servers yet"
_TIERS = "K and V cannot be moved to other memory yet"
_TOOLS = "tool calls and reasoning are not parsed yet"
_GRAPHS = "steps run as one recorded program of any shape; no graphs are captured"
_WEIGHTS = "weights are used as the file has them"
_CODE = "a model's files are data here, and none of their code is run"
_TLS = "TLS is for a proxy in front of the server"
_GPU = "there are no kernels for GPUs yet"
_ATTENTION = "each backend has one attention of its own"
_DEVICES = "several devices are not there yet"
_TOKENIZER = "texts and tokens go through the model's own tokenizer"
_SEED = "a seed is a request's: without one its tokens are drawn anew each time"
_LOG = "the log has one level"
_GENERATES = "models generate here; embeddings and scores are not there yet"
_CAPACITY = {
    "GUARANTEED_NO_EVICT": "no-evict",
    "MAX_UTILIZATION": "max-utilization",
    "STATIC_BATCH": "static",
}
_RETRACTIONS = {"length": "retract-by-length", "priority": "retract-by-priority"}
_CHUNKS = {"FIRST_COME_FIRST_SERVED": "in-turn", "EQUAL_PROGRESS": "equal-progress"}
_WHOLE = {"chunked_prefill": False}
_ONE = {"1": None}
_ORDERS: dict[str, Any] = {
    # Left open, for priorities may make another of it.
    "fcfs": None,
    **{name: name for name in get_args(OrderName) if name not in ("fcfs", "priority")},
}
_KV_TYPES = {
    "auto": None,
    "float16": "f16",
    "half": "f16",
    "f16": "f16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "f32",
    "f32": "f32",
}
_FRACTION = "a share of something else in each engine, so the rule comes with it"
_STEP = "here it bounds all tokens of a step, those of running requests too"
_SLOTS = "llama.cpp divides it among its slots; here it is each request's"

V, S, T, L = "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp"

# fmt: off
_SAME = (
    Alias("max_running_requests", S, "max_num_seqs"),
    Alias("max_batch_size", T, "max_num_seqs"),
    Alias("parallel", L, "max_num_seqs"),
    Alias("np", L, "max_num_seqs"),
    Alias("max_num_tokens", T, "max_num_batched_tokens"),
    Alias("chunked_prefill_size", S, "max_num_batched_tokens", note=_STEP,
          apart={"-1": _WHOLE, "0": _WHOLE}),
    Alias("batch_size", L, "max_num_batched_tokens", note=_STEP),
    Alias("b", L, "max_num_batched_tokens", note=_STEP),
    Alias("context_length", S, "max_model_len"),
    Alias("max_seq_len", T, "max_model_len"),
    Alias("ctx_size", L, "max_model_len", note=_SLOTS),
    Alias("c", L, "max_model_len", note=_SLOTS),
    Alias("page_size", S, "block_size"),
    Alias("guided_decoding_backend", f"{V}, {T}", "grammar_backend", values=_GRAMMARS),
    Alias("tokens_per_block", T, "block_size"),
    Alias("kv_cache_dtype", f"{V}, {S}", "kv_dtype", values=_KV_TYPES),
    Alias("cache_type_k", L, "kv_dtype", values=_KV_TYPES, note="of K and V alike"),
    Alias("ctk", L, "kv_dtype", values=_KV_TYPES, note="of K and V alike"),
    Alias("gpu_memory_utilization", V, "kv_memory_fraction", rule="of-total", note=_FRACTION),
    Alias("mem_fraction_static", S, "kv_memory_fraction", rule="reserve", note=_FRACTION),
    Alias("kv_cache_free_gpu_memory_fraction", T, "kv_memory_fraction", rule="after-peak",
          note=_FRACTION),
    Alias("free_gpu_memory_fraction", T, "kv_memory_fraction", rule="after-peak", note=_FRACTION),
    Alias("radix_eviction_policy", S, "eviction_policy"),
    Alias("disable_radix_cache", S, "prefix_cache", fixed="none", takes="nothing"),
    Alias("no_enable_prefix_caching", V, "prefix_cache", fixed="none", takes="nothing"),
    Alias("no_cache_prompt", L, "prefix_cache", fixed="none", takes="nothing"),
    Alias("async_scheduling", V, "overlap_depth", fixed=1, takes="nothing"),
    Alias("no_async_scheduling", V, "overlap_depth", fixed=0, takes="nothing"),
    Alias("disable_overlap_schedule", S, "overlap_depth", fixed=0, takes="nothing"),
    Alias("disable_overlap_scheduler", T, "overlap_depth", fixed=0, takes="nothing"),
    Alias("enable_chunked_prefill", f"{V}, {T}", "chunked_prefill", fixed=True, takes="nothing"),
    Alias("no_enable_chunked_prefill", V, "chunked_prefill", fixed=False, takes="nothing"),
    Alias("retraction_policy", S, "shortage", values=_RETRACTIONS),
    Alias("disable_chunked_prefill", V, "chunked_prefill", fixed=False, takes="nothing"),
    Alias("enable_mixed_chunk", S, "mixed_chunk", fixed=True, takes="nothing"),
    Alias("scheduler_reserve_full_isl", V, "reserve_full_prompt", fixed=True, takes="nothing"),
    Alias("no_scheduler_reserve_full_isl", V, "reserve_full_prompt", fixed=False, takes="nothing"),
    Alias("capacity_scheduler_policy", T, "admission", values=_CAPACITY),
    Alias("context_chunking_policy", T, "chunk_policy", values=_CHUNKS),
    Alias("t", L, "threads"),
    Alias("scheduling_policy", V, "order", values={"fcfs": None, "priority": "priority"}),
    Alias("schedule_policy", S, "order", values=_ORDERS),
    Alias("enable_priority_scheduling", S, "priorities", fixed="count", takes="nothing"),
    Alias("abort_on_priority_when_disabled", S, "priorities", fixed="abort", takes="nothing"),
    Alias("disable_priority_preemption", S, "priority_preemption", fixed=False, takes="nothing"),
    Alias("priority_scheduling_preemption_threshold", S, "priority_preemption_threshold"),
    Alias("schedule_low_priority_values_first", S, "low_priority_values_first", fixed=True,
          takes="nothing"),
    Alias("model_path", S, "model"),
    Alias("m", L, "model"),
    Alias("hf_repo", L, "model"),
    Alias("hf", L, "model"),
    Alias("alias", L, "served_model_name"),
    Alias("enable_log_requests", V, "log_requests", fixed=True, takes="nothing"),
    Alias("disable_log_stats", V, "log_stats_interval", fixed=0, takes="nothing"),
    Alias("sampling_defaults", S, "generation_config", values={"model": "auto", "openai": "none"}),
)

_ALWAYS = (
    Alias("enable_prefix_caching", V, fixed=True, takes="nothing",
          against=("prefix_cache", "none"), note="on unless prefix_cache says none"),
    Alias("enable_prompt_tokens_details", V, fixed=True, takes="nothing", note="always so"),
    Alias("enable_cache_report", S, fixed=True, takes="nothing", note="always so"),
    Alias("enable_metrics", S, fixed=True, takes="nothing", note="always so"),
    Alias("jinja", L, fixed=True, takes="nothing", note="always so"),
    Alias("load_format", f"{V}, {S}", values={"auto": None, "safetensors": None, "gguf": None},
          note="the file says its format"),
    Alias("dtype", f"{V}, {S}", values={"auto": None}, note=_WEIGHTS),
    *(
        Alias(name, engine, values=_ONE, note=_DEVICES)
        for name, engine in (
            ("tensor_parallel_size", V), ("tp", S), ("tp_size", f"{S}, {T}"),
            ("pipeline_parallel_size", V), ("pp", S), ("pp_size", f"{S}, {T}"),
            ("data_parallel_size", V), ("dp", S), ("dp_size", S),
            ("ep", S), ("ep_size", f"{S}, {T}"),
        )
    ),
)

_ABSENT = (
    Alias("max_total_tokens", S, note="kv_cache_memory_bytes says the amount"),
    Alias("num_gpu_blocks_override", V, note="kv_cache_memory_bytes says the amount"),
    Alias("enforce_eager", V, takes="nothing", note=_GRAPHS),
    Alias("disable_cuda_graph", S, takes="nothing", note=_GRAPHS),
    Alias("cuda_graph_max_bs", S, note=_GRAPHS),
    Alias("compilation_config", V, note=_GRAPHS),
    Alias("attention_backend", f"{V}, {S}", note=_ATTENTION),
    Alias("attn_backend", T, note=_ATTENTION),
    Alias("sampling_backend", S, note="there is one sampler"),
    Alias("quantization", f"{V}, {S}", note=_WEIGHTS),
    Alias("trust_remote_code", f"{V}, {S}, {T}", takes="nothing", note=_CODE),
    Alias("structured_outputs_config", V, note="--grammar-backend names the backend"),
    Alias("grammar", L, note="a grammar is a request's"),
    Alias("speculative_config", f"{V}, {T}", note=_DRAFTS),
    Alias("speculative_algorithm", S, note=_DRAFTS),
    Alias("speculative_draft_model_path", S, note=_DRAFTS),
    Alias("model_draft", L, note=_DRAFTS),
    Alias("md", L, note=_DRAFTS),
    Alias("enable_lora", f"{V}, {S}", takes="nothing", note=_LORA),
    Alias("lora_modules", V, takes="values", note=_LORA),
    Alias("lora_paths", S, takes="values", note=_LORA),
    Alias("lora", L, note=_LORA),
    Alias("kv_transfer_config", V, note=_APART),
    Alias("disaggregation_mode", S, values={"null": None}, note=_APART),
    Alias("server_role", T, note=_APART),
    Alias("kv_offloading_size", V, note=_TIERS),
    Alias("cpu_offload_gb", V, note=_TIERS),
    Alias("enable_hierarchical_cache", S, takes="nothing", note=_TIERS),
    Alias("cache_ram", L, note=_TIERS),
    Alias("tool_call_parser", f"{V}, {S}", note=_TOOLS),
    Alias("reasoning_parser", f"{V}, {S}", note=_TOOLS),
    Alias("enable_auto_tool_choice", V, takes="nothing", note=_TOOLS),
    Alias("enable_expert_parallel", V, takes="nothing", note=_DEVICES),
    Alias("enable_dp_attention", S, takes="nothing", note=_DEVICES),
    Alias("enable_sleep_mode", V, takes="nothing",
          note="memory is not given back while the server runs"),
    Alias("ssl_keyfile", f"{V}, {S}", note=_TLS),
    Alias("ssl_certfile", f"{V}, {S}", note=_TLS),
    Alias("n_gpu_layers", L, note=_GPU),
    Alias("ngl", L, note=_GPU),
    Alias("device", f"{V}, {S}", values={"cpu": None}, note=_GPU),
)

_ELSEWHERE = (
    Alias("tokenizer", f"{V}, {T}", note=_TOKENIZER),
    Alias("tokenizer_path", S, note=_TOKENIZER),
    Alias("tokenizer_mode", f"{V}, {S}", values={"auto": None}, note=_TOKENIZER),
    Alias("skip_tokenizer_init", f"{V}, {S}", takes="nothing", note=_TOKENIZER),
    Alias("revision", f"{V}, {S}", note="it is part of the model's id: org/name@revision"),
    Alias("download_dir", f"{V}, {S}", note="TREADLE_CACHE says where fetched models are kept"),
    Alias("extra_llm_api_options", T, note="options say all that it may hold, or --config"),
    Alias("seed", V, note=_SEED),
    Alias("random_seed", S, note=_SEED),
    Alias("log_level", f"{S}, {T}", values={"info": None}, note=_LOG),
    Alias("uvicorn_log_level", V, values={"info": None}, note=_LOG),
    Alias("disable_log_requests", V, fixed=True, takes="nothing",
          note="log_requests alone turns them on"),
    Alias("swap_space", V, values={"0": None}, note=_TIERS),
    Alias("task", V, values={"auto": None, "generate": None}, note=_GENERATES),
    Alias("runner", V, values={"auto": None, "generate": None}, note=_GENERATES),
    Alias("is_embedding", S, takes="nothing", note=_GENERATES),
    Alias("max_logprobs", V, values={"20": None}, note="20 are the most for a token"),
    Alias("stream_interval", f"{V}, {S}, {T}", values=_ONE, note="every token is sent"),
    Alias("max_beam_width", T, values=_ONE, note="beam search is not there yet"),
    Alias("distributed_executor_backend", V, values={"mp": None, "uni": None}, note=_DEVICES),
    Alias("gpus_per_node", T, values=_ONE, note=_DEVICES),
    Alias("max_seq_len_to_capture", V, note=_GRAPHS),
    Alias("cuda_graph_sizes", V, note=_GRAPHS),
    Alias("enable_torch_compile", S, takes="nothing", note=_GRAPHS),
    Alias("flash_attn", L, values={"on": None, "auto": None}, note=_ATTENTION),
    Alias("fa", L, values={"on": None, "auto": None}, note=_ATTENTION),
    Alias("cont_batching", L, fixed=True, takes="nothing", note="always so"),
    Alias("cb", L, fixed=True, takes="nothing", note="always so"),
)
"""Of the server around the engine, and of what is chosen for a run."""
# fmt: on

ALIASES: Mapping[str, Alias] = {
    alias.name: alias for alias in (*_SAME, *_ALWAYS, *_ABSENT, *_ELSEWHERE)
}


def meaning(alias: Alias, words: str, value: Any) -> Meant:
    """What the flag, written as `words`, sets here. Raises StartError for one that is refused."""
    if alias.refused:
        raise StartError(f"{words} ({alias.engine}): {alias.note}")
    if alias.apart is not None and str(value) in alias.apart:
        return Meant(dict(alias.apart[str(value)]), "")
    if alias.values is not None:
        key = str(value)
        if key not in alias.values:
            takes = ", ".join(alias.values)
            why = f"; {alias.note}" if alias.note else ""
            raise StartError(f"{words} ({alias.engine}) is {key}; here it may be {takes}{why}")
        value = alias.values[key]
    if alias.fixed is not None:
        value = alias.fixed
    settings = {alias.setting: value} if alias.setting and value is not None else {}
    if alias.rule is not None:
        settings["kv_memory_rule"] = alias.rule
    return Meant(settings, alias.note)
