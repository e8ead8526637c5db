"""How far a preset's choices are here, axis by axis."""

from __future__ import annotations

import msgspec

from treadle.config.axes import AXES, in_force
from treadle.config.presets import PRESETS
from treadle.config.presets.knob import State
from treadle.config.resolve import Resolved


class AxisState(msgspec.Struct, frozen=True):
    """What the preset would have on an axis, and what runs."""

    axis: str
    title: str
    wish: str
    here: str
    state: State
    """absent: treadle does not have the wish yet, and `here` runs in its place."""


def axis_states(resolved: Resolved) -> tuple[AxisState, ...]:
    """The choices of the preset, unless a setting has chosen otherwise."""
    wishes, runs = PRESETS[resolved.preset].axes, in_force(resolved.flat())
    states = []
    for name, axis in AXES.items():
        wish = wishes[name]
        by_preset = not axis.setting or resolved.reasons[axis.setting].source in (
            *("preset", "default"),
        )
        absent = by_preset and runs[name] != wish and wish not in axis.here
        states.append(
            AxisState(name, axis.title, wish, runs[name], "absent" if absent else "applied")
        )
    return tuple(states)


def absent_axes(resolved: Resolved) -> str:
    """One line for the log: how much of a preset is not here; empty for treadle's own."""
    states = axis_states(resolved)
    missing = [state.title for state in states if state.state == "absent"]
    if not missing:
        return ""
    return (
        f"preset {resolved.preset}: {len(missing)} of {len(states)} axes are not here yet"
        f" ({', '.join(missing)}); treadle explain --preset {resolved.preset} says what runs"
    )
