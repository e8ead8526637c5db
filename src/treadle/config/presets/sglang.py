"""SGLang v0.5.19: its defaults as a table, under its own names."""

from __future__ import annotations

from treadle.config.presets import sglang_rules as rules
from treadle.config.presets.knob import Knob, Preset, absent, axis, cuda, outside, same, sets
from treadle.config.presets.memory import tensor_parallel
from treadle.config.processes import BY_PRESET

_RULE = "free_after_load - (1 - fraction) * free_before_load"

_CAPACITY = "admission estimate with new_token_ratio, retract on shortage"

_NO_GRAPHS = cuda("CUDA graphs")
_NO_KERNELS = cuda("CUDA kernels")
_NO_DRAFTS = absent("speculative decoding")
_NO_LORA = absent("LoRA")
_ONE_DEVICE = absent("several devices")
_TOGETHER = absent("prefill and decode apart")
_ONE_TIER = absent("KV tiers")
_OUTSIDE = outside("a gateway, outside the engine")
_ESTIMATE = same("the same in its estimate")
_IN_RULE = same("part of the memory rule")

# fmt: off
_KV_BUDGET = (
    Knob("mem_fraction_static", "round((gpu - reserved)/gpu, 3)", "fraction of total GPU memory",
         "hardware", "argument unset; 0.88 when GPU memory cannot be read (0.95 in v0.5.21)",
         sets("kv_memory_fraction"), rules.mem_fraction_static),
    Knob("reserved_memory_rule",
         "512 + 1.5*max(chunk,2048) + tp*pp/8*1024 + graph reserve; floor 10240 if gpu > "
         "61440; + 2048 DeepEP afterwards", "MiB", "hardware", "mem_fraction_static unset",
         _IN_RULE, rules.reserved_mib),
    Knob("graph_reserve_rule",
         "2*decode_max_bs [+ 3*decode_max_bs*dp (+1.5*... if decode_max_bs>300) with DP "
         "attention] + 8*len(prefill sizes) (MLA: 1536)", "MiB", "hardware", "graphs enabled",
         _IN_RULE),
    Knob("kv_budget_rule", _RULE, "bytes", "hardware",
         "start-up error with a suggested fraction when not positive",
         sets("kv_memory_rule", {_RULE: "reserve"})),
    Knob("post_capture_kv_sizing", False, "bool", "environment",
         "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", _NO_GRAPHS),
    Knob("max_total_tokens", None, "tokens", "argument", "upper cap",
         absent("kv_cache_memory_bytes says the amount")),
    Knob("page_size", 1, "tokens", "argument+attention backend",
         "CUDA; FlashMLA forces 64; TRT-LLM MLA 32 or 64", sets("block_size"),
         rules.page_size),
    Knob("kv_cache_dtype", "auto", "enum", "argument",
         "auto: FP8 when the checkpoint names it, else model dtype", sets("kv_dtype"),
         rules.kv_cache_dtype),
    Knob("swa_full_tokens_ratio", 0.8, "ratio", "config_class", "hybrid sliding window",
         absent("groups share by what each can use")),
    Knob("mamba_full_memory_ratio", 0.9, "ratio", "config_class", "Mamba hybrid",
         absent("Mamba layers")),
    Knob("max_running_requests", "min(clamp(int(tokens/context_len*512), 2048, 4096), tokens//2)",
         "requests", "data_structure",
         "argument unset; a given value is divided by dp and capped at tokens//2",
         sets("max_num_seqs"), rules.max_running_requests),
    Knob("req_to_token_dtype", "int32", "dtype", "data_structure",
         "rows = requests + 1 (row 0 padding)", same("int32 tables, of blocks")),
)

