"""vLLM v0.29.0: its defaults as a table, under its own names."""

from __future__ import annotations

from treadle.config.presets import vllm_rules as rules
from treadle.config.presets.knob import Knob, Preset, absent, axis, cuda, same, sets
from treadle.config.presets.memory import tensor_parallel
from treadle.config.processes import BY_PRESET

_RULE = "ceil(total*utilization) - measured_non_kv - graph_estimate"

_PREEMPTION = "recompute; fcfs: last running, priority: max (priority, arrival)"
_CAPACITY = "incremental allocation with preemption"

_NO_GRAPHS = cuda("CUDA graphs")
_NO_KERNELS = cuda("CUDA kernels")
_NO_DRAFTS = absent("speculative decoding")
_NO_LORA = absent("LoRA")
_ONE_DEVICE = absent("several devices")
_TOGETHER = absent("prefill and decode apart")
_ONE_TIER = absent("KV tiers")
_NO_EVENTS = absent("KV events")

# fmt: off
_KV_BUDGET = (
    Knob("gpu_memory_utilization", 0.92, "fraction of total GPU memory", "config_class",
         "always unless kv_cache_memory_bytes is set", sets("kv_memory_fraction")),
    Knob("kv_budget_rule", _RULE, "bytes", "hardware",
         "profile run at start-up; start fails when free memory < requested",
         sets("kv_memory_rule", {_RULE: "of-total"})),
    Knob("graph_memory_estimate", True, "bool", "environment",
         "CUDA-like platform and graph mode not NONE; "
         "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 disables", _NO_GRAPHS),
    Knob("kv_cache_memory_bytes", None, "bytes", "argument", "when set replaces the measured rule",
         same("kv_cache_memory_bytes, left open too")),
    Knob("num_gpu_blocks_override", None, "blocks", "argument",
         "when set replaces the computed block count",
         absent("kv_cache_memory_bytes says the amount")),
    Knob("num_blocks_rule", "floor(floor(available / page_bytes) / num_layers)", "blocks",
         "data_structure", "one KV group",
         absent("one division, by the bytes of a block in all layers")),
    Knob("null_block", 0, "block id", "data_structure",
         "first popped block, never freed, excluded from usage", absent("padding needs no block")),
    Knob("block_size", 16, "tokens", "config_class",
         "default when neither user nor attention backend asks for another size; hybrid "
         "models may align it upward", sets("block_size"), rules.block_size),
    Knob("cache_dtype", "auto", "enum", "argument",
         "auto: KV format named by the checkpoint quantisation config, else the model dtype",
         sets("kv_dtype"), rules.cache_dtype),
    Knob("watermark", 0.0, "fraction of blocks", "config_class",
         "applied to waiting/preempted requests only when something is already scheduled",
         sets("watermark")),
)

_SCHEDULER = (
    Knob("policy", "fcfs", "enum fcfs|priority", "config_class", "always", sets("order")),
    Knob("max_num_batched_tokens",
         {"offline_LLM_ge_70GiB_not_A100": 16384, "api_server_ge_70GiB_not_A100": 8192,
          "offline_LLM_other": 8192, "api_server_other": 2048, "no_usage_context": 2048}, "tokens",
         "hardware+entry point",
         "argument unset; raised to max_model_len when chunked prefill is off; capped at "
         "max_num_seqs*max_model_len; doubled by performance mode throughput",
         sets("max_num_batched_tokens"), rules.max_num_batched_tokens),
    Knob("max_num_seqs", {"ge_70GiB_not_A100": 1024, "other": 256, "no_usage_context": 128},
         "requests", "hardware+entry point", "argument unset; min with max_num_batched_tokens",
         sets("max_num_seqs"), rules.max_num_seqs),
    Knob("long_prefill_token_threshold", 0, "tokens (0 = off)", "config_class", "always",
         sets("long_prefill_token_threshold")),
    Knob("enable_chunked_prefill", "model_default", "bool", "model",
         "argument unset: true for generative models except encoder-decoder; pooling models "
         "depend on the pooling type",
         sets("chunked_prefill"), rules.chunked_prefill),
    Knob("mixed_prefill_decode", True, "bool", "data_structure", "one token budget for both phases",
         sets("composition", {True: "unified"})),
    Knob("scheduler_reserve_full_isl", True, "bool", "config_class",
         "a waiting request is admitted only if its whole sequence fits free blocks",
         sets("reserve_full_prompt")),
    Knob("prefill_schedule_interval", 1, "steps", "config_class", "always",
         same("prefill in every step")),
    Knob("stream_interval", 1, "tokens", "config_class", "always", same("every token is sent")),
    Knob("max_num_queued", None, "requests", "data_structure",
         "no queue limit exists in the engine", absent("max_queued_requests ends the queue")),
    Knob("preemption", _PREEMPTION, "rule",
         "data_structure", "allocation failure of a running request",
         sets("shortage", {_PREEMPTION: "preempt-newest"})),
    Knob("capacity_policy", _CAPACITY, "rule", "data_structure",
         "always", sets("admission", {_CAPACITY: "stepwise"})),
)

