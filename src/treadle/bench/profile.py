"""`treadle bench profile`: where the time of one forward pass goes, op by op, and what Python adds
to a step.

The engine's own loop runs the passes. Its program times its ops in some of them, parts of the loop
are timed in others, so that neither clock falls into the other's figures.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from treadle.bench.floors import Machine, Pass, Recording, measure_machine
from treadle.bench.load import GREEDY, Load, require_lengths
from treadle.bench.passes import Shape, drive, fitted
from treadle.bench.step_parts import StepClock, StepTimes, median_times
from treadle.config.settings import EngineSettings
from treadle.engine.build import build_parts
from treadle.text.load import load_text
from treadle.text.output import AnswerText
from treadle.wire.sampling_params import SamplingParams

_DETOKENISED = 512


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One op of the program; its time is the median over the passes."""

    label: str
    """As the model names the weight or the step; layers' begin with their number."""
    kernel: str
    seconds: float
    floor_s: float
    """The least that it can take."""
    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    operations: int

    @property
    def layer(self) -> int | None:
        number, dot, _ = self.label.partition(".")
        return int(number) if dot and number.isdigit() else None

    @property
    def kind(self) -> str:
        """The same in all layers."""
        return self.label if self.layer is None else self.label.partition(".")[2]


class ProfileReport(msgspec.Struct, kw_only=True):
    model: str
    kernels: str
    shape: Shape
    temperature: float
    top_p: float
    num_tokens: int
    """Of a pass as it was: a prefix is found in whole blocks, so a prefill may be some longer."""
    machine: Machine
    pass_s: float
    """Median of the profiled passes; compare with `step.forward_s`, of plain ones."""
    ops: list[Op]
    step: StepTimes
    detokenise_s: float
    """Per step, on the text side: a token for each row."""


def measure_profile(
    settings: EngineSettings, path: Path, shape: Shape, sampling: SamplingParams = GREEDY
) -> ProfileReport:
    """Raises StartError when a setting or a length does not fit, or ops have no times."""
    parts = build_parts(fitted(settings, shape), path, lambda _: None)
    with closing(parts.engine()) as engine:
        require_lengths(shape.window, 0, parts.resolved.model.max_model_len)
        recording = Recording(parts.backend, parts.program)
        clock = StepClock(parts, engine)
        load = Load(engine, sampling=sampling)
        drive(load, msgspec.structs.replace(shape, passes=1), clock.take)  # warm
        step = median_times(drive(load, shape, clock.take))
        recording.on = True
        passes = drive(load, shape, recording.take)
        machine = measure_machine(recording.backend)
    return ProfileReport(
        model=settings.model.model,
        kernels=parts.backend.description,
        shape=shape,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        num_tokens=passes[-1].num_tokens,
        machine=machine,
        pass_s=statistics.median(each.seconds for each in passes),
        ops=ops_of(passes, machine),
        step=step,
        detokenise_s=shape.batch_size * _detokenise_s(path),
    )


def ops_of(passes: Sequence[Pass], machine: Machine) -> list[Op]:
    """In the program's order; costs are those of the last pass."""
    return [
        Op(
            label=last.label,
            kernel=last.kernel,
            seconds=statistics.median(each.ops[at].nanoseconds for each in passes) / 1e9,
            floor_s=machine.floor_s(last),
            weight_bytes=last.weight_bytes,
            kv_bytes=last.kv_bytes,
            activation_bytes=last.activation_bytes,
            operations=last.operations,
        )
        for at, last in enumerate(passes[-1].ops)
    ]


def _detokenise_s(path: Path) -> float:
    """Per token of an answer, of random ordinary text."""
    tokenizer = load_text(path).tokenizer
    rng = random.Random(0)  # noqa: S311 (nothing secret)
    tokens = rng.choices(range(tokenizer.vocab_size), k=_DETOKENISED)
    best = float("inf")
    for _ in range(3):
        text = AnswerText(tokenizer, SamplingParams())
        began = time.perf_counter()
        for token in tokens:
            text.feed([token], final=False)
        best = min(best, time.perf_counter() - began)
    return best / _DETOKENISED
