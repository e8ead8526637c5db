"""`treadle bench latency`: one batch at a time, in process, over and over.

All requests of a batch are handed over at once and answered to their last token before the next
batch begins; no two prompts are alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

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


class LatencyReport(msgspec.Struct, kw_only=True):
    model: str
    kernels: str
    batch: Batch
    iterations: list[Iteration]
    summary: dict[str, Spread]
    """Figure → its spread over the iterations."""
    floor: Floor | None
    """None on a backend whose ops have no costs, and for answers of one token."""


def measure_latency(settings: EngineSettings, path: Path, batch: Batch) -> LatencyReport:
    """Raises StartError when a setting or a length does not fit."""
    parts = build_parts(settings, path, lambda _: None)
    with closing(parts.engine()) as engine:
        require_lengths(batch.input_len, batch.output_len, parts.resolved.model.max_model_len)
        load = Load(engine)
        for _ in range(batch.warmup):
            _once(load, batch)
        iterations = [_once(load, batch) for _ in range(batch.iterations)]
        floor = None
        if batch.output_len > 1 and isinstance(parts.backend, NativeBackend):
            tpot = statistics.median(each.tpot_s or 0.0 for each in iterations)
            floor = _floor(load, batch, Recording(parts.backend, parts.program), tpot)
        return LatencyReport(
            model=settings.model.model,
            kernels=parts.backend.description,
            batch=batch,
            iterations=iterations,
            summary=_summary(iterations),
            floor=floor,
        )


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
    rows: list[list[float | str | None]] = []
    for label, name, unit in _ROWS:
        if name in report.summary:
            s = report.summary[name]
            rows.append([label, *(unit * value for value in (s.mean, s.p50, s.p90, s.p99))])
    lines += table(["", "mean", "p50", "p90", "p99"], rows)
    if (floor := report.floor) is not None:
        lines += ["", *lines_of(_floor_rows(floor))]
    return lines


def _floor_rows(floor: Floor) -> list[tuple[str, float | str]]:
    return [
        ("Read bandwidth (GB/s)", floor.read_gb_per_s),
        ("Read per decode step (MB)", floor.step_bytes / 1e6),
        ("Least time of a step (ms)", floor.step_s * 1e3),
        ("Share of that floor reached", f"{floor.reached:.0%}"),
    ]