_SCHEDULER = (
    Knob("schedule_policy", "fcfs", "enum fcfs|lpm|dfs-weight|hrrn|lof|random|routing-key",
         "argument", "always; cache-aware ones become fcfs when the tree is off", sets("order")),
    Knob("lpm_queue_limit", 128, "requests", "data_structure",
         "lpm (and hrrn) fall back to fcfs above", sets("sort_limit")),
    Knob("in_batch_check_threshold", 32, "tokens", "environment", "lpm/hrrn: tree match not above",
         sets("in_batch_check_threshold")),
    Knob("in_batch_deprioritize_threshold", 32, "tokens", "environment",
         "shared with an earlier waiting request, at least", sets("in_batch_share_threshold")),
    Knob("max_prefill_tokens", 16384, "tokens", "argument", "always",
         sets("max_prefill_tokens")),
    Knob("chunked_prefill_size",
         {"lt_20GiB": 2048, "lt_35GiB": 2048, "lt_60GiB": 4096, "lt_90GiB": 8192,
          "lt_160GiB": 8192, "ge_160GiB": 16384, "unknown": 4096}, "tokens (-1 = off)", "hardware",
         "argument unset; divided by dp with DP attention", sets("max_num_batched_tokens"),
         rules.chunked_prefill_size),
    Knob("enable_mixed_chunk", False, "bool", "argument", "always",
         sets("mixed_chunk")),
    Knob("clip_max_new_tokens", 4096, "tokens", "environment", "admission estimate", _ESTIMATE),
    Knob("schedule_conservativeness", 1.0, "factor", "argument", "always",
         sets("schedule_conservativeness")),
    Knob("init_new_token_ratio", 0.7, "ratio", "environment", "times conservativeness, cap 1",
         _ESTIMATE),
    Knob("min_new_token_ratio_factor", 0.14, "factor of init", "environment", "always",
         _ESTIMATE),
    Knob("new_token_ratio_decay_steps", 600, "decode steps", "environment", "always", _ESTIMATE),
    Knob("retract_decode_steps", 20, "tokens", "environment",
         "re-estimate and post-retract eviction", same("20 in the new ratio")),
    Knob("retraction_policy", "length", "enum length|priority", "argument", "always",
         sets("shortage", {"length": "retract-by-length", "priority": "retract-by-priority"})),
    Knob("prefill_max_requests", None, "requests", "argument", "always", same("no such limit")),
    Knob("num_continuous_decode_steps", 1, "steps", "argument", "always",
         same("each step is planned anew")),
    Knob("prefill_decode_interval", 0, "steps", "argument", "always", same("no interval")),
    Knob("stream_interval", 1, "tokens", "argument", "always", same("every token is sent")),
    Knob("enable_prefill_delayer", False, "bool", "argument", "always",
         same("prefill is not delayed")),
    Knob("capacity_policy", _CAPACITY, "rule",
         "data_structure", "always", sets("admission", {_CAPACITY: "estimate"})),
)

_ADMISSION = (
    Knob("max_queued_requests", None, "requests", "argument",
         "when set: reject (503) or evict a lower-priority waiting request",
         absent("max_queued_requests ends the queue")),
    Knob("waiting_timeout", -1, "s (-1 = off)", "environment", "SGLANG_REQ_WAITING_TIMEOUT",
         same("queue_timeout, left open too")),
    Knob("running_timeout", -1, "s (-1 = off)", "environment", "SGLANG_REQ_RUNNING_TIMEOUT",
         same("running_timeout, left open too")),
)

_PRIORITY = (
    Knob("enable_priority_scheduling", False, "bool", "argument", "always",
         sets("priorities", {False: "ignore", True: "count"})),
    Knob("preemption_threshold", 10, "priority units (difference must exceed)", "argument",
         "priority scheduling on",
         sets("priority_preemption_threshold")),
    Knob("schedule_low_priority_values_first", False, "bool", "argument",
         "priority scheduling on: larger value is more important",
         sets("low_priority_values_first")),
    Knob("abort_on_priority_when_disabled", False, "bool", "argument", "always",
         same("priorities abort asks for it")),
)

_PREFIX_CACHE = (
    Knob("disable_radix_cache", False, "bool", "argument+model hooks",
         "forced true by several models/modes",
         sets("prefix_cache", {False: "radix", True: "none"}), rules.disable_radix_cache),
    Knob("radix_eviction_policy", "lru", "enum lru|lfu|slru|priority", "argument", "always",
         sets("eviction_policy")),
    Knob("slru_protected_threshold", 2, "hits", "data_structure", "slru", same("2 in slru too")),
    Knob("default_tree", "RadixCache (full attention) / UnifiedRadixCache (sliding window, Mamba)",
         "class", "environment",
         "snapshot: SGLANG_ENABLE_UNIFIED_RADIX_TREE off; document 2: the v0.5.20 factory "
         "returns UnifiedRadixCache", absent("a tree for full attention, hashes for windows")),
)

