"""Twenty mechanisms of serving engines: whether they run by default in three, and whether here.

The engines' states are those of an audit of their sources (vLLM v0.29.0, SGLang v0.5.19,
TensorRT-LLM v1.2.1), "unresolved" where it could not decide. Ours follow from what is resolved.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from treadle.config.conduct import displaces
from treadle.config.facts import ModelFacts
from treadle.config.resolve import CacheValues, PolicyValues, Resolved

EngineState = Literal["on", "conditional", "off", "unresolved"]
OwnState = Literal["on", "conditional", "off", "absent"]


class Row(NamedTuple):
    """One mechanism in three engines: vLLM, SGLang, TensorRT-LLM."""

    id: str
    title: str
    vllm: EngineState
    sglang: EngineState
    trtllm: EngineState
    cause: str = ""
    """Why they differ, as far as it is known; empty where they do not."""


ON: EngineState = "on"
IF: EngineState = "conditional"
OFF: EngineState = "off"
OPEN: EngineState = "unresolved"

ROWS = (
    Row("continuous_batching", "continuous batching", ON, ON, ON),
    Row("paged_kv", "paged KV", ON, ON, ON),
    Row("prefix_cache", "prefix cache", IF, IF, IF),
    Row("chunked_prefill", "chunked prefill", IF, IF, OFF, "configuration"),
    Row("weight_quantization", "weight quantisation", IF, IF, IF),
    Row("kv_quantization", "KV quantisation", IF, IF, IF),
    Row("speculative", "speculative decoding", IF, OFF, OFF, "configuration"),
    Row("kv_offload", "KV offload", OFF, OFF, OFF),
    Row("kv_eviction", "KV eviction", ON, ON, ON),
    Row("moe_ep", "expert parallelism", OFF, OFF, OFF),
    Row("lora", "LoRA", OFF, OFF, OFF),
    Row("tensor_parallel", "tensor parallelism", OFF, OFF, OFF),
    Row("pipeline_parallel", "pipeline parallelism", OFF, OFF, OFF),
    Row("pd_disaggregation", "prefill/decode apart", OFF, OFF, OFF),
    Row("dp_attention", "data-parallel attention", OPEN, OFF, OFF, "unresolved"),
    Row("cache_aware_routing", "cache-aware routing", OPEN, OPEN, OPEN),
    Row("load_balancing", "load balancing", OFF, OFF, OFF),
    Row("admission_control", "admission control", ON, ON, ON),
    Row("priority_preemption", "priorities", OFF, OFF, OFF),
    Row("hang_watchdog", "hang watchdog", OPEN, ON, ON, "unresolved"),
)


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism here, beside the three."""

    id: str
    title: str
    here: OwnState
    why: str
    """A conditional one's condition and whether it holds; what turns on one that is off."""
    vllm: EngineState
    sglang: EngineState
    trtllm: EngineState
    cause: str


def mechanisms(
    resolved: Resolved, model: ModelFacts, *, watchdog_timeout: float | None
) -> tuple[Mechanism, ...]:
    """`watchdog_timeout` is a server's; None where there is no server."""
    own = _own(resolved, model, watchdog_timeout)
    return tuple(
        Mechanism(
            id=row.id,
            title=row.title,
            here=own[row.id][0],
            why=own[row.id][1],
            vllm=row.vllm,
            sglang=row.sglang,
            trtllm=row.trtllm,
            cause=row.cause,
        )
        for row in ROWS
    )


def _own(
    resolved: Resolved, model: ModelFacts, watchdog_timeout: float | None
) -> dict[str, tuple[OwnState, str]]:
    cache, policy = resolved.cache, resolved.policy
    absent: tuple[OwnState, str] = ("absent", "not there yet")
    states: dict[str, tuple[OwnState, str]] = {row.id: absent for row in ROWS}
    states |= {
        "continuous_batching": _joining(policy),
        "paged_kv": ("on", f"blocks of {cache.block_size} tokens"),
        "prefix_cache": _prefix_cache(cache.prefix_cache),
        "chunked_prefill": _chunks(resolved),
        "weight_quantization": (
            "conditional",
            f"if the file's weights are; {_holds(model.quantised)}: {model.weight_type}",
        ),
        "kv_eviction": _eviction(cache),
        "admission_control": ("on", f"rows, tokens of a step, {_blocks_at_start(policy)}"),
        "priority_preemption": _priorities(resolved),
        "hang_watchdog": _watchdog(watchdog_timeout),
    }
    return states


