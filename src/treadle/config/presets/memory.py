"""What rules know of a device's memory before a model is loaded."""

from __future__ import annotations

import msgspec

from treadle.config.kv_rules import Memory
from treadle.config.presets.knob import Ruled
from treadle.config.view import View


def total_bytes(see: View) -> int | None:
    """All memory there is; None where it cannot be read."""
    return see.machine.memory_bytes if see.device.kind == "cpu" else see.device.memory_bytes


def free_bytes(see: View) -> int | None:
    """A described device is empty; this machine is as it is now."""
    return see.machine.available_bytes if see.device.kind == "cpu" else see.device.memory_bytes


def of_free(see: View) -> Memory | None:
    """For rules that ask only for what is free. Devices that share layers have a part each."""
    free = free_bytes(see)
    if free is None:
        return None
    weights = -(-see.model.weights_bytes // see.device.count)
    return Memory(total_bytes=free, free_bytes=free, weights_bytes=weights)


def of_all(see: View) -> Memory | None:
    """For rules that begin with all there is. What other programs hold is among it."""
    total, memory = total_bytes(see), of_free(see)
    if total is None or memory is None:
        return None
    return msgspec.structs.replace(memory, total_bytes=total)


def described(see: View) -> str:
    """The device's memory, for a sentence."""
    mib = see.device.nominal_mib
    return "memory that cannot be read" if mib is None else f"a device of {mib / 1024:.1f} GiB"


def tensor_parallel(see: View) -> Ruled:
    """The devices that are described, which share each layer."""
    return Ruled(see.device.count, f"{see.device.count} described")


def own_type(see: View) -> str | None:
    """What "auto" makes of the KV type: the weights' own; quantised ones leave it open."""
    return see.model.weight_type if see.model.weight_type in ("f32", "f16", "bf16") else None