_GRAPHS = (
    Knob("decode_backend", "full", "enum", "argument+hardware", "always", axis("capture")),
    Knob("prefill_backend", "breakable", "enum breakable|tc_piecewise|full|disabled", "hardware",
         "CUDA", _NO_GRAPHS),
    Knob("decode_max_bs",
         {"lt_20GiB": 8, "lt_35GiB_tp_lt_4": 24, "lt_35GiB_tp_ge_4": 80,
          "lt_60GiB_tp_lt_4": 32, "lt_60GiB_tp_ge_4": 160, "lt_160GiB_tp_lt_4": 256,
          "lt_160GiB_tp_ge_4": 512, "ge_160GiB": 512, "unknown": 160}, "requests", "hardware",
         "argument unset", _NO_GRAPHS, rules.decode_max_bs),
    Knob("decode_sizes", "1,2,4,8,12, 16..256 step 8, 272..496 step 16, 512..max step 32, plus max",
         "requests", "config_class", "no speculation", _NO_GRAPHS),
    Knob("decode_sizes_speculative",
         "1..8, 10..32 step 2, 40..64 step 4, 72..256 step 8, 272..max step 16", "requests",
         "config_class", "speculation on", _NO_GRAPHS),
    Knob("prefill_sizes",
         "4..32 step 4, 48..256 step 16, 288..512 step 32, 576..1024 step 64, 1280..4096 step "
         "256, 4608..max step 512", "tokens", "config_class", "max = chunk size (MLA 2048)",
         _NO_GRAPHS),
    Knob("padding", True, "bool", "argument", "smallest captured size not below the batch",
         _NO_GRAPHS),
)

_ATTENTION = (
    Knob("backend",
         {"mha_hopper_cuda_ge_12.3": "fa3", "mha_sm100": "trtllm_mha",
          "mha_other": "flashinfer or triton", "mla_hopper": "fa3",
          "mla_sm100": "flashinfer", "mla_other": "triton"}, "enum", "hardware+model",
         "argument unset", _NO_KERNELS, rules.attention_backend),
)

_SAMPLER = (
    Knob("sampling_backend", "flashinfer", "enum flashinfer|pytorch", "argument",
         "flashinfer if importable, else pytorch", _NO_KERNELS),
    Knob("logprob_source", "temperature-scaled distribution before top-k/top-p", "rule",
         "environment", "SGLANG_RETURN_ORIGINAL_LOGPROB uses the unscaled one",
         absent("before temperature; presets never change what they mean")),
)

_OVERLAP = (
    Knob("disable_overlap_schedule", False, "bool", "argument",
         "normal loop with pipeline parallelism or disaggregation uses own variants",
         sets("overlap_depth", {False: 1, True: 0})),
    Knob("disable_consecutive_prefill_overlap", False, "bool", "environment", "always",
         same("all steps overlap alike")),
)

_STRUCTURED_OUTPUT = (
    Knob("grammar_backend", "xgrammar", "enum xgrammar|outlines|llguidance|none", "argument",
         "unset resolves to xgrammar",
         absent("llguidance, unless asked for by name: xgrammar needs PyTorch")),
    Knob("grammar_poll_interval", 0.005, "s", "environment", "while only grammar requests wait",
         absent("the end of a compilation wakes the engine")),
    Knob("grammar_max_polls", 10000, "polls", "environment", "then abort and mark invalid",
         absent("a compilation may take 10 seconds")),
)