def _prefix_cache(kind: str) -> tuple[OwnState, str]:
    if kind == "none":
        return "off", "--prefix-cache radix, hashed or block-tree turns it on"
    return "on", f"the index is {kind}"


def _joining(policy: PolicyValues) -> tuple[OwnState, str]:
    if policy.admission == "static":
        return "off", "under admission static nobody joins before all that run have ended"
    if policy.composition == "prefill-first":
        joined = "; decodes join in" if policy.mixed_chunk else ", or decodes alone"
        return "on", f"rows join and leave in every step: prompts first{joined}"
    if policy.composition == "two-stage":
        return "on", "rows join and leave in every step: those that run, then those that start"
    return "on", "rows join and leave in every step, decodes and prompts together"


def _chunks(resolved: Resolved) -> tuple[OwnState, str]:
    """Off is not never: `schedule.policy.Chunking`."""
    policy, tokens = resolved.policy, resolved.schedule.max_num_batched_tokens
    if not policy.chunked_prefill:
        return "off", (
            "a prompt waits for a step that holds all of it; alone, one above a step's"
            f" {tokens} tokens is divided all the same; --chunked-prefill turns it on"
        )
    text = f"prompts above a step's {tokens} tokens take several steps"
    if policy.composition == "prefill-first":
        return "on", f"{text}, one prompt at a time"
    if policy.composition == "two-stage":
        return "on", f"{text}, in units of {policy.chunk_unit_tokens}, {policy.chunk_policy}"
    most = policy.long_prefill_token_threshold
    return "on", f"{text}" + (f", of at most {most} tokens each" if most else "")


def _blocks_at_start(policy: PolicyValues) -> str:
    """What of KV a request must find to start."""
    match policy.admission:
        case "estimate":
            factor = policy.schedule_conservativeness
            return f"blocks for what all are expected to generate, times {factor:g}"
        case "no-evict":
            return "blocks for all up to the end of their answers"
        case "max-utilization":
            return "blocks for the next step of all"
        case "static":
            return "blocks up to the end of answers, and nobody running"
        case "stepwise":
            whole = "a whole prompt" if policy.reserve_full_prompt else "a prompt's first chunk"
            spare = f", {policy.watermark:.0%} of all kept free" if policy.watermark else ""
            return f"blocks for {whole}{spare}"
    raise AssertionError(policy.admission)


def _eviction(cache: CacheValues) -> tuple[OwnState, str]:
    holds = _holds(cache.prefix_cache != "none")
    goes = "" if cache.prefix_cache == "none" else f": {cache.eviction_policy}"
    return "conditional", f"if there is a prefix cache; {holds}{goes}"


def _priorities(resolved: Resolved) -> tuple[OwnState, str]:
    order, policy = resolved.order, resolved.policy
    if order.priorities != "count":
        return "off", "--order priority turns them on"
    text = f"{'smaller' if order.low_priority_values_first else 'larger'} ones first"
    if policy.shortage in ("preempt-lowest-priority", "retract-by-priority"):
        text += "; when KV runs out the least important gives way"
    if displaces(order, policy):
        text += f", and to one above it by more than {order.priority_preemption_threshold}"
    return "on", text


def _watchdog(timeout: float | None) -> tuple[OwnState, str]:
    if timeout is None:
        return "off", "a server has one: treadle serve"
    if timeout == 0:
        return "off", "--watchdog-timeout 300 turns it on"
    return "on", f"{timeout:g} s without progress end the server"


def _holds(condition: bool) -> str:
    return "so it is" if condition else "so it is not"
