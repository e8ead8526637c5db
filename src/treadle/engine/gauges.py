"""What `get_metrics` tells of the engine, under vLLM's names."""

from __future__ import annotations

import dataclasses
from typing import Literal

from treadle.wire.messages import Stats


@dataclasses.dataclass(frozen=True)
class Metric:
    """One number. Counters run since the start."""

    name: str
    kind: Literal["gauge", "counter"]
    value: float


_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
}
_COUNTERS = {
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens",
    "vllm:prefix_cache_queries": "prefix_queries",
    "vllm:prefix_cache_hits": "prefix_hits",
    "vllm:num_preemptions": "preemptions",
}


def metrics_of(stats: Stats | None) -> list[Metric]:
    """All zero before the engine has computed anything."""
    return [
        *(Metric(name, "gauge", getattr(stats, field, 0)) for name, field in _GAUGES.items()),
        *(Metric(name, "counter", getattr(stats, field, 0)) for name, field in _COUNTERS.items()),
    ]
