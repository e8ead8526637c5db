"""TensorRT-LLM v1.2.1, PyTorch path: its defaults as a table, under its own names."""

from __future__ import annotations

from treadle.config.presets import trtllm_rules as rules
from treadle.config.presets.knob import Knob, Preset, absent, axis, cuda, outside, same, sets
from treadle.config.presets.memory import tensor_parallel
from treadle.config.processes import BY_PRESET

_RULE = (
    "fraction * (total - peak + temporary_pool_bytes); min with max_tokens and max_gpu_total_bytes"
)

_NO_GRAPHS = cuda("CUDA graphs")
_NO_KERNELS = cuda("CUDA kernels")
_NO_DRAFTS = absent("speculative decoding")
_NO_LORA = absent("LoRA")
_ONE_DEVICE = absent("several devices")
_TOGETHER = absent("prefill and decode apart")
_ONE_TIER = absent("KV tiers")
_AT_ONCE = same("a step waits for nobody")
_NO_EVENTS = absent("KV events")
_IN_RULE = same("part of the memory rule")

# fmt: off
_PATH = (
    Knob("backend", "pytorch", "enum pytorch|tensorrt|_autodeploy", "config_class", "always",
         absent("the native kernels run")),
)

_KV_BUDGET = (
    Knob("free_gpu_memory_fraction", 0.9, "fraction of the memory left after the measured peak",
         "config_class", "always", sets("kv_memory_fraction")),
    Knob("kv_budget_rule", _RULE, "bytes", "hardware", "dummy requests on a temporary pool",
         sets("kv_memory_rule", {_RULE: "after-peak"})),
    Knob("peak_rule", "torch peak + max(total_used - torch_current, 0)", "bytes", "hardware",
         "always", _IN_RULE),
    Knob("tokens_per_block", 32, "tokens", "config_class",
         "FlashMLA 64; VANILLA backend max_num_tokens", sets("block_size"),
         rules.default_tokens_per_block),
    Knob("max_tokens", None, "tokens", "config_class", "cap",
         absent("kv_cache_memory_bytes says the amount")),
    Knob("dtype", "auto", "enum", "config_class", "checkpoint KV quantisation", sets("kv_dtype"),
         rules.kv_dtype),
)

_SCHEDULER = (
    Knob("capacity_scheduler_policy", "GUARANTEED_NO_EVICT",
         "enum GUARANTEED_NO_EVICT|MAX_UTILIZATION|STATIC_BATCH", "config_class", "always",
         sets("admission", {"GUARANTEED_NO_EVICT": "no-evict"})),
    Knob("context_chunking_policy", "FIRST_COME_FIRST_SERVED",
         "enum FIRST_COME_FIRST_SERVED|EQUAL_PROGRESS", "config_class",
         "only with chunked prefill; None otherwise",
         sets("chunk_policy", {"FIRST_COME_FIRST_SERVED": "in-turn"})),
    Knob("enable_chunked_prefill", False, "bool", "argument", "always",
         sets("chunked_prefill")),
    Knob("chunk_unit", "tokens_per_block (at least 256 with sliding window)", "tokens",
         "data_structure", "chunked prefill", same("chunk_unit_tokens follows the same rule")),
    Knob("max_batch_size", 2048, "requests", "argument", "always", sets("max_num_seqs")),
    Knob("max_num_tokens", 8192, "tokens", "argument", "always", sets("max_num_batched_tokens")),
    Knob("max_input_len", 1024, "tokens", "argument",
         "argument default; its enforcement on the PyTorch path was not checked",
         absent("the window bounds prompts")),
    Knob("max_beam_width", 1, "beams", "argument", "always", absent("beam search")),
    Knob("policy", "fcfs", "enum", "data_structure", "waiting queue order", sets("order")),
    Knob("mixed_context_generation", True, "bool", "data_structure",
         "both lists run in one iteration", sets("composition", {True: "two-stage"})),
    Knob("batch_wait_timeout_ms", 0, "ms", "argument", "always", _AT_ONCE),
    Knob("batch_wait_timeout_iters", 0, "iterations", "argument", "always", _AT_ONCE),
    Knob("batch_wait_max_tokens_ratio", 0, "fraction of max_num_tokens", "argument", "always",
         _AT_ONCE),
    Knob("stream_interval", 1, "tokens", "argument", "always", same("every token is sent")),
    Knob("priority_scheduling", "not available on the default path", "state", "data_structure",
         "always", same("priorities are refused")),
)