_SPECULATIVE = (
    Knob("speculative_algorithm", None, "enum EAGLE|EAGLE3|NEXTN|STANDALONE|NGRAM|DFLASH|DSPARK",
         "argument", "off", _NO_DRAFTS),
    Knob("auto_params_llama_grok", [5, 4, 8], "steps, topk, draft tokens", "model",
         "EAGLE without explicit numbers", _NO_DRAFTS),
    Knob("auto_params_other", [3, 1, 4], "steps, topk, draft tokens", "model",
         "EAGLE/STANDALONE without explicit numbers", _NO_DRAFTS),
    Knob("accept_threshold_single", 1.0, "probability", "argument", "tree sampling", _NO_DRAFTS),
    Knob("accept_threshold_acc", 1.0, "probability", "argument", "tree sampling", _NO_DRAFTS),
    Knob("ngram_draft_tokens", 12, "tokens", "argument", "NGRAM", _NO_DRAFTS),
    Knob("ngram_bfs_breadth", [1, 10], "min, max", "argument", "NGRAM", _NO_DRAFTS),
    Knob("ngram_trie_depth", 18, "tokens", "argument", "NGRAM", _NO_DRAFTS),
    Knob("ngram_capacity", 10_000_000, "nodes", "argument", "NGRAM", _NO_DRAFTS),
    Knob("ngram_match_type", "BFS", "enum BFS|PROB", "argument", "NGRAM", _NO_DRAFTS),
    Knob("max_running_requests_reset", 48, "requests", "argument",
         "speculation on and max_running_requests unset", _NO_DRAFTS),
)

_LORA = (
    Knob("enable_lora", None, "bool", "argument", "true when lora_paths is given", _NO_LORA),
    Knob("max_loras_per_batch", 8, "adapters", "argument", "LoRA on", _NO_LORA),
    Knob("lora_eviction_policy", "lru", "enum lru|fifo", "argument", "LoRA on", _NO_LORA),
    Knob("lora_backend", "csgmv", "enum", "argument", "LoRA on", _NO_LORA),
)

_QUANTIZATION = (
    Knob("quantization", None, "method", "model", "unset: read from the checkpoint",
         same("as the file has them")),
)

_PARALLEL = (
    Knob("tp_size", 1, "ranks", "argument", "always", _ONE_DEVICE,
         tensor_parallel),
    Knob("pp_size", 1, "ranks", "argument", "always", _ONE_DEVICE),
    Knob("ep_size", 1, "ranks", "argument", "always", _ONE_DEVICE),
    Knob("dp_size", 1, "ranks", "argument", "always", _ONE_DEVICE),
    Knob("enable_dp_attention", False, "bool", "argument", "always", _ONE_DEVICE),
    Knob("load_balance_method", "auto",
         "enum auto|round_robin|follow_bootstrap_room|total_requests|total_tokens", "argument",
         "auto: round_robin (prefill instance: follow_bootstrap_room)", _ONE_DEVICE),
    Knob("disable_custom_all_reduce", False, "bool", "argument", "always", _ONE_DEVICE),
)

_DISAGGREGATION = (
    Knob("disaggregation_mode", "null", "enum null|prefill|decode", "argument", "off", _TOGETHER),
    Knob("transfer_backend", "mooncake", "enum mooncake|nixl|ascend|mori|fake", "argument",
         "mode set", _TOGETHER),
    Knob("bootstrap_port", 8998, "port", "argument", "prefill", _TOGETHER),
    Knob("num_reserved_decode_tokens", 512, "tokens per active request", "argument", "decode",
         _TOGETHER),
    Knob("bootstrap_timeout", 300, "s", "environment", "always", _TOGETHER),
    Knob("waiting_timeout", 300, "s", "environment", "always", _TOGETHER),
    Knob("heartbeat_interval", 5, "s", "environment", "always", _TOGETHER),
    Knob("heartbeat_max_failure", 2, "count", "environment", "always", _TOGETHER),
    Knob("decode_enable_radix_cache", False, "bool", "argument", "decode", _TOGETHER),
)

_OFFLOAD = (
    Knob("enable_hierarchical_cache", False, "bool", "argument", "off", _ONE_TIER),
    Knob("hicache_ratio", 2.0, "host/device", "argument", "size 0; 1.2 with buffer_only mode",
         _ONE_TIER),
    Knob("hicache_size", 0, "GB (0 = use ratio)", "argument", "always", _ONE_TIER),
    Knob("hicache_write_policy", "write_through",
         "enum write_through|write_through_selective|write_back", "argument", "HiCache on",
         _ONE_TIER),
    Knob("write_through_threshold", {"write_through": 1, "write_through_selective": 2}, "hits",
         "data_structure", "HiCache on", _ONE_TIER),
    Knob("load_back_threshold", 10, "tokens", "data_structure", "HiCache on", _ONE_TIER),
    Knob("hicache_storage_backend", None, "enum file|mooncake|hf3fs|nixl|...", "argument",
         "third tier off", _ONE_TIER),
    Knob("prefetch_policy", "timeout", "enum best_effort|wait_complete|timeout", "argument",
         "storage on", _ONE_TIER),
    Knob("prefetch_threshold", 256, "tokens", "data_structure", "storage on", _ONE_TIER),
    Knob("prefetch_timeout", "min(30, 2.0 + 0.1*tokens/1024)", "s", "data_structure",
         "policy timeout", _ONE_TIER),
)