_PREFIX_CACHE = (
    Knob("enable_prefix_caching", "model_default", "bool", "model",
         "argument unset: true for decoder generative (also hybrid) models; false for "
         "attention-free, encoder-decoder, encoder-only and mean/CLS/step pooling",
         sets("prefix_cache", {True: "hashed", False: "none"}), rules.enable_prefix_caching),
    Knob("hash_algo", "sha256", "enum sha256|sha256_cbor|xxhash|xxhash_cbor", "config_class",
         "always", absent("BLAKE2b")),
    Knob("eviction", "LRU free queue (head first), request blocks released tail first", "rule",
         "data_structure", "always", axis("eviction")),
    Knob("structure", "hash table parent_hash+block tokens+extra keys", "rule", "data_structure",
         "always", axis("prefix_index")),
)

_GRAPHS = (
    Knob("mode", "FULL_AND_PIECEWISE", "enum", "config_class",
         "optimisation level O2; pooling PIECEWISE; encoder-decoder FULL_DECODE_ONLY; "
         "enforce_eager NONE", axis("capture")),
    Knob("max_capture_size", "min(2*max_num_seqs*(1+num_spec), 512, max_num_batched_tokens)",
         "tokens", "config_class", "argument unset", _NO_GRAPHS),
    Knob("capture_sizes",
         "1,2,4, 8..<256 step 8, 256..max step 16 (+ max_num_batched_tokens if not larger "
         "than max)", "tokens", "config_class", "argument unset", _NO_GRAPHS),
    Knob("padding", True, "bool", "data_structure",
         "next captured size; above the maximum no graph", _NO_GRAPHS),
)

_ATTENTION = (
    Knob("backend",
         {"non_mla_sm100": ["FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION"],
          "non_mla_other": ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"],
          "mla_sm100": ["FLASHINFER_MLA", "TOKENSPEED", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA",
                        "TRITON_MLA"],
          "mla_other": ["FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA"]},
         "priority list", "hardware+model", "first valid entry is taken", _NO_KERNELS,
         rules.attention_backend),
)

_SAMPLER = (
    Knob("backend", "flashinfer top-k/top-p, else native", "enum", "environment+hardware",
         "VLLM_USE_FLASHINFER_SAMPLER (on), supported capability, logprobs mode not "
         "processed_*; native per batch when no k/p or per-request seeds", _NO_KERNELS),
    Knob("logprobs_mode", "raw_logprobs",
         "enum raw_logprobs|raw_logits|processed_logprobs|processed_logits", "config_class",
         "always", same("the model's own log-probabilities")),
    Knob("max_logprobs", 20, "entries per token", "config_class", "-1 = no limit",
         same("20 per token")),
    Knob("greedy_epsilon", 1e-05, "temperature", "data_structure", "temperature below is greedy",
         same("the same threshold")),
)