_PREFIX_CACHE = (
    Knob("enable_block_reuse", True, "bool", "config_class",
         "off: FLASHINFER and FLASHINFER_STAR_ATTENTION backends, FORCE_DETERMINISTIC=1, MLA "
         "on SM other than 90/100/103/120, MLA with KV quantisation other than none/FP8",
         sets("prefix_cache", {True: "block-tree", False: "none"}), rules.enable_block_reuse),
    Knob("enable_partial_reuse", True, "bool", "config_class", "block reuse on",
         sets("partial_reuse")),
    Knob("copy_on_partial_reuse", True, "bool", "config_class", "block reuse on",
         sets("copy_on_partial_reuse")),
    Knob("eviction", "priority levels 0..100, lowest first, LRU inside a level", "rule",
         "data_structure", "always", axis("eviction")),
    Knob("default_retention_priority", 35, "level", "config_class", "always",
         same("all cached blocks have this level")),
    Knob("event_buffer_max_size", 0, "events", "config_class", "events off", _NO_EVENTS),
)

_GRAPHS = (
    Knob("enabled", True, "bool", "config_class", "cuda_graph_config present", axis("capture")),
    Knob("enable_padding", False, "bool", "config_class", "always", _NO_GRAPHS),
    Knob("max_batch_size", 128, "requests", "config_class", "unset", _NO_GRAPHS),
    Knob("sizes_without_padding", "1..31, 32, 64, 128 (+ powers of two from 256 below max) + max",
         "requests", "config_class", "padding off", _NO_GRAPHS),
    Knob("sizes_with_padding", "1,2,4, 8..128 step 8 (+ powers of two from 256) + max", "requests",
         "config_class", "padding on", _NO_GRAPHS),
    Knob("condition", "no context request in the batch", "rule", "data_structure", "always",
         _NO_GRAPHS),
    Knob("warmup_steps", 2, "runs", "data_structure", "before capture", _NO_GRAPHS),
)

_ATTENTION = (
    Knob("attn_backend", "TRTLLM", "enum TRTLLM|FLASHINFER|VANILLA|FLASHINFER_STAR_ATTENTION",
         "argument", "always", _NO_KERNELS),
    Knob("allreduce_strategy", "AUTO", "enum", "argument", "always", _ONE_DEVICE),
)

_SAMPLER = (
    Knob("sampler_type", "auto", "enum auto|TorchSampler|TRTLLMSampler", "argument",
         "auto: TorchSampler, TRTLLMSampler with beams", absent("one sampler for all")),
    Knob("disable_flashinfer_sampling", False, "bool", "argument",
         "flashinfer used when importable", _NO_KERNELS),
    Knob("global_seed", 42, "seed", "data_structure",
         "one generator for all requests and ranks; no per-request seed in the TorchSampler "
         "of the read version", absent("each request has a seed of its own")),
    Knob("logprob_source",
         "log-softmax after bias and minimum-length mask, before temperature and top-k/top-p",
         "rule", "data_structure", "TorchSampler",
         absent("before masks and bias; presets never change what they mean")),
    Knob("supported_controls", ["temperature", "top_k", "top_p", "embedding_bias", "min_length"],
         "list", "data_structure", "TorchSampler of the read version", same("these, and more")),
)

_OVERLAP = (
    Knob("disable_overlap_scheduler", False, "bool", "argument",
         "off for unsupported speculative modes and encoder-only",
         sets("overlap_depth", {False: 1, True: 0})),
)

_STRUCTURED_OUTPUT = (
    Knob("guided_decoding_backend", None, "enum xgrammar|llguidance", "argument", "off until set",
         sets("grammar_backend", {None: "none"})),
)

