"""A preset as data: a table of an engine's knobs, under the engine's own names.

A knob has the value that the engine's source states; where that hangs on a device, a model or the
entry point, a pure rule beside it gives the value for a case. `here` says what treadle makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from treadle.config.axes import AXES, Axis
from treadle.config.device import Device
from treadle.config.view import View

State = Literal["applied", "overridden", "absent", "not applicable"]
"""overridden: treadle takes it, and something stronger than the preset says otherwise."""


class Ruled(NamedTuple):
    """A knob's value in a case, and what it depends on."""

    value: Any
    why: str


class Here(NamedTuple):
    """What treadle has in a knob's place. Of setting and axis at most one is there."""

    state: State
    remark: str = ""
    setting: str = ""
    """The setting that takes the knob's value."""
    as_ours: Mapping[Any, Any] | None = None
    """The knob's values → the setting's, where they differ."""
    axis: Axis | None = None
    needs_cuda: bool = False

    def state_on(self, device: Device) -> State:
        if self.needs_cuda and device.kind == "cpu":
            return "not applicable"
        return self.state

    def ours(self, value: Any) -> Any:
        return value if self.as_ours is None else self.as_ours[value]


def sets(setting: str, as_ours: Mapping[Any, Any] | None = None) -> Here:
    """The knob's value is the setting's; `as_ours` translates it."""
    return Here("applied", setting=setting, as_ours=as_ours)


def axis(name: str) -> Here:
    """The knob chooses on an axis on which treadle may have one way only."""
    return Here("absent", axis=AXES[name])


def same(remark: str) -> Here:
    """treadle does as the knob's default says, whatever is set."""
    return Here("applied", remark)


def absent(remark: str) -> Here:
    """treadle does not have it yet, or goes another way."""
    return Here("absent", remark)


def cuda(remark: str) -> Here:
    """It is about CUDA devices, for which treadle has no kernels yet."""
    return Here("absent", remark, needs_cuda=True)


def outside(remark: str) -> Here:
    """It is not about the engine, or not for a preset to decide."""
    return Here("not applicable", remark)


class Knob(NamedTuple):
    name: str
    value: Any
    """As the source states it: a value, values by condition, or a rule in words."""
    unit: str
    resolved_by: str | None
    """The layer in which the engine decides it."""
    condition: str
    here: Here
    rule: Callable[[View], Ruled | None] | None = None
    """None where the case leaves the value open."""

    def at(self, see: View) -> Ruled | None:
        return Ruled(self.value, self.condition) if self.rule is None else self.rule(see)


class Preset(NamedTuple):
    """An engine's defaults."""

    label: str
    axes: Mapping[str, str]
    """Axis → its choice; an axis that is left out is settled by knobs alone."""
    groups: Mapping[str, tuple[Knob, ...]]

    def knobs(self) -> dict[str, Knob]:
        """By group and name: kv_budget.block_size."""
        return {
            f"{group}.{knob.name}": knob for group, knobs in self.groups.items() for knob in knobs
        }

    def setter(self, setting: str) -> tuple[str, Knob] | None:
        """The knob that sets one of treadle's settings."""
        return next(
            ((name, knob) for name, knob in self.knobs().items() if knob.here.setting == setting),
            None,
        )
