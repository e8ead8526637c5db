"""What differs between two presets in a case, by cause. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.config.presets import PRESETS
from treadle.config.presets.knob import Knob
from treadle.config.settings import PresetName
from treadle.config.topics import TOPICS, Topic
from treadle.config.view import View

Cause = Literal["different default", "different rule", "different structure"]
CAUSES: tuple[Cause, ...] = ("different default", "different rule", "different structure")


class Difference(msgspec.Struct, frozen=True):
    topic: str
    cause: Cause
    first: Any
    second: Any
    why: str
    """Knobs or axis, and what the values depend on."""


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
    pair = [(name, PRESETS[name].knobs().get(getattr(topic, name))) for name in (first, second)]
    if any(knob is None for _, knob in pair):
        return None
    knobs = [knob for _, knob in pair if knob is not None]
    ruled = [knob.at(see) for knob in knobs]
    values = [
        knob.value if given is None else given.value
        for knob, given in zip(knobs, ruled, strict=True)
    ]
    if values[0] == values[1]:
        return None
    why = "; ".join(
        f"{PRESETS[name].label}'s {getattr(topic, name)}"
        + (f": {given.why}" if given is not None and knob.rule is not None else "")
        for (name, _), knob, given in zip(pair, knobs, ruled, strict=True)
    )
    return Difference(topic.title, _cause(knobs), values[0], values[1], why)


def _cause(knobs: list[Knob]) -> Cause:
    layers = {knob.resolved_by for knob in knobs}
    if any(knob.rule is not None for knob in knobs):
        return "different rule"
    return "different structure" if layers & {"data_structure"} else "different default"
