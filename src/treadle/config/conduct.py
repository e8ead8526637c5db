"""What treadle does where it takes more than one setting to say so, in a topic's words. Pure."""

from __future__ import annotations

from treadle.config.resolve import OrderValues, PolicyValues
from treadle.config.view import Settled

_FIRST = {
    "unified": "running requests",
    "prefill-first": "prompts",
    "two-stage": "requests in progress",
}
_VICTIMS = {
    "preempt-newest": "who began last",
    "preempt-lowest-priority": "least important, then who arrived last",
    "retract-by-length": "fewest generated, then longest input",
    "retract-by-priority": "least important, then who arrived last",
    "never": "nobody",
}
_PROCESSES = {"api+engine": 2, "http+scheduler+detokenizer": 3, "proxy+worker": 2, "in-process": 1}


def first_in_step(now: Settled) -> str:
    return _FIRST[now.composition]


def chunk_size(now: Settled) -> str | int:
    """Tokens of a chunk."""
    if not now.chunked_prefill:
        return "no chunks"
    most = now.long_prefill_token_threshold
    if now.composition == "unified" and most:
        return f"what a step has left, at most {most}"
    if now.composition == "prefill-first":
        return now.max_num_batched_tokens
    if now.composition == "two-stage":
        return f"what a step has left, in units of {now.chunk_unit_tokens}"
    return "what a step has left"


def chunked_at_once(now: Settled) -> str | int:
    """Prompts in chunks."""
    if now.chunked_prefill and now.composition == "prefill-first":
        return 1
    return "any"


def victims(now: Settled) -> str:
    return _VICTIMS[now.shortage]


def victims_wait(now: Settled) -> str:
    if now.shortage == "never":
        return "nobody does"
    if now.order != "fcfs":
        return "where the order has it"
    return "at the end" if now.shortage.startswith("retract") else "in front"


def priorities_count(now: Settled) -> bool:
    return now.priorities == "count"


def displaces(order: OrderValues | Settled, policy: PolicyValues | Settled) -> bool:
    """Whether a running request gives way to a more important one that waits."""
    asked = order.priorities == "count" and order.priority_preemption
    return asked and policy.composition == "prefill-first" and policy.admission == "estimate"


def displacement_threshold(now: Settled) -> int | None:
    return now.priority_preemption_threshold if displaces(now, now) else None


def prefix_granularity(now: Settled) -> str | int:
    if now.prefix_cache == "none" or not now.partial_reuse:
        return now.block_size
    return f"{now.block_size}, and part of one" + (
        " by copy" if now.copy_on_partial_reuse else ", if nobody else uses it"
    )


def keeps_equal_once(now: Settled) -> bool:
    return now.prefix_cache == "radix"


def computed_at_full_hit(now: Settled) -> str:
    exact = now.block_size == 1 or (now.partial_reuse and now.copy_on_partial_reuse)
    return "the last token" if exact else "the last block"


def processes(now: Settled) -> int:
    return _PROCESSES[now.processes] + _text_workers(now)


def texts_made_in(now: Settled) -> str:
    if now.processes == "in-process":
        return "the caller's process"
    if now.processes == "http+scheduler+detokenizer":
        return "a process for it"
    workers = _text_workers(now)
    if workers:
        return f"{workers} process{'es' if workers > 1 else ''} for it"
    return "the server's process" if now.processes == "proxy+worker" else "the API's process"


def _text_workers(now: Settled) -> int:
    return now.num_postprocess_workers if now.processes == "proxy+worker" else 0
