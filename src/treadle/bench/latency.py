"""`treadle bench latency`: one batch at a time, in process, over and over.

All requests of a batch are handed over at once and answered to their last token before the next
batch begins; no two prompts are alike. With burners each batch is followed by one during which
other processes burn cores, so that both see the same machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from treadle.bench.burners import Burners
from treadle.bench.floors import Recording, floor_s, measure_machine
from treadle.bench.load import Answer, Load, require_lengths
from treadle.bench.report import Spread, end_of, heading, lines_of, spread, table
from treadle.config.settings import EngineSettings
from treadle.engine.build import build_parts
from treadle.kernels.native.backend import NativeBackend


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how often."""

    input_len: int = 32
    output_len: int = 128
    batch_size: int = 1
    iterations: int = 10
    warmup: int = 2
    burners: int = 0
    """Processes that burn a core, in a second batch of each iteration."""


class Iteration(msgspec.Struct, frozen=True):
    """One batch, in seconds and tokens per second."""

    prefill_s: float
    """Until the last request has its first token."""
    ttft_s: float
    """Until a request's first token, the mean of the batch."""
    tpot_s: float | None
    """Per further token, the mean of the batch; None for answers of one token."""
    latency_s: float
    """Until the last token of all."""
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    """Answers' tokens after the first, from the end of the prefill on."""
    output_tokens_per_s: float


class Floor(msgspec.Struct, frozen=True):
    """A decode step of the whole batch, the last of them, against what it reads and computes."""

    read_gb_per_s: float
    step_bytes: int
    """Weights and KV."""
    step_s: float
    """The least that the step can take."""
    reached: float
    """Its share of the median time per token."""


class Burdened(msgspec.Struct, frozen=True, kw_only=True):
    """The batches during which burners ran."""

    iterations: list[Iteration]
    summary: dict[str, Spread]
    slow_down: float
    """Median time per token against that of the quiet batches; for answers of one token, median
    latency."""


class LatencyReport(msgspec.Struct, kw_only=True):
    model: str
    kernels: str
    batch: Batch
    iterations: list[Iteration]
    summary: dict[str, Spread]
    """Figure → its spread over the iterations."""
    floor: Floor | None
    """None on a backend whose ops have no costs, and for answers of one token."""
    burdened: Burdened | None
    """None without burners."""


def measure_latency(settings: EngineSettings, path: Path, batch: Batch) -> LatencyReport:
    """Raises StartError when a setting or a length does not fit."""
    parts = build_parts(settings, path, lambda _: None)
    with closing(parts.engine()) as engine:
        require_lengths(batch.input_len, batch.output_len, parts.resolved.model.max_model_len)
        load = Load(engine)
        for _ in range(batch.warmup):
            _once(load, batch)
        iterations, burdened = _both(load, batch)
        summary = _summary(iterations)
        floor = None
        if batch.output_len > 1 and isinstance(parts.backend, NativeBackend):
            tpot = statistics.median(each.tpot_s or 0.0 for each in iterations)
            floor = _floor(load, batch, Recording(parts.backend, parts.program), tpot)
        return LatencyReport(
            model=settings.model.model,
            kernels=parts.backend.description,
            batch=batch,
            iterations=iterations,
            summary=summary,
            floor=floor,
            burdened=_burdened(burdened, summary) if burdened else None,
        )


def _both(load: Load, batch: Batch) -> tuple[list[Iteration], list[Iteration]]:
    """Quiet batches, and those under load."""
    quiet, burdened = [], []
    with Burners(batch.burners) as burners:
        for _ in range(batch.iterations):
            quiet.append(_once(load, batch))
            if batch.burners:
                with burners.burning():
                    burdened.append(_once(load, batch))
    return quiet, burdened


def _burdened(iterations: list[Iteration], quiet: dict[str, Spread]) -> Burdened:
    summary = _summary(iterations)
    figure = "tpot_s" if "tpot_s" in summary else "latency_s"
    slow_down = summary[figure].p50 / quiet[figure].p50
    return Burdened(iterations=iterations, summary=summary, slow_down=slow_down)


