"""vLLM's metrics: its names, types, labels and buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from treadle.server.families import Families, Histogram
from treadle.text.observe import Ended
from treadle.wire.messages import Finish, Ready, Stats, Timings

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
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ANSWERS = (1, 2, 5, 10, 20)


class VllmMetrics:
    """An observer; what depends on the model's window is there once `watch` was called."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._families = Families(registry, "vllm:", {"model_name": model_name, "engine": "0"})
        self._info = Families(registry, "vllm:", {"engine": "0"})
        histogram = self._families.histogram
        self._first_token = histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_S
        )
        self.gaps = histogram(
            "inter_token_latency_seconds", "Between tokens of one answer.", NEXT_TOKENS_S
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time between tokens, of each answer.",
            NEXT_TOKENS_S,
        )
        self._request = histogram(
            "e2e_request_latency_seconds", "From the request to the end of its answer.", REQUEST_S
        )
        self._phases = _Phases(self._families)
        self._step_tokens = histogram(
            "iteration_tokens_total", "Tokens of a step, averaged over a second.", STEP_TOKENS
        )
        self._n = histogram("request_params_n", "Answers asked for to one prompt.", ANSWERS)
        self._ended = self._families.counters(
            "request_success",
            "Answers that ended, by reason.",
            ["finished_reason"],
            [[reason] for reason in (*get_args(Finish), "error")],
        )
        self._rejected = self._families.counter(
            "admission_rejections", "Answers refused because the queue was full."
        )
        self._sizes: _Sizes | None = None
        self._last = (0, 0)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def ended(self, answer: Ended) -> None:
        self._ended[(answer.reason,)].inc()
        self._request.observe(answer.seconds)
        if answer.first_s is not None and answer.generation_tokens > 1:
            decode_s = answer.seconds - answer.first_s
            self._per_token.observe(decode_s / (answer.generation_tokens - 1))
        if answer.timings is not None:
            self._phases.observe(answer.timings)
        if self._sizes is not None:
            self._sizes.observe(answer)
        if answer.group is not None:
            self._n.observe(answer.group[0])

    def rejected(self, num_answers: int) -> None:
        self._rejected.inc(num_answers)

    def measured(self, stats: Stats) -> None:
        last, self._last = self._last, (stats.steps, stats.step_tokens)
        num_steps = stats.steps - last[0]
        if num_steps:
            self._step_tokens.observe((stats.step_tokens - last[1]) / num_steps, times=num_steps)

    def watch(self, ready: Ready, stats: Callable[[], Stats | None]) -> None:
        self._sizes = _Sizes(self._families, ready.max_model_len)
        info = _cache_config(ready)
        self._info.collect(
            lambda: [self._info.gauge_now("cache_config_info", "How KV is kept.", 1, **info)]
        )
        self._families.collect(lambda: self._engine(stats()))

    def _engine(self, stats: Stats | None) -> Iterator[Metric]:
        if stats is None:
            return
        gauge, count = self._families.gauge_now, self._families.count_now
        yield gauge("num_requests_running", "Requests being computed.", stats.running)
        yield gauge("num_requests_waiting", "Requests that have not started.", stats.waiting)
        yield gauge(
            "num_requests_compiling_grammar",
            "Requests, among the waiting ones, whose grammar is being compiled.",
            stats.compiling,
        )
        yield gauge("kv_cache_usage_perc", "Share of KV blocks in use.", stats.kv_usage)
        yield count(
            "prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.prefix_queries
        )
        yield count("prefix_cache_hits", "Prompt tokens found in the cache.", stats.prefix_hits)
        yield count("prompt_tokens", "Prompt tokens received.", stats.prompt_tokens)
        yield count("generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield count(
            "grammar_forced_tokens",
            "Tokens that a grammar left no choice for, and that took no step of their own.",
            stats.forced_tokens,
        )
        yield count("num_preemptions", "Times a request gave way.", stats.preemptions)


class _Phases:
    """Where the time of answers went, by the engine's clock."""

    def __init__(self, families: Families) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return families.histogram(f"request_{name}_time_seconds", text, REQUEST_S)

        self._queue = histogram("queue", "Before a request was first scheduled.")
        self._prefill = histogram("prefill", "From then to its first token.")
        self._decode = histogram("decode", "From its first token to its last.")
        self._inference = histogram("inference", "From when it was scheduled to its last token.")

    def observe(self, timings: Timings) -> None:
        self._queue.observe(timings.queue_s)
        self._prefill.observe(timings.prefill_s)
        self._decode.observe(timings.decode_s)
        self._inference.observe(timings.prefill_s + timings.decode_s)


class _Sizes:
    """Sizes in tokens, in buckets up to the model's window."""

    def __init__(self, families: Families, window: int) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return families.histogram(f"request_{name}", text, one_two_five(window))

        self._prompt = histogram("prompt_tokens", "Tokens of prompts.")
        self._generation = histogram("generation_tokens", "Tokens of answers.")
        self._longest = histogram(
            "max_num_generation_tokens", "Tokens of the longest answer to a prompt."
        )
        self._asked = histogram("params_max_tokens", "The most tokens an answer could have.")

    def observe(self, answer: Ended) -> None:
        self._prompt.observe(answer.prompt_tokens)
        self._generation.observe(answer.generation_tokens)
        if answer.max_tokens is not None:
            self._asked.observe(answer.max_tokens)
        if answer.group is not None:
            self._longest.observe(answer.group[1])


def one_two_five(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … up to the limit."""
    buckets: list[int] = []
    power = 1
    while power <= limit:
        buckets += [power * digit for digit in (1, 2, 5) if power * digit <= limit]
        power *= 10
    return buckets


def _cache_config(ready: Ready) -> dict[str, str]:
    """Labels as vLLM's configuration names them."""
    resolved = ready.resolved
    blocks = resolved.get("num_blocks", ())
    return {
        "block_size": str(resolved.get("block_size", "")),
        "cache_dtype": str(resolved.get("kv_dtype", "")),
        "enable_prefix_caching": str(resolved.get("prefix_cache", "none") != "none"),
        "num_gpu_blocks": str(sum(blocks)),
    }
