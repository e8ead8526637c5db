"""`treadle bench throughput`: many requests at once, in process, until all are answered."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import msgspec

from treadle.bench.load import Load, require_lengths
from treadle.bench.report import end_of, heading, lines_of
from treadle.config.settings import EngineSettings
from treadle.engine.build import build_parts

_WARMUP_TOKENS = 8


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, all at once."""

    num_prompts: int = 32
    input_len: int = 128
    output_len: int = 128
    shared_prefix: int = 0
    """Tokens before those of `input_len` that begin every prompt alike."""


class ThroughputReport(msgspec.Struct, kw_only=True):
    model: str
    kernels: str
    requests: Requests
    duration_s: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    prefix_hits: int
    """Of them, found in the prefix cache."""
    preemptions: int
    steps: int
    tokens_per_step: float
    """Computed in a step on average, so without what the cache had."""


def measure_throughput(
    settings: EngineSettings, path: Path, requests: Requests
) -> ThroughputReport:
    """Raises StartError when a setting or a length does not fit."""
    parts = build_parts(settings, path, lambda _: None)
    with closing(parts.engine()) as engine:
        prompt_len = requests.shared_prefix + requests.input_len
        require_lengths(prompt_len, requests.output_len, parts.resolved.model.max_model_len)
        load = Load(engine)
        load.run([load.prompt(_WARMUP_TOKENS)], _WARMUP_TOKENS)
        prefix = load.prompt(requests.shared_prefix)
        prompts = [prefix + load.prompt(requests.input_len) for _ in range(requests.num_prompts)]
        before = engine.stats()
        began = time.perf_counter()
        answers = load.run(prompts, requests.output_len)
        duration = time.perf_counter() - began
        after = engine.stats()
    num_input = sum(answer.num_prompt for answer in answers)
    num_output = sum(answer.num_output for answer in answers)
    steps = after.steps - before.steps
    return ThroughputReport(
        model=settings.model.model,
        kernels=parts.backend.description,
        requests=requests,
        duration_s=duration,
        requests_per_s=len(answers) / duration,
        input_tokens_per_s=num_input / duration,
        output_tokens_per_s=num_output / duration,
        total_tokens_per_s=(num_input + num_output) / duration,
        prompt_tokens=num_input,
        prefix_hits=after.prefix_hits - before.prefix_hits,
        preemptions=after.preemptions - before.preemptions,
        steps=steps,
        tokens_per_step=(after.step_tokens - before.step_tokens) / steps,
    )


def show_throughput(report: ThroughputReport) -> list[str]:
    asked = report.requests
    return [
        heading("Throughput"),
        *lines_of(
            [
                ("Model", end_of(report.model)),
                ("Kernels", report.kernels),
                ("Requests", asked.num_prompts),
                (
                    "Tokens shared, in, out (each)",
                    f"{asked.shared_prefix}, {asked.input_len}, {asked.output_len}",
                ),
                ("Duration (s)", report.duration_s),
                ("Requests/s", report.requests_per_s),
                ("Input tok/s", report.input_tokens_per_s),
                ("Output tok/s", report.output_tokens_per_s),
                ("Total tok/s", report.total_tokens_per_s),
                ("Prompt tokens", report.prompt_tokens),
                ("Found in the prefix cache", report.prefix_hits),
                ("Preemptions", report.preemptions),
                ("Steps", report.steps),
                ("Tokens per step", report.tokens_per_step),
            ]
        ),
    ]