_WATCHDOG = (
    Knob("watchdog_timeout", 300, "s", "argument", "hard: dump stacks, wait 5 s, signal the parent",
         same("watchdog_timeout is 300 s too")),
    Knob("soft_watchdog_timeout", None, "s", "argument", "dump only",
         absent("stacks are written when time is up")),
)

_PROCESSES = (
    Knob("single_gpu", ["main (HTTP + tokenizer manager)", "scheduler (+ model)", "detokenizer"],
         "processes", "data_structure", "always", axis("processes")),
    Knob("ipc", "zmq over local socket files", "enum", "data_structure", "always",
         same("a pair of local sockets")),
    Knob("port", 30000, "port", "argument", "always",
         outside("where a server listens is not a preset's business")),
)

_LIBRARY = ("command line default; the library default for cache_aware is "
            "0.5 / 32 / 1.1 / 30 s / 10000")
_ROUTER = (
    Knob("policy", "cache_aware",
         "enum random|round_robin|power_of_two|cache_aware|prefix_hash|manual|bucket|"
         "consistent_hashing",
         "argument", "gateway process (outside the engine)", _OUTSIDE),
    Knob("cache_threshold", 0.3, "match rate", "argument", _LIBRARY, _OUTSIDE),
    Knob("balance_abs_threshold", 64, "requests", "argument", _LIBRARY, _OUTSIDE),
    Knob("balance_rel_threshold", 1.5, "ratio", "argument", _LIBRARY, _OUTSIDE),
    Knob("eviction_interval", 120, "s", "argument", _LIBRARY, _OUTSIDE),
    Knob("max_tree_size", 67_108_864, "characters per tenant", "argument", _LIBRARY, _OUTSIDE),
    Knob("queue_size", 100, "requests", "argument", "gateway process (outside the engine)",
         _OUTSIDE),
    Knob("queue_timeout", 60, "s", "argument", "gateway process (outside the engine)", _OUTSIDE),
    Knob("max_concurrent_requests", -1, "requests (-1 = no limit)", "argument",
         "gateway process (outside the engine)", _OUTSIDE),
    Knob("retry_max_retries", 5, "tries", "argument", "gateway process (outside the engine)",
         _OUTSIDE),
    Knob("retry_backoff", {"initial_ms": 50, "max_ms": 30000, "multiplier": 1.5, "jitter": 0.2},
         "ms", "argument", "gateway process (outside the engine)", _OUTSIDE),
    Knob("circuit_breaker",
         {"failure_threshold": 10, "success_threshold": 3, "timeout_s": 60, "window_s": 120},
         "mixed", "argument", "gateway process (outside the engine)", _OUTSIDE),
    Knob("health_check",
         {"failure_threshold": 3, "success_threshold": 2, "timeout_s": 5, "interval_s": 60},
         "mixed", "argument", "gateway process (outside the engine)", _OUTSIDE),
)
# fmt: on

PRESET = Preset(
    "SGLang",
    axes={
        "composition": "prefill-first",
        "admission": "estimate",
        "shortage": "retract-by-length",
        "order": "fcfs",
        "prefix_index": "radix",
        "publication": "at-chunk-end",
        "eviction": "lru",
        "kv_memory": "reserve",
        "capture": "full-and-breakable",
        "processes": BY_PRESET["sglang"],
        "overlap": "1",
    },
    groups={
        "kv_budget": _KV_BUDGET,
        "scheduler": _SCHEDULER,
        "admission": _ADMISSION,
        "priority": _PRIORITY,
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
        "router": _ROUTER,
    },
)
