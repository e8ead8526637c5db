"""From measured requests to figures, by the definitions that `vllm bench serve` made common.

Failed requests count as failed and nowhere else. Times are in milliseconds, as they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from treadle.bench.completion import Measured
from treadle.bench.drive import Measurement
from treadle.bench.report import Spread, heading, lines_of, spread, table
from treadle.errors import InvalidRequest

METRICS = ("ttft", "tpot", "itl", "e2el")

_NAMES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}

BUSY = 0.5
"""Of one core: a client above it may itself be what is measured."""


class Goodput(msgspec.Struct, frozen=True):
    """Requests that met every limit."""

    limits_ms: dict[str, float]
    num_good: int
    share: float
    """Of all requests, failed ones included."""
    per_s: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one measurement. The schema of the JSON report: names are added, never changed."""

    completed: int
    failed: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    total_cached_tokens: int | None
    """None where the server does not tell."""
    num_short: int
    """Answers with fewer tokens than asked for."""
    num_off_length: int
    """Prompts that the server counted otherwise than they were built."""
    request_throughput: float
    input_throughput: float
    output_throughput: float
    total_throughput: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2el_ms: Spread | None
    goodput: Goodput | None
    client_cpu_share: float
    """Processor time of the client over the duration."""
    errors: dict[str, int]
    """What went wrong, and how often."""


def parse_limits(texts: Iterable[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` → milliseconds by metric."""
    limits: dict[str, float] = {}
    for text in " ".join(texts).split():
        metric, _, value = text.partition(":")
        try:
            limits[metric] = float(value)
        except ValueError:
            limits[metric] = 0.0
        if metric not in METRICS or metric == "itl" or not limits[metric] > 0:
            raise InvalidRequest(
                f"--goodput {text}: a limit is ttft, tpot or e2el, a colon and milliseconds"
            )
    return limits


def figures(measurement: Measurement, limits_ms: dict[str, float]) -> Figures:
    good = [one for one in measurement.requests if one.error is None]
    duration = measurement.duration_s
    num_in = sum(one.prompt_tokens for one in good)
    num_out = sum(one.completion_tokens for one in good)
    cached = [one.cached_tokens for one in good if one.cached_tokens is not None]
    return Figures(
        completed=len(good),
        failed=len(measurement.requests) - len(good),
        duration_s=duration,
        total_input_tokens=num_in,
        total_output_tokens=num_out,
        total_cached_tokens=sum(cached) if cached else None,
        num_short=sum(one.completion_tokens < one.output_len for one in good),
        num_off_length=sum(one.input_len not in (None, one.prompt_tokens) for one in good),
        request_throughput=len(good) / duration,
        input_throughput=num_in / duration,
        output_throughput=num_out / duration,
        total_throughput=(num_in + num_out) / duration,
        ttft_ms=_milliseconds(one.ttft_s for one in good),
        tpot_ms=_milliseconds(one.tpot_s for one in good),
        itl_ms=_milliseconds(gap for one in good for gap in one.itl_s),
        e2el_ms=_milliseconds(one.latency_s for one in good),
        goodput=_goodput(measurement, limits_ms) if limits_ms else None,
        client_cpu_share=measurement.client_cpu_s / duration,
        errors=dict(Counter(one.error for one in measurement.requests if one.error is not None)),
    )


def show(found: Figures) -> list[str]:
    """For a terminal of 80 columns."""
    counts: list[tuple[str, float | int | str | None]] = [
        ("Successful requests", found.completed),
        ("Failed requests", found.failed),
        ("Benchmark duration (s)", found.duration_s),
        ("Total input tokens", found.total_input_tokens),
        ("  of these found in the server's cache", found.total_cached_tokens),
        ("Total generated tokens", found.total_output_tokens),
        ("Request throughput (req/s)", found.request_throughput),
        ("Input token throughput (tok/s)", found.input_throughput),
        ("Output token throughput (tok/s)", found.output_throughput),
        ("Total token throughput (tok/s)", found.total_throughput),
    ]
    if found.goodput is not None:
        limits = " ".join(f"{name}:{value:g}" for name, value in found.goodput.limits_ms.items())
        counts.append(("Request goodput (req/s)", found.goodput.per_s))
        counts.append((f"  share of requests, {limits}", f"{found.goodput.share:.0%}"))
    counts.append(("Client processor time (of one core)", f"{found.client_cpu_share:.0%}"))
    spreads = [getattr(found, f"{metric}_ms") for metric in METRICS]
    rows = [
        (_NAMES[metric], one.mean, one.p50, one.p90, one.p99)
        for metric, one in zip(METRICS, spreads, strict=True)
        if one is not None
    ]
    lines = [heading("Serving benchmark"), *lines_of(counts)]
    if rows:
        lines += ["", *table(("Milliseconds", "mean", "p50", "p90", "p99"), rows)]
    return [*lines, *_remarks(found), "=" * len(lines[0])]


def _remarks(found: Figures) -> list[str]:
    """What makes the figures mean less than they seem to."""
    remarks = [f"Failed {count} times: {error}" for error, count in found.errors.items()]
    if found.num_short:
        remarks.append(f"{found.num_short} answers ended before the length asked for")
    if found.num_off_length:
        remarks.append(f"{found.num_off_length} prompts were not counted as they were built")
    if found.client_cpu_share > BUSY:
        remarks.append("The client was busy: it may itself have limited what was measured")
    return ["", *remarks] if remarks else []


def _milliseconds(seconds: Iterable[float | None]) -> Spread | None:
    return spread(one * 1000 for one in seconds if one is not None)


def _goodput(measurement: Measurement, limits_ms: dict[str, float]) -> Goodput:
    num_good = sum(_meets(one, limits_ms) for one in measurement.requests)
    return Goodput(
        limits_ms=limits_ms,
        num_good=num_good,
        share=num_good / len(measurement.requests),
        per_s=num_good / measurement.duration_s,
    )


def _meets(one: Measured, limits_ms: dict[str, float]) -> bool:
    """An answer of one token has no time per token, and so keeps any limit on it."""
    if one.error is not None:
        return False
    seconds = {"ttft": one.ttft_s, "tpot": one.tpot_s, "e2el": one.latency_s}
    return all((seconds[name] or 0.0) * 1000 <= limit for name, limit in limits_ms.items())


def failures(requests: Sequence[Measured]) -> bool:
    """Whether nothing at all was measured."""
    return all(one.error is not None for one in requests)