_SPECULATIVE = (
    Knob("speculative_config", None, "config", "argument", "off", _NO_DRAFTS),
    Knob("ngram",
         {"max_matching_ngram_size": 2, "is_keep_all": True, "is_use_oldest": True,
          "is_public_pool": True}, "mixed", "config_class", "NGram config", _NO_DRAFTS),
    Knob("mtp_layers", 1, "layers", "config_class", "MTP config", _NO_DRAFTS),
)

_LORA = (
    Knob("enable_lora", False, "bool", "argument", "always", _NO_LORA),
    Knob("peft_device_cache_percent", 0.02, "fraction of memory left", "config_class", "LoRA on",
         _NO_LORA),
    Knob("peft_host_cache", 1_073_741_824, "bytes", "config_class", "LoRA on", _NO_LORA),
    Knob("peft_max_adapter_size", 64, "rank", "config_class", "LoRA on", _NO_LORA),
)

_QUANTIZATION = (
    Knob("quant_config", "from checkpoint", "rule", "model", "always",
         same("as the file has them")),
)

_PARALLEL = (
    Knob("tensor_parallel_size", 1, "ranks", "argument", "always", _ONE_DEVICE,
         tensor_parallel),
    Knob("pipeline_parallel_size", 1, "ranks", "argument", "always", _ONE_DEVICE),
    Knob("context_parallel_size", 1, "ranks", "argument", "always", _ONE_DEVICE),
    Knob("moe_expert_parallel_size", None, "ranks", "argument", "None = 1", _ONE_DEVICE),
    Knob("enable_attention_dp", False, "bool", "argument", "always", _ONE_DEVICE),
    Knob("attention_dp", {"enable_balance": False, "timeout_iters": 50, "batching_wait_iters": 10},
         "mixed", "config_class", "attention DP on", _ONE_DEVICE),
)

_DISAGGREGATION = (
    Knob("cache_transceiver_backend", None, "enum DEFAULT|UCX|NIXL|MOONCAKE|MPI", "config_class",
         "off", _TOGETHER),
    Knob("kv_transfer_timeout_ms", None, "ms", "config_class", "transceiver on", _TOGETHER),
    Knob("kv_transfer_sender_future_timeout_ms", 1000, "ms", "config_class", "transceiver on",
         _TOGETHER),
    Knob("max_local_prefill_length", 0, "tokens (0 = off)", "config_class",
         "conditional disaggregation", _TOGETHER),
    Knob("router", "round_robin", "enum round_robin|load_balancing|kv_cache_aware", "config_class",
         "disaggregated serve (outside the engine)", outside("a router, outside the engine")),
)

_OFFLOAD = (
    Knob("host_cache_size", None, "bytes", "config_class", "off", _ONE_TIER),
    Knob("onboard_blocks", True, "bool", "config_class", "host cache on", _ONE_TIER),
    Knob("secondary_offload_min_priority", 30, "level", "config_class", "None resolves to 30",
         _ONE_TIER),
)

_WATCHDOG = (
    Knob("hang_detection_timeout", 300, "s", "data_structure", "starts with the executor loop",
         same("watchdog_timeout is 300 s too")),
)

_PROCESSES = (
    Knob("single_gpu",
         ["server (LLM proxy, tokenise, detokenise)",
          "worker (executor + GPU), started through MPI"],
         "processes", "data_structure", "also with one GPU", axis("processes")),
    Knob("num_postprocess_workers", 0, "processes", "argument", "always",
         sets("num_postprocess_workers")),
)
# fmt: on

PRESET = Preset(
    "TensorRT-LLM",
    axes={
        "composition": "two-stage",
        "admission": "no-evict",
        "shortage": "never",
        "order": "fcfs",
        "prefix_index": "block-tree",
        "publication": "postpone",
        "eviction": "priority-lru",
        "kv_memory": "after-peak",
        "capture": "decode-exact",
        "processes": BY_PRESET["trtllm"],
        "overlap": "1",
    },
    groups={
        "path": _PATH,
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
    },
)
