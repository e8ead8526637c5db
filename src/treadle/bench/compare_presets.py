"""`treadle bench compare-presets`: policies on the same work, one after the other, in rounds.

Each run has an engine of its own with nothing in its cache. All else is alike: model, threads, KV
in bytes. Only the settings of a variant differ, so what differs is what they cause.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from treadle.bench.completion import Measured
from treadle.bench.drive import Measurement
from treadle.bench.figures import Figures, figures
from treadle.bench.load import Load
from treadle.bench.scenarios import Scenario, draw, order
from treadle.bench.timed import Timed
from treadle.config.axes import AXES
from treadle.config.fields import check
from treadle.config.given import PLACES, engine_settings
from treadle.config.kv_layout import vector_bytes
from treadle.config.resolve import resolve
from treadle.config.settings import EngineSettings, PresetName
from treadle.engine.build import build_parts, model_facts, this_machine
from treadle.errors import StartError
from treadle.models.loader import read_card

SCHEMA = 1
"""Raised when a field of the report changes its meaning or goes."""

_WARMUP_TOKENS = 8
PRESETS: tuple[PresetName, ...] = get_args(PresetName)


class Variant(msgspec.Struct, frozen=True):
    """Settings under a name."""

    name: str
    given: dict[str, Any]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler and the cache did in a run."""

    hit_rate: float
    """Of all prompt tokens, those found in the cache."""
    preemptions: int
    steps: int
    tokens_per_step: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One variant on one scenario, once."""

    scenario: str
    variant: str
    round: int
    figures: Figures
    counts: Counts
    answers: str
    """A digest: runs of a scenario with the same one gave the same answers."""
    requests: list[Measured]


class Median(msgspec.Struct, frozen=True, kw_only=True):
    """Of a variant's runs on a scenario, figure by figure."""

    output_throughput: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    gap_p99_ms: float
    """Between two tokens of an answer."""
    hit_rate: float
    preemptions: float
    steps: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, enough to compute every figure again."""

    schema: int
    treadle: str
    date: str
    model: str
    kernels: str
    seed: int
    rounds: int
    varied: str
    """What variants differ in: presets, or an axis or setting."""
    scenarios: list[Scenario]
    variants: list[Variant]
    resolved: dict[str, dict[str, Any]]
    """Variant → every value in force on the last scenario, with its reason."""
    runs: list[Run]

    def median(self, scenario: str, variant: str) -> Median:
        runs = [run for run in self.runs if (run.scenario, run.variant) == (scenario, variant)]
        rows = [_row(run) for run in runs]
        return Median(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})

    def alike(self, scenario: str) -> bool:
        """Whether all variants gave the same answers; each round asks anew."""
        runs = [run for run in self.runs if run.scenario == scenario]
        return len({(run.round, run.answers) for run in runs}) == len({run.round for run in runs})


def variants_of(
    common: Mapping[str, Any], presets: str | None, varied: str | None
) -> list[Variant]:
    """Of the presets that are named, or of one with something varied. Raises StartError."""
    if varied is not None:
        if presets is not None:
            raise StartError("give --presets, or --vary and --preset for the one it varies")
        return vary(varied, common)
    if common.get("preset") is not None:
        raise StartError("--preset is for --vary; --presets names those to compare")
    names = PRESETS if presets is None else presets.split(",")
    for name in names:
        check("preset", name)
    return [Variant(name, {**common, "preset": name}) for name in dict.fromkeys(names)]


def vary(text: str, common: Mapping[str, Any]) -> list[Variant]:
    """`composition=unified,prefill-first` → a variant for each choice on an axis, or value of a
    setting. Raises StartError for what cannot be chosen."""
    name, _, values = text.partition("=")
    key = name.replace("-", "_")
    axis = AXES.get(key)
    setting = axis.setting if axis else key
    if not values or (axis is None and setting not in PLACES) or PLACES.get(setting) == "server":
        named = ", ".join(axis.name for axis in AXES.values() if axis.setting)
        raise StartError(
            f"--vary {text}: write an axis or a setting, =, and values with commas between; axes"
            f" are {named}"
        )
    if not setting:
        raise StartError(f"--vary {text}: there is one way on the axis {name} so far")
    return [Variant(value, {**common, setting: value}) for value in values.split(",")]


def compare_presets(
    path: Path,
    variants: Sequence[Variant],
    scenarios: Sequence[Scenario],
    *,
    rounds: int,
    seed: int,
    progress: Callable[[], object],
) -> Comparison:
    """Raises StartError where a variant's settings do not fit, before anything is measured."""
    cases = [(scenario, variant) for scenario in scenarios for variant in variants]
    settings = {
        (scenario.name, variant.name): _settings(path, scenario, variant)
        for scenario, variant in cases
    }
    began, kernels = datetime.now(UTC), ""
    runs: list[Run] = []
    resolved: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for at in order(len(cases), seed + number):
            scenario, variant = cases[at]
            own = settings[scenario.name, variant.name]
            run, values, kernels = _run(path, own, scenario, variant, (number, seed))
            runs.append(run)
            resolved[variant.name] = values
            progress()
    return Comparison(
        schema=SCHEMA,
        treadle=importlib.metadata.version("treadle"),
        date=began.isoformat(timespec="seconds"),
        model=path.name,
        kernels=kernels,
        seed=seed,
        rounds=rounds,
        varied=_varied(variants),
        scenarios=list(scenarios),
        variants=list(variants),
        resolved=resolved,
        runs=runs,
    )


