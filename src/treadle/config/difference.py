"""What differs between two presets in a case, by cause. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from treadle.config.axes import in_force
from treadle.config.presets import PRESETS
from treadle.config.presets.knob import Knob, Ruled
from treadle.config.settings import PresetName
from treadle.config.topics import CAUSES, TOPICS, Cause, Fixed, Follows, IsOn, Side, Topic
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


class _Case(NamedTuple):
    """What is compared in it."""

    engines: View
    """What engines' rules see."""
    ours: View
    """Settled as treadle's own preset has it, and the settings that were given beside it."""


def differences(
    see: View, ours: View, first: PresetName, second: PresetName
) -> tuple[Difference, ...]:
    """By cause. An engine's side is what its preset states; treadle's is what is in force under
    `ours`, so that it follows every setting. A default differs where both engines merely state one;
    a rule, where either computes it from device, model or entry point; structure, where it is how
    an engine is made."""
    case = _Case(see, ours)
    found = [_difference(case, topic, first, second) for topic in TOPICS]
    return tuple(
        difference
        for cause in CAUSES
        for difference in found
        if difference is not None and difference.cause == cause
    )


def _difference(
    case: _Case, topic: Topic, first: PresetName, second: PresetName
) -> Difference | None:
    if topic.axis:
        one, other = (_choice(case, name, topic.axis) for name in (first, second))
        cause: Cause = "different structure"
        if topic.axis == "overlap":
            cause = "different default"
        elif topic.axis == "kv_memory":
            cause = "different rule"
        return Difference(topic.title, cause, one, other, "") if one != other else None
    sides = [_side(case, name, getattr(topic, name)) for name in (first, second)]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides) or known[0].value == known[1].value:
        return None
    why = "; ".join(side.why for side in known if side.why)
    found = topic.cause or _cause([side.knob for side in known if side.knob is not None])
    return Difference(topic.title, found, known[0].value, known[1].value, why)


def _choice(case: _Case, preset: PresetName, axis: str) -> str:
    if preset == "treadle":
        return in_force(vars(case.ours.settled))[axis]
    return PRESETS[preset].axes[axis]


def _side(case: _Case, preset: PresetName, side: Side) -> _Seen | None:
    if side is None:
        return None
    if isinstance(side, Fixed):
        return _Seen(side.value)
    if isinstance(side, Follows):
        return _Seen(side.tell(case.ours.settled))
    name = side.knob if isinstance(side, IsOn) else side
    knob = PRESETS[preset].knobs()[name]
    ruled = knob.at(case.engines) or Ruled(knob.value, knob.condition)
    if preset == "treadle":
        value = vars(case.ours.settled)[knob.here.setting]
        ruled = Ruled(value, ruled.why if value == ruled.value else "as settings have it")
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