def _once(load: Load, batch: Batch) -> Iteration:
    prompts = [load.prompt(batch.input_len) for _ in range(batch.batch_size)]
    return iteration_of(load.run(prompts, batch.output_len))


def iteration_of(answers: Sequence[Answer]) -> Iteration:
    prefill = max(answer.first_s for answer in answers)
    end = max(answer.last_s for answer in answers)
    per_token = [each for answer in answers if (each := answer.time_per_token_s) is not None]
    num_input = sum(answer.num_prompt for answer in answers)
    num_output = sum(answer.num_output for answer in answers)
    further = num_output - len(answers)
    return Iteration(
        prefill_s=prefill,
        ttft_s=statistics.fmean(answer.first_s for answer in answers),
        tpot_s=statistics.fmean(per_token) if per_token else None,
        latency_s=end,
        prefill_tokens_per_s=num_input / prefill,
        decode_tokens_per_s=further / (end - prefill) if further and end > prefill else None,
        output_tokens_per_s=num_output / end,
    )


def _summary(iterations: Sequence[Iteration]) -> dict[str, Spread]:
    found: dict[str, Spread] = {}
    for name in Iteration.__struct_fields__:
        values = [value for each in iterations if (value := getattr(each, name)) is not None]
        whole = spread(values)
        if whole is not None:
            found[name] = whole
    return found


def _floor(load: Load, batch: Batch, recording: Recording, tpot_s: float) -> Floor:
    recording.on = True
    _once(load, batch)
    decodes = [each for each in recording.take() if each.num_tokens == each.num_rows]
    rows = max(each.num_rows for each in decodes)
    ops = [each for each in decodes if each.num_rows == rows][-1].ops
    machine = measure_machine(recording.backend)
    least = floor_s(machine, ops)
    return Floor(
        read_gb_per_s=machine.read_bytes_per_s / 1e9,
        step_bytes=sum(op.weight_bytes + op.kv_bytes for op in ops),
        step_s=least,
        reached=least / tpot_s,
    )


_ROWS = (
    ("Prefill (ms)", "prefill_s", 1e3),
    ("TTFT (ms)", "ttft_s", 1e3),
    ("TPOT (ms)", "tpot_s", 1e3),
    ("Latency (ms)", "latency_s", 1e3),
    ("Prefill tok/s", "prefill_tokens_per_s", 1.0),
    ("Decode tok/s", "decode_tokens_per_s", 1.0),
    ("Output tok/s", "output_tokens_per_s", 1.0),
)


def show_latency(report: LatencyReport) -> list[str]:
    batch = report.batch
    lines = [
        heading("Latency"),
        *lines_of(
            [
                ("Model", end_of(report.model)),
                ("Kernels", report.kernels),
                ("Batch size", batch.batch_size),
                ("Tokens in, out (each)", f"{batch.input_len}, {batch.output_len}"),
                ("Iterations", batch.iterations),
            ]
        ),
        "",
    ]
    lines += _summary_lines("", report.summary)
    if (burdened := report.burdened) is not None:
        others = f"beside {batch.burners} burner{'s' * (batch.burners > 1)}"
        lines += ["", *_summary_lines(others, burdened.summary)]
        lines += lines_of([("Slow-down of the median", burdened.slow_down)])
    if (floor := report.floor) is not None:
        lines += ["", *lines_of(_floor_rows(floor))]
    return lines


def _summary_lines(title: str, summary: dict[str, Spread]) -> list[str]:
    rows: list[list[float | str | None]] = []
    for label, name, unit in _ROWS:
        if name in summary:
            s = summary[name]
            rows.append([label, *(unit * value for value in (s.mean, s.p50, s.p90, s.p99))])
    return table([title, "mean", "p50", "p90", "p99"], rows)


def _floor_rows(floor: Floor) -> list[tuple[str, float | str]]:
    return [
        ("Read bandwidth (GB/s)", floor.read_gb_per_s),
        ("Read per decode step (MB)", floor.step_bytes / 1e6),
        ("Least time of a step (ms)", floor.step_s * 1e3),
        ("Share of that floor reached", f"{floor.reached:.0%}"),
    ]
