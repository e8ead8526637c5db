"""The defaults of three engines, and ours: tables, one file each. Pure; nothing is read or run."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.config.presets import sglang, treadle, trtllm, vllm
from treadle.config.presets.knob import Preset
from treadle.config.settings import PresetName, Source
from treadle.config.view import Choice, View

PRESETS: Mapping[PresetName, Preset] = {
    "treadle": treadle.PRESET,
    "vllm": vllm.PRESET,
    "sglang": sglang.PRESET,
    "trtllm": trtllm.PRESET,
}

DISPUTED = frozenset(
    knob.here.setting
    for name, preset in PRESETS.items()
    if name != "treadle"
    for knob in preset.knobs().values()
    if knob.here.setting
)
"""Settings that some engine's preset has a wish for."""


def wish(see: View, setting: str, *, of: PresetName | None = None) -> Choice:
    """What the preset would have for a setting; where it has no wish, what treadle would."""
    preset = of or (see.user.preset if setting in DISPUTED else "treadle")
    found = PRESETS[preset].setter(setting)
    ruled = found[1].at(see) if found else None
    if found is None or ruled is None:
        assert preset != "treadle", f"treadle's preset has no {setting}"
        return wish(see, setting, of="treadle")
    name, knob = found
    if preset == "treadle":
        source: Source = "default" if ruled.value == knob.value else "hardware"
        return Choice(ruled.value, source, ruled.why)
    sentence = f"{PRESETS[preset].label}'s {name}"
    if ruled.why != "always":
        sentence += f": {ruled.why}"
    return Choice(knob.here.ours(ruled.value), "preset", sentence)
