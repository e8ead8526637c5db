"""Prometheus metrics under vLLM's names, so that existing dashboards work.

One registry per server. Latencies are observed as tokens arrive; gauges and the engine's counters
are read from its latest Stats when somebody asks. Never on the engine's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from treadle.wire.messages import Finish, Stats

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
NEXT_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Metrics:
    """What is observed here, answer by answer; implements text.frontend.Observer."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._model_name = model_name
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_S
        )
        self._next_tokens = self._histogram(
            "inter_token_latency_seconds", "Between tokens of one answer.", NEXT_TOKENS_S
        )
        self._request = self._histogram(
            "e2e_request_latency_seconds", "From the request to the end of its answer.", REQUEST_S
        )
        self._finished = Counter(
            "vllm:request_success",
            "Answers that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_tokens(self, seconds: float) -> None:
        self._next_tokens.observe(seconds)

    def finished(self, reason: Finish, seconds: float) -> None:
        self._request.observe(seconds)
        self._finished.labels(self._model_name, reason).inc()

    def watch(self, stats: Callable[[], Stats | None]) -> None:
        """Also report what the engine last said of itself."""
        self.registry.register(_EngineCollector(self._model_name, stats))

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            f"vllm:{name}", text, ["model_name"], buckets=buckets, registry=self.registry
        )
        return family.labels(self._model_name)


class _EngineCollector(Collector):
    """Turns the latest Stats into samples; none before the engine has sent any."""

    def __init__(self, model_name: str, stats: Callable[[], Stats | None]) -> None:
        self._model_name = model_name
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        yield self._gauge("num_requests_running", "Requests being computed.", stats.running)
        yield self._gauge("num_requests_waiting", "Requests that have not started.", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use.", stats.kv_usage)
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.prefix_queries
        )
        yield self._counter(
            "prefix_cache_hits", "Prompt tokens found in the cache.", stats.prefix_hits
        )
        yield self._counter("prompt_tokens", "Prompt tokens received.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield self._counter(
            "num_preemptions", "Times a request lost its KV to others.", stats.preemptions
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
