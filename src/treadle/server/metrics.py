"""Prometheus metrics under the names of vLLM, SGLang or both, so that existing dashboards work.

One registry per server. What answers tell is observed as it comes; gauges and the engine's counters
are read from its latest Stats when somebody asks. Never on the engine's path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest

from treadle.server.sglang_metrics import SglangMetrics
from treadle.server.vllm_metrics import VllmMetrics
from treadle.text.observe import Ended
from treadle.wire.messages import Ready, Stats

Names = Literal["vllm", "sglang", "both"]


class Metrics:
    """Everything observed of one server; implements text.observe.Observer."""

    def __init__(self, model_name: str, names: Names = "vllm") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._sets: list[VllmMetrics | SglangMetrics] = []
        if names in ("vllm", "both"):
            self._sets.append(VllmMetrics(self.registry, model_name))
        if names in ("sglang", "both"):
            self._sets.append(SglangMetrics(self.registry, model_name))
        self._gaps = [metrics.gaps for metrics in self._sets]

    def first_token(self, seconds: float) -> None:
        for metrics in self._sets:
            metrics.first_token(seconds)

    def next_tokens(self, seconds: float) -> None:
        for gaps in self._gaps:
            gaps.observe(seconds)

    def ended(self, answer: Ended) -> None:
        for metrics in self._sets:
            metrics.ended(answer)

    def rejected(self, num_answers: int) -> None:
        for metrics in self._sets:
            metrics.rejected(num_answers)

    def measured(self, stats: Stats) -> None:
        for metrics in self._sets:
            metrics.measured(stats)

    def watch(self, ready: Ready, stats: Callable[[], Stats | None]) -> None:
        """Also report what the engine last said of itself."""
        for metrics in self._sets:
            metrics.watch(ready, stats)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
