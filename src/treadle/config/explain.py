"""What is in force and why, as data: `treadle explain` prints it, /server_info answers with it.

Pure: the same inputs give the same explanation, on whatever machine it is asked.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from treadle.config.axes import in_force
from treadle.config.axis_states import AxisState, axis_states
from treadle.config.device import Device
from treadle.config.difference import Difference, differences
from treadle.config.facts import ModelFacts
from treadle.config.given import PLACES
from treadle.config.hardware import Hardware
from treadle.config.mechanisms import Mechanism, mechanisms
from treadle.config.presets import PRESETS
from treadle.config.presets.knob import State
from treadle.config.processes import described
from treadle.config.replay import Step
from treadle.config.replays import StepReplay, step_replays
from treadle.config.resolve import Resolved, resolve_view
from treadle.config.settings import EngineSettings, PresetName, ServerSettings
from treadle.config.view import View, this_device


class Fact(msgspec.Struct, frozen=True):
    name: str
    text: str


class Value(msgspec.Struct, frozen=True):
    name: str
    value: Any
    source: str
    sentence: str
    inputs: tuple[str, ...] = ()


class Section(msgspec.Struct, frozen=True):
    title: str
    values: tuple[Value, ...]


class KnobState(msgspec.Struct, frozen=True):
    name: str
    value: Any
    unit: str
    resolved_by: str | None
    state: State
    here: str
    """The setting that takes it, the axis that it chooses on, or a remark."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    preset: PresetName
    model: str
    device: str
    path: tuple[Fact, ...]
    """How a step is executed; read first, for everything else depends on it."""
    sections: tuple[Section, ...]
    flags: tuple[Fact, ...]
    """Other engines' flags that were given, and what they became."""
    axes: tuple[AxisState, ...]
    knobs: tuple[KnobState, ...]
    """The preset's own; empty for treadle's, which are the settings."""
    mechanisms: tuple[Mechanism, ...]
    step: tuple[StepReplay, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """What is explained. `server` is None where there is no server."""

    user: EngineSettings
    model: ModelFacts
    machine: Hardware
    device: Device | None = None
    server: ServerSettings | None = None
    remark: str = ""
    """Why the model cannot run here, where it was described and not loaded."""

    @property
    def where(self) -> Device:
        return self.device or this_device(self.machine)


def explain(
    case: Case, *, step: Step | None = None, diff: tuple[PresetName, PresetName] | None = None
) -> Explanation:
    """Raises StartError as `resolve` does."""
    resolved, view = resolve_view(case.user, case.model, case.machine, case.device)
    timeout = case.server.watchdog_timeout if case.server else None
    return Explanation(
        preset=resolved.preset,
        model=case.model.name,
        device=case.where.title,
        path=_path(case, resolved),
        sections=_sections(case, resolved),
        flags=_flags(case.user),
        axes=axis_states(resolved),
        knobs=_knobs(view),
        mechanisms=mechanisms(resolved, case.model, watchdog_timeout=timeout),
        step=step_replays(view, step) if step else (),
        differences=differences(view, _ours(case, view), *diff) if diff else (),
    )


def _ours(case: Case, view: View) -> View:
    """The case under treadle's own preset, with the settings that were given."""
    if case.user.preset == "treadle":
        return view
    user = msgspec.structs.replace(case.user, preset="treadle")
    return resolve_view(user, case.model, case.machine, case.device)[1]


def _path(case: Case, resolved: Resolved) -> tuple[Fact, ...]:
    runtime, cache = resolved.runtime, resolved.cache
    kernels = "PyTorch's operations"
    if runtime.backend == "native":
        kernels = f"C++, variant {runtime.isa}"
    facts = [
        Fact("processes", described(runtime.processes, runtime.num_postprocess_workers)),
        Fact("backend", f"{runtime.backend}: {kernels}, {runtime.threads} threads"),
        Fact("a step", "one recorded program of any shape; nothing is captured by size"),
        Fact("attention", f"paged, in pieces of 64 positions; K and V as {cache.kv_dtype}"),
        Fact("weights", f"{case.model.weight_type}, as the file has them"),
    ]
    if case.where.kind == "cuda":
        text = f"treadle has no kernels for {case.where.name} yet; values below are what"
        each = "; memory is of each device" if case.where.count > 1 else ""
        facts.insert(0, Fact("NOT RUN", f"{text} rules and presets say for it{each}"))
    if case.remark:
        facts.insert(0, Fact("NOT HERE", case.remark))
    return tuple(facts)


def _sections(case: Case, resolved: Resolved) -> tuple[Section, ...]:
    sections = []
    for name in ("model", "cache", "schedule", "policy", "order", "runtime"):
        values = msgspec.structs.asdict(getattr(resolved, name))
        reasons = resolved.reasons
        sections.append(
            Section(
                name,
                tuple(
                    Value(n, v, reasons[n].source, reasons[n].sentence, reasons[n].inputs)
                    for n, v in values.items()
                ),
            )
        )
    if case.server is not None:
        sections.append(Section("server", _server(case.server, case.user)))
    return tuple(sections)


def _server(server: ServerSettings, user: EngineSettings) -> tuple[Value, ...]:
    """Keys are counted, never shown."""
    values = []
    for field in msgspec.structs.fields(ServerSettings):
        value = getattr(server, field.name)
        default = field.default if field.default is not msgspec.NODEFAULT else []
        mark = user.given.get(field.name)
        source = mark.source if mark else "default" if value == default else "argument"
        sentence = (mark.words or mark.note) if mark else ""
        if field.name.endswith("api_key"):
            value = len(value) if isinstance(value, list) else int(value is not None)
            sentence = "keys; they are not shown"
        shown = "open" if value is None else "none" if value == [] else value
        values.append(Value(field.name, shown, source, sentence))
    return tuple(values)


def _flags(user: EngineSettings) -> tuple[Fact, ...]:
    """What is noted under another name than a setting's had no setting to become."""
    became: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    for name, mark in user.given.items():
        if mark.source == "argument":
            own = [] if name == mark.words else [_setting(user, name)]
            became.setdefault(mark.words, []).extend(own)
            notes[mark.words] = f"; {mark.note}" if mark.note else ""
    return tuple(
        Fact(words, " and ".join(names or ["what runs anyway"]) + notes[words])
        for words, names in became.items()
    )


def _setting(user: EngineSettings, name: str) -> str:
    """A setting with its value; one of the server's, or the preset, by name alone."""
    section = getattr(user, PLACES.get(name, "server"), None)
    if section is None:
        return name
    return f"{name} {_word(getattr(section, name))}"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _knobs(view: View) -> tuple[KnobState, ...]:
    if view.user.preset == "treadle":
        return ()
    preset, runs, states = PRESETS[view.user.preset], in_force(vars(view.settled)), []
    for name, knob in preset.knobs().items():
        ruled, here = knob.at(view), knob.here
        state, remark = here.state_on(view.device), here.setting or here.remark
        if here.axis is not None:
            wished, remark = preset.axes[here.axis.name], here.axis.title
            if wished not in here.axis.here:
                state = "absent"
            elif wished != runs[here.axis.name]:
                state, remark = "overridden", f"{remark}: {runs[here.axis.name]}"
            else:
                state = "applied"
        elif here.setting and ruled is not None:
            now = getattr(view.settled, here.setting)
            if now != here.ours(ruled.value):
                state, remark = "overridden", f"{here.setting} is {_word(now)}"
        value = knob.value if ruled is None else ruled.value
        states.append(KnobState(name, value, knob.unit, knob.resolved_by, state, remark))
    return tuple(states)
