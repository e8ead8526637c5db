"""treadle's own defaults: on each axis what was measured to be best on a CPU."""

from __future__ import annotations

from treadle.config.presets.knob import Knob, Preset, Ruled, sets
from treadle.config.processes import BY_PRESET
from treadle.config.view import View


def kv_dtype(see: View) -> Ruled:
    """bf16 where the kernels multiply it as it is."""
    native = see.settled.backend == "native"
    if native and see.user.runtime.isa in (None, "avx512bf16") and see.machine.multiplies_bf16:
        saves = "half the memory traffic of f32, and this processor multiplies bf16 itself"
        return Ruled("bf16", f"{saves}, twice as fast as floats")
    return Ruled("f16", "half the memory traffic of f32, and three bits more than bf16")


# fmt: off
_CACHE = (
    Knob("prefix_cache", "radix", "index", "default",
         "a radix tree reuses any shared prefix, exact to a block", sets("prefix_cache")),
    Knob("eviction_policy", "lru", "policy", "default",
         "of the leaves that nobody holds, the one used longest ago", sets("eviction_policy")),
    Knob("prefix_wait_tokens", 64, "tokens", "default",
         "fewer cost less computed twice than the part of a step that stays empty meanwhile",
         sets("prefix_wait_tokens")),
    Knob("partial_reuse", True, "switch", "default",
         "a match is then exact to the token", sets("partial_reuse")),
    Knob("copy_on_partial_reuse", True, "switch", "default",
         "to copy a block costs less than to compute its tokens", sets("copy_on_partial_reuse")),
    Knob("block_size", 16, "tokens", "default",
         "16 tokens keep block tables short and lose at most 15 tokens of a match",
         sets("block_size")),
    Knob("kv_dtype", "f16", "type", "hardware", "bf16 where the kernels multiply it",
         sets("kv_dtype"), kv_dtype),
    Knob("kv_memory_rule", "of-free", "rule", "default",
         "leaves the machine's other programs what they hold", sets("kv_memory_rule")),
    Knob("kv_memory_fraction", 0.5, "of what is free beside the weights", "default",
         "half of what is free may still be wanted by others", sets("kv_memory_fraction")),
)

_SCHEDULE = (
    Knob("max_num_seqs", 64, "requests", "default",
         "beyond that a CPU gains nothing from larger batches", sets("max_num_seqs")),
    Knob("max_num_batched_tokens", 512, "tokens", "default",
         "enough for the matrix products, and a step stays short", sets("max_num_batched_tokens")),
    Knob("overlap_depth", 0, "steps", "default",
         "on a CPU planning and computing share the cores", sets("overlap_depth")),
)

_POLICY = (
    Knob("composition", "unified", "composition", "default",
         "decodes and prompts share a step, so nobody waits for the other's", sets("composition")),
    Knob("admission", "stepwise", "admission", "default", "no KV lies idle for an answer to come",
         sets("admission")),
    Knob("shortage", "preempt-newest", "shortage", "default",
         "the cache gives most of it back, and the oldest always ends", sets("shortage")),
    Knob("chunked_prefill", True, "bool", "default", "a long prompt does not hold up a step",
         sets("chunked_prefill")),
    Knob("long_prefill_token_threshold", 0, "tokens", "default", "the step's tokens bound it",
         sets("long_prefill_token_threshold")),
    Knob("max_prefill_tokens", 16384, "tokens", "default", "SGLang's, for its composition",
         sets("max_prefill_tokens")),
    Knob("mixed_chunk", False, "bool", "default", "prefill-first keeps them apart, as in SGLang",
         sets("mixed_chunk")),
    Knob("chunk_policy", "in-turn", "policy", "default", "the first is done soonest",
         sets("chunk_policy")),
    Knob("reserve_full_prompt", True, "bool", "default",
         "a prompt that starts can be computed to its end", sets("reserve_full_prompt")),
    Knob("watermark", 0.0, "share of blocks", "default", "no blocks are held back",
         sets("watermark")),
    Knob("schedule_conservativeness", 1.0, "factor", "default", "SGLang's, for its estimate",
         sets("schedule_conservativeness")),
)

_ORDER = (
    Knob("order", "fcfs", "order", "default", "nobody waits for ever, and nothing is sorted",
         sets("order")),
    Knob("priorities", "refuse", "rule", "default",
         "a priority other than 0 would not do what it says", sets("priorities")),
    Knob("low_priority_values_first", True, "bool", "default", "smaller comes first, as in vLLM",
         sets("low_priority_values_first")),
    Knob("missing_priority", "zero", "rule", "default", "0 is neither important nor not",
         sets("missing_priority")),
    Knob("priority_preemption", True, "bool", "default",
         "prefill-first asks for it, where priorities count", sets("priority_preemption")),
    Knob("priority_preemption_threshold", 10, "of priorities", "default", "SGLang's",
         sets("priority_preemption_threshold")),
    Knob("in_batch_check_threshold", 32, "tokens", "default", "SGLang's",
         sets("in_batch_check_threshold")),
    Knob("in_batch_share_threshold", 32, "tokens", "default", "SGLang's",
         sets("in_batch_share_threshold")),
    Knob("sort_limit", 128, "requests", "default", "sorting more takes longer than a step saves",
         sets("sort_limit")),
)

_RUNTIME = (
    Knob("backend", "native", "kernels", "default", "the C++ kernels need no PyTorch",
         sets("backend")),
    Knob("num_postprocess_workers", 0, "processes", "default", "the proxy makes the texts",
         sets("num_postprocess_workers")),
    Knob("context_form", "block-table", "form", "default",
         "nothing has to be made from it for a step", sets("context_form")),
    Knob("write_and_attend", False, "switch", "default",
         "the same work and the same bits, and profiles tell two ops apart",
         sets("write_and_attend")),
    Knob("grammar_backend", "llguidance", "library", "default",
         "no PyTorch, nothing to pay at start-up, masks in microseconds, limits on all it does",
         sets("grammar_backend")),
)
# fmt: on

PRESET = Preset(
    "treadle",
    axes={
        "composition": "unified",
        "admission": "stepwise",
        "shortage": "preempt-newest",
        "order": "fcfs",
        "prefix_index": "radix",
        "publication": "at-chunk-end",
        "eviction": "lru",
        "kv_memory": "of-free",
        "capture": "program",
        "processes": BY_PRESET["treadle"],
        "overlap": "0",
    },
    groups={
        "cache": _CACHE,
        "schedule": _SCHEDULE,
        "policy": _POLICY,
        "order": _ORDER,
        "runtime": _RUNTIME,
    },
)