def _varied(variants: Sequence[Variant]) -> str:
    first = variants[0].given
    names = {n for v in variants for n in v.given if v.given[n] != first.get(n)}
    return ", ".join(sorted(names)) or "preset"


def _settings(path: Path, scenario: Scenario, variant: Variant) -> EngineSettings:
    """The variant's, with a window and a pool that suit the scenario."""
    facts, machine = model_facts(read_card(path)), this_machine()
    if scenario.longest > facts.max_positions:
        raise StartError(
            f"{scenario.name} has requests of {scenario.longest} tokens; the model's window is"
            f" {facts.max_positions}"
        )
    given = {"usage": "server", "max_model_len": scenario.longest, **variant.given}
    plain = {name: value for name, value in given.items() if name != "kv_memory_rule"}
    kind = resolve(engine_settings({**plain, "kv_memory_rule": "of-free"}), facts, machine).cache
    size = scenario.pool_tokens * facts.values_on(1) * vector_bytes(1, kind.kv_dtype)
    settings = engine_settings({"kv_cache_memory_bytes": size, **given})
    resolve(settings, facts, machine)
    return settings


def _run(
    path: Path,
    settings: EngineSettings,
    scenario: Scenario,
    variant: Variant,
    numbers: tuple[int, int],
) -> tuple[Run, dict[str, Any], str]:
    number, seed = numbers
    parts = build_parts(settings, path, lambda _: None)
    with closing(parts.engine()) as engine:
        load = Load(engine, seed=-1)
        load.run([load.prompt(_WARMUP_TOKENS)], _WARMUP_TOKENS)
        asked = draw(scenario, range(engine.ready().vocab_size), seed + number)
        timed, before = Timed(engine, asked, scenario.think_s), engine.stats()
        cpu_s = time.process_time()
        duration_s = timed.run()
        cpu_s, after = time.process_time() - cpu_s, engine.stats()
    measurement = Measurement(duration_s=duration_s, client_cpu_s=cpu_s, requests=timed.measured)
    steps = after.steps - before.steps
    prompts = sum(one.prompt_tokens for one in timed.measured)
    run = Run(
        scenario=scenario.name,
        variant=variant.name,
        round=number,
        figures=figures(measurement, {}),
        counts=Counts(
            hit_rate=(after.prefix_hits - before.prefix_hits) / prompts,
            preemptions=after.preemptions - before.preemptions,
            steps=steps,
            tokens_per_step=(after.step_tokens - before.step_tokens) / steps,
        ),
        answers=timed.digest,
        requests=timed.measured,
    )
    return run, parts.resolved.flat(), parts.backend.description


def _row(run: Run) -> dict[str, float]:
    found = run.figures
    assert found.ttft_ms is not None
    gaps, per_token = found.itl_ms, found.tpot_ms
    return {
        "output_throughput": found.output_throughput,
        "ttft_p50_ms": found.ttft_ms.p50,
        "ttft_p99_ms": found.ttft_ms.p99,
        "tpot_p50_ms": per_token.p50 if per_token else 0.0,
        "tpot_p99_ms": per_token.p99 if per_token else 0.0,
        "gap_p99_ms": gaps.p99 if gaps else 0.0,
        "hit_rate": run.counts.hit_rate,
        "preemptions": run.counts.preemptions,
        "steps": run.counts.steps,
    }
