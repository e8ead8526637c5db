"""Which processes there are. The server knows before the rules run: `config.processes`."""

from __future__ import annotations

from treadle.config.presets import PRESETS, wish
from treadle.config.processes import BY_PRESET, layout
from treadle.config.rules.asked import asked_for
from treadle.config.view import Choice, View
from treadle.errors import StartError


def processes(see: View) -> Choice:
    asked = see.user.runtime.processes
    if see.user.usage == "offline":
        if asked is not None:
            raise StartError(f"processes is {asked}; only a server has more than the caller's")
        return Choice("in-process", "data structure", "the engine runs in the caller's process")
    layout(see.user)
    if asked is not None:
        return asked_for(see, "processes", asked)
    preset = see.user.preset
    if BY_PRESET[preset] == BY_PRESET["treadle"]:
        return Choice(BY_PRESET[preset], "default", "texts cost least where they are sent from")
    return Choice(BY_PRESET[preset], "preset", f"{PRESETS[preset].label}'s processes.single_gpu")


def num_postprocess_workers(see: View) -> Choice:
    asked = see.user.runtime.num_postprocess_workers
    if asked is not None:
        if see.user.usage == "offline":
            raise StartError(f"num_postprocess_workers is {asked}; only a server has any")
        return asked_for(see, "num_postprocess_workers", asked)
    if see.settled.processes != "proxy+worker":
        return Choice(0, "data structure", f"processes is {see.settled.processes}")
    return wish(see, "num_postprocess_workers")
