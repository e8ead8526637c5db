"""What is asked of every engine, and which figures are taken from the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.floors import Work
from benchmarks.running import Unable
from treadle.bench.drive import Plan
from treadle.bench.figures import Figures
from treadle.bench.workloads import Name, workload


class Figure(NamedTuple):
    """A row of the table."""

    key: str
    name: str
    unit: str
    of: Callable[[Figures], float]
    num_counted: int | None = None
    """Tokens that the unit counts in the task's work; 0 where it is its seconds. None: no floor."""
    is_cost: bool = False
    """Whether less is better."""


class Task(NamedTuple):
    key: str
    name: Name
    sizes: dict[str, int]
    work: Work
    figures: list[Figure]
    cached_prefix: bool = False
    burners: int = 0
    """Other processes that burn a core meanwhile."""
    warmup: int = 1

    def plan(self, seed: int) -> Plan:
        return Plan(
            workload=workload(self.name, seed=seed, **self.sizes),
            num_warmup=self.warmup,
            cached_prefix=self.cached_prefix,
        )

    def reduced(self) -> Task:
        """The same in little, to see that it runs; its figures mean nothing, and have no floor."""
        sizes = {name: max(min(value, 8), value // 16) for name, value in self.sizes.items()}
        figures = [figure._replace(num_counted=None) for figure in self.figures]
        return self._replace(sizes=sizes, figures=figures)


def decode_rate(found: Figures) -> float:
    assert found.tpot_ms is not None
    if not found.tpot_ms.p50:
        raise Unable("told all tokens of an answer at once")
    return 1000 / found.tpot_ms.p50


def prefill_rate(found: Figures) -> float:
    assert found.ttft_ms is not None
    return found.total_input_tokens / found.completed / found.ttft_ms.p50 * 1000


def output_rate(found: Figures) -> float:
    return found.output_throughput


def total_rate(found: Figures) -> float:
    return found.total_throughput


def mean_ttft(found: Figures) -> float:
    assert found.ttft_ms is not None
    return found.ttft_ms.mean


def wall(found: Figures) -> float:
    return found.duration_s


def stream(num: int = 4, input_len: int = 32, output_len: int = 128) -> Task:
    """One request after the other."""
    name = f"one stream, {input_len} in, {output_len} out"
    return Task(
        "stream",
        "single",
        {"num_requests": num, "input_len": input_len, "output_len": output_len},
        Work(0, 0, 1, 1, input_len + output_len // 2),
        [Figure("stream", name, "tok/s out", decode_rate, 1)],
    )


def prefill(length: int, num: int) -> Task:
    key = f"prefill-{length}"
    return Task(
        key,
        "single",
        {"num_requests": num, "input_len": length, "output_len": 1},
        Work(length, 1, 0, 1),
        [Figure(key, f"prompt of {length:,}", "tok/s in", prefill_rate, length)],
    )


def streams(num: int = 32, length: int = 128) -> Task:
    text = f"{num} streams, {length} in, {length} out"
    return Task(
        "streams",
        "concurrent",
        {"num_requests": num, "concurrency": num, "input_len": length, "output_len": length},
        Work(num * length, num, length - 1, num, num * (length + length // 2)),
        [
            Figure("streams", text, "tok/s out", output_rate, num * length),
            Figure("streams-ttft", f"{text}: mean TTFT", "ms", mean_ttft, is_cost=True),
        ],
    )


def shared(*, cached: bool, num: int = 32, prefix: int = 1024, own: int = 32) -> Task:
    """All arrive together; `own` is each request's own prompt, and its answer."""
    key = "shared-cached" if cached else "shared-cold"
    text = f"{num} share {prefix:,} + {own} in, {own} out, " + ("cached" if cached else "cold")
    sizes: dict[str, Any] = {"num_requests": num, "concurrency": num, "prefix_len": prefix}
    kv_tokens = prefix + num * (own + own // 2)
    num_computed = num * own + (0 if cached else prefix)
    return Task(
        key,
        "shared-prefix",
        {**sizes, "input_len": own, "output_len": own},
        Work(num_computed, num, own - 1, num, kv_tokens),
        [
            Figure(key, text, "tok/s in and out", total_rate, num * (prefix + 2 * own)),
            Figure(f"{key}-ttft", f"{text}: mean TTFT", "ms", mean_ttft, is_cost=True),
            Figure(f"{key}-wall", f"{text}: all answered", "s", wall, 0, is_cost=True),
        ],
        cached_prefix=cached,
    )


def disturbed() -> Task:
    """One stream while another process burns one of the cores."""
    sizes = {"num_requests": 2, "input_len": 32, "output_len": 64}
    name = "one stream beside a process that burns a core"
    figure = Figure("disturbed", name, "tok/s out", decode_rate)
    return Task("disturbed", "single", sizes, Work(0, 0, 1, 1), [figure], burners=1)


ALL = (
    stream(),
    prefill(512, 5),
    prefill(2048, 2),
    streams(),
    shared(cached=False),
    shared(cached=True),
    disturbed(),
)
