"""SGLang's metrics: its names, types and buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from treadle.server.families import Families
from treadle.text.observe import Ended
from treadle.wire.messages import Ready, Stats

FIRST_TOKEN_S = (*(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400),)
NEXT_TOKENS_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040),
    *(0.060, 0.080, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
REQUEST_S = (*FIRST_TOKEN_S, 600, 1200, 1800, 2400)

MODES = ("prefill_compute", "prefill_cache", "decode")


class SglangMetrics:
    """An observer; what the engine says of itself is there once `watch` was called."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._families = Families(registry, "sglang:", {"model_name": model_name})
        histogram, counter = self._families.histogram, self._families.counter
        self._first_token = histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_S
        )
        self.gaps = histogram(
            "inter_token_latency_seconds", "Between tokens of one answer.", NEXT_TOKENS_S
        )
        self._request = histogram(
            "e2e_request_latency_seconds", "From the request to the end of its answer.", REQUEST_S
        )
        self._queue = histogram(
            "queue_time_seconds", "Before a request was first scheduled.", FIRST_TOKEN_S
        )
        self._num = counter("num_requests", "Answers that ended.")
        self._num_aborted = counter("num_aborted_requests", "Answers that nobody waited for.")
        self._last: Stats | None = None
        self._last_s = 0.0
        self._throughput = 0.0

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def ended(self, answer: Ended) -> None:
        self._num.inc()
        self._request.observe(answer.seconds)
        if answer.reason == "abort":
            self._num_aborted.inc()
        if answer.timings is not None:
            self._queue.observe(answer.timings.queue_s)

    def rejected(self, num_answers: int) -> None:
        """SGLang counts them as aborted."""
        self._num.inc(num_answers)
        self._num_aborted.inc(num_answers)

    def measured(self, stats: Stats) -> None:
        now, last = monotonic(), self._last
        if last is not None and now > self._last_s:
            num_new = stats.generation_tokens - last.generation_tokens
            self._throughput = num_new / (now - self._last_s) if stats.running else 0.0
        self._last, self._last_s = stats, now

    def watch(self, ready: Ready, stats: Callable[[], Stats | None]) -> None:
        self._families.collect(lambda: self._engine(ready, stats()))

    def _engine(self, ready: Ready, stats: Stats | None) -> Iterator[Metric]:
        if stats is None:
            return
        gauge, count = self._families.gauge_now, self._families.count_now
        used = round(stats.kv_usage * ready.kv_capacity_tokens)
        hit_rate = stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0
        yield gauge("num_running_reqs", "Requests being computed.", stats.running)
        yield gauge("num_queue_reqs", "Requests that have not started.", stats.waiting)
        yield gauge(
            "num_grammar_queue_reqs", "Requests whose grammar is being compiled.", stats.compiling
        )
        yield gauge("token_usage", "Share of KV in use.", stats.kv_usage)
        yield gauge("num_used_tokens", "Tokens whose KV is in use.", used)
        yield gauge("cache_hit_rate", "Share of prompt tokens found in the cache.", hit_rate)
        yield gauge("gen_throughput", "Tokens generated per second.", self._throughput)
        yield gauge("num_retracted_reqs", "Times a request gave way.", stats.preemptions)
        yield count("prompt_tokens", "Prompt tokens received.", stats.prompt_tokens)
        yield count("generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield count(
            "cached_tokens",
            "Prompt tokens found in the cache.",
            stats.prefix_hits,
            cache_source="device",
        )
        yield count("evicted_tokens", "Cached tokens that made room.", stats.evicted_tokens)
        computed = stats.prefix_queries - stats.prefix_hits
        by_mode = (computed, stats.prefix_hits, stats.generation_tokens)
        for mode, value in zip(MODES, by_mode, strict=True):
            yield count("realtime_tokens", "Tokens processed, by mode.", value, mode=mode)
