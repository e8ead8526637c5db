"""A described device: what rules ask of a processor that may not be here.

Presets and plans are pure functions over a Device, so they answer for a card one does not own as
they would on it. Reads nothing of this machine; `hardware` does.
"""

from __future__ import annotations

import difflib
import re
from typing import Literal

import msgspec

from treadle.config.byte_size import GIB, MIB, parse_bytes
from treadle.errors import StartError

_SELLERS_GB = 10**9
_SEVERAL = re.compile(r"\s*([1-9][0-9]{0,3})\s*[x×*]\s*(.*[a-zA-Z].*)")

DeviceKind = Literal["cpu", "cuda"]


class Device(msgspec.Struct, frozen=True):
    """What is None is not known, and rules then take what they take when they cannot read it."""

    name: str
    kind: DeviceKind
    memory_bytes: int | None
    """Of one device, as its driver reports it."""
    capability: tuple[int, int] | None = None
    """CUDA's number for the generation: (8, 0) is an A100, (9, 0) an H100."""
    count: int = 1
    """Of such devices, which share each layer (tensor parallel)."""

    @property
    def title(self) -> str:
        return self.name if self.count == 1 else f"{self.count} × {self.name}"

    @property
    def nominal_mib(self) -> int | None:
        """The MiB that a rule with thresholds sees. A whole number of decimal gigabytes is a size
        as sellers write it: an "80 GB" card has about 80 GiB."""
        if self.memory_bytes is None:
            return None
        sold, rest = divmod(self.memory_bytes, _SELLERS_GB)
        return sold * 1024 if sold and not rest else self.memory_bytes // MIB

    def has_gib(self, gib: float) -> bool | None:
        """Whether it has at least this much memory; None where that is not known."""
        mib = self.nominal_mib
        return None if mib is None else mib >= gib * 1024


def _card(name: str, reported_mib: int, capability: tuple[int, int]) -> Device:
    return Device(name, "cuda", reported_mib * MIB, capability)


KNOWN: dict[str, Device] = {
    device.name: device
    for device in (
        Device("cpu", "cpu", None),
        Device("unknown-gpu", "cuda", None),
        # The totals that nvidia-smi prints.
        _card("l4-24gb", 23034, (8, 9)),
        _card("rtx4090-24gb", 24564, (8, 9)),
        _card("a100-40gb", 40960, (8, 0)),
        _card("l40s-48gb", 46068, (8, 9)),
        _card("a100-80gb", 81920, (8, 0)),
        _card("h100-80gb", 81559, (9, 0)),
        _card("h200-141gb", 143771, (9, 0)),
        _card("b200-180gb", 183359, (10, 0)),
    )
}


def described(name: str) -> Device:
    """The device of a known name, or a CUDA device of an amount of memory such as "80GB" or
    "79.6GiB", whose generation is not known; "4xh100-80gb" are four that share each layer. Raises
    StartError for anything else."""
    several = _SEVERAL.fullmatch(name)
    if several is not None:
        one = described(several[2])
        if one.kind == "cpu":
            raise StartError(f"device is {name!r}; only devices that are not here can be several")
        return msgspec.structs.replace(one, count=int(several[1]))
    known = KNOWN.get(name.lower())
    if known is not None:
        return known
    try:
        memory = parse_bytes(name, "device")
    except StartError:
        near = difflib.get_close_matches(name.lower(), KNOWN, n=1)
        meant = [known for known in KNOWN if name and known.startswith(name.lower())] or near
        hint = f"did you mean {' or '.join(meant)}? Known are" if meant else "known are"
        raise StartError(
            f"there is no device {name!r}; {hint} {', '.join(KNOWN)}, or an amount of memory"
            " such as 80GB, and 4x80GB for four"
        ) from None
    if memory < GIB:
        raise StartError(
            f"device is {name!r}; a device has at least a GiB of memory, written 80GB or 80GiB"
        )
    return Device(name, "cuda", memory)