_OVERLAP = (
    Knob("async_scheduling", True, "bool", "config_class",
         "None resolves to true unless pooling, unsupported speculative method/executor or "
         "disabled padded drafter", sets("overlap_depth", {True: 1, False: 0})),
    Knob("max_concurrent_batches", 2, "batches", "config_class",
         "async and pp=1; pp_size (+1 on the V2 runner) with pipeline",
         same("one in flight, one planned, at depth 1")),
)

_STRUCTURED_OUTPUT = (
    Knob("backend", "auto", "enum auto|xgrammar|guidance|outlines|lm-format-enforcer",
         "config_class", "auto tries xgrammar, then guidance, outlines for some tokenizers/schemas",
         absent("auto is llguidance for every request; xgrammar needs PyTorch")),
    Knob("needs_server_switch", False, "bool", "data_structure", "per request",
         same("requests just have constraints")),
)

_SPECULATIVE = (
    Knob("speculative_config", None, "config", "argument or checkpoint",
         "a checkpoint with a speculators_config section supplies target model and method",
         _NO_DRAFTS, rules.speculative_config),
    Knob("ngram_lookup_min_max", [5, 5], "tokens", "config_class",
         "neither given; if one is given the other equals it", _NO_DRAFTS),
    Knob("suffix_max_tree_depth", 24, "tokens", "config_class", "method suffix", _NO_DRAFTS),
    Knob("suffix_max_cached_requests", 10000, "requests", "config_class", "method suffix",
         _NO_DRAFTS),
    Knob("suffix_max_spec_factor", 1.0, "ratio", "config_class", "method suffix", _NO_DRAFTS),
    Knob("suffix_min_token_prob", 0.1, "probability", "config_class", "method suffix", _NO_DRAFTS),
    Knob("rejection_sample_method", "standard", "enum", "config_class", "always", _NO_DRAFTS),
    Knob("draft_sample_method", "greedy", "enum", "config_class", "always", _NO_DRAFTS),
    Knob("max_spec_len", 128, "tokens", "data_structure", "always", _NO_DRAFTS),
)

_LORA = (
    Knob("enable_lora", False, "bool", "argument", "always", _NO_LORA),
    Knob("max_loras", 1, "adapters per batch", "config_class", "LoRA on", _NO_LORA),
    Knob("max_lora_rank", 16, "rank", "config_class", "LoRA on", _NO_LORA),
    Knob("max_cpu_loras", None, "adapters", "config_class", "None = max_loras", _NO_LORA),
)

_QUANTIZATION = (
    Knob("quantization", None, "method", "model", "unset: read from the checkpoint",
         same("as the file has them")),
)

_PARALLEL = (
    Knob("tensor_parallel_size", 1, "GPUs", "config_class", "always", _ONE_DEVICE,
         tensor_parallel),
    Knob("pipeline_parallel_size", 1, "stages", "config_class", "always", _ONE_DEVICE),
    Knob("data_parallel_size", 1, "replicas", "config_class", "always", _ONE_DEVICE),
    Knob("enable_expert_parallel", False, "bool", "config_class", "always", _ONE_DEVICE),
    Knob("enable_eplb", False, "bool", "config_class",
         "window 1000, step interval 3000, redundant 0", _ONE_DEVICE),
    Knob("expert_placement_strategy", "linear", "enum", "config_class", "always", _ONE_DEVICE),
    Knob("disable_custom_all_reduce", False, "bool", "config_class", "always", _ONE_DEVICE),
    Knob("data_parallel_attention", "unresolved", "state", None,
         "not established by document 1; a data-parallel size above 1 on a MoE model "
         "replicates attention while experts stay sharded", _ONE_DEVICE),
    Knob("dp_load_balancer",
         "min score: max(client_count*own_inflight, waiting+running) + "
         "6*waiting*max(0,kv_usage-0.5)", "rule", "data_structure",
         "data_parallel_size > 1, internal balancer; stats every 100 ms", _ONE_DEVICE),
)

