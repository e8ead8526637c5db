"""What differs between two presets in a case, by cause. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from treadle.config.presets import PRESETS
from treadle.config.presets.knob import Knob, Ruled
from treadle.config.settings import PresetName
from treadle.config.topics import CAUSES, TOPICS, Cause, Fixed, IsOn, Side, Topic
from treadle.config.view import View


class Difference(msgspec.Struct, frozen=True):
    topic: str
    cause: Cause
    first: Any
    second: Any
    why: str
    """Knobs or axis, and what the values depend on."""


class _Seen(NamedTuple):
    """One preset's side of a topic, in a case."""

    value: Any
    why: str = ""
    knob: Knob | None = None


def differences(see: View, first: PresetName, second: PresetName) -> tuple[Difference, ...]:
    """By cause. A default differs where both engines merely state one; a rule, where either
    computes it from device, model or entry point; structure, where it is how an engine is made."""
    found = [_difference(see, topic, first, second) for topic in TOPICS]
    return tuple(
        difference
        for cause in CAUSES
        for difference in found
        if difference is not None and difference.cause == cause
    )


def _difference(
    see: View, topic: Topic, first: PresetName, second: PresetName
) -> Difference | None:
    if topic.axis:
        one, other = (PRESETS[name].axes[topic.axis] for name in (first, second))
        cause: Cause = "different structure"
        if topic.axis == "overlap":
            cause = "different default"
        elif topic.axis == "kv_memory":
            cause = "different rule"
        return Difference(topic.title, cause, one, other, "") if one != other else None
    sides = [_side(see, name, getattr(topic, name)) for name in (first, second)]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides) or known[0].value == known[1].value:
        return None
    why = "; ".join(side.why for side in known if side.why)
    found = topic.cause or _cause([side.knob for side in known if side.knob is not None])
    return Difference(topic.title, found, known[0].value, known[1].value, why)


def _side(see: View, preset: PresetName, side: Side) -> _Seen | None:
    if side is None:
        return None
    if isinstance(side, Fixed):
        return _Seen(side.value)
    name = side.knob if isinstance(side, IsOn) else side
    knob = PRESETS[preset].knobs()[name]
    ruled = knob.at(see) or Ruled(knob.value, knob.condition)
    why = f"{PRESETS[preset].label}'s {name}"
    if knob.rule is not None:
        why += f": {ruled.why}"
    on = isinstance(side, IsOn) and knob.here.ours(ruled.value) != "none"
    return _Seen(on if isinstance(side, IsOn) else ruled.value, why, knob)


def _cause(knobs: list[Knob]) -> Cause:
    if any(knob.rule is not None for knob in knobs):
        return "different rule"
    structural = any(knob.resolved_by == "data_structure" for knob in knobs)
    return "different structure" if structural else "different default"