_DISAGGREGATION = (
    Knob("kv_connector", None, "name", "argument", "off", _TOGETHER),
    Knob("kv_role", None, "enum kv_producer|kv_consumer|kv_both", "argument", "connector set",
         _TOGETHER),
    Knob("kv_buffer_size", 1000000000.0, "bytes", "config_class", "connector set", _TOGETHER),
    Knob("kv_port", 14579, "port", "config_class", "connector set", _TOGETHER),
    Knob("kv_load_failure_policy", "fail", "enum fail|recompute", "config_class", "connector set",
         _TOGETHER),
    Knob("nixl_kv_lease_duration", 30, "s", "config_class",
         "NIXL connector; heartbeat lease//6, extension lease*2//3", _TOGETHER),
    Knob("nixl_decoder_kv_blocks_ttl", 480, "s", "config_class", "NIXL connector", _TOGETHER),
)

_OFFLOAD = (
    Knob("kv_offloading_size", None, "GiB", "argument", "off", _ONE_TIER),
    Knob("kv_offloading_backend", "native", "enum native|lmcache", "config_class", "size set",
         _ONE_TIER),
    Knob("cpu_policy", "lru", "enum lru|arc", "config_class", "native backend", _ONE_TIER),
    Knob("store_threshold", 0, "lookups (0/1 = store at once)", "config_class", "native backend",
         _ONE_TIER),
)

_WATCHDOG = (
    Knob("engine_hang_watchdog", "unresolved", "state", None,
         "launcher polls the engine error state every 5 s; worker replies time out after 300 "
         "s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)",
         absent("the server watches progress: watchdog_timeout")),
    Knob("execute_model_timeout", 300, "s", "environment", "multi-process executor",
         absent("watchdog_timeout")),
    Knob("engine_ready_timeout", 600, "s", "environment", "start-up",
         absent("a start may take its time")),
    Knob("launcher_poll", 5.0, "s", "data_structure", "always",
         absent("the engine's end is seen at once")),
    Knob("keep_alive_on_engine_death", False, "bool", "environment", "always",
         same("the server ends with its engine")),
)

_PROCESSES = (
    Knob("single_gpu",
         ["api_server (tokenise, detokenise)", "engine_core (scheduler + worker in one process)"],
         "processes", "data_structure", "one GPU", axis("processes")),
    Knob("multi_gpu_executor", "mp", "enum", "config_class",
         "world size > 1; ray inside a placement group", _ONE_DEVICE),
    Knob("ipc", "zmq", "enum", "data_structure", "always", same("a pair of local sockets")),
)

_EVENTS = (
    Knob("enable_kv_cache_events", False, "bool", "config_class", "always", _NO_EVENTS),
)

_REQUEST = (
    Knob("default_max_tokens", "16 for SamplingParams; max_model_len - prompt when None", "tokens",
         "data_structure", "always", same("16; what the window leaves in chats")),
)
# fmt: on

PRESET = Preset(
    "vLLM",
    axes={
        "composition": "unified",
        "admission": "stepwise",
        "shortage": "preempt-newest",
        "order": "fcfs",
        "prefix_index": "hashed",
        "publication": "at-plan",
        "eviction": "free-queue",
        "kv_memory": "of-total",
        "capture": "full-and-piecewise",
        "processes": BY_PRESET["vllm"],
        "overlap": "1",
    },
    groups={
        "kv_budget": _KV_BUDGET,
        "scheduler": _SCHEDULER,
        "prefix_cache": _PREFIX_CACHE,
        "graphs": _GRAPHS,
        "attention": _ATTENTION,
        "sampler": _SAMPLER,
        "overlap": _OVERLAP,
        "structured_output": _STRUCTURED_OUTPUT,
        "speculative": _SPECULATIVE,
        "lora": _LORA,
        "quantization": _QUANTIZATION,
        "parallel": _PARALLEL,
        "disaggregation": _DISAGGREGATION,
        "offload": _OFFLOAD,
        "watchdog": _WATCHDOG,
        "processes": _PROCESSES,
        "events": _EVENTS,
        "request": _REQUEST,
    },
)
