"""What this machine offers a process: cores, memory, processor features.

The one place that reads the operating system for configuration; the rest takes a `Hardware`, which
may as well describe a machine that is not here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from treadle.config.cgroups import ControlGroups

_BF16_FLAGS = {
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    "avx512_bf16",
}
"""What Linux calls the features that `avx512bf16`, the variant of the native kernels, asks for."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as a process sees it, after affinity masks and control groups."""

    cpu: str
    cores: int
    """Cores this process may keep busy."""
    multiplies_bf16: bool
    """Whether it has the instructions of the kernels that multiply bf16 (avx512bf16)."""
    memory_bytes: int
    """Memory the process may use in all, itself and its neighbours in the control group."""
    available_bytes: int
    """Memory that is left of it now."""
    available_from: str
    """Which limit `available_bytes` comes from, for people."""
    variants: tuple[str, ...] = ()
    """Variants of the native kernels that its processor runs, best first."""


def detect_hardware(root: Path = Path("/"), variants: Sequence[str] = ()) -> Hardware:
    """Describe this machine. `root` lets tests stand in another /proc and /sys; which variants of
    the kernels it runs, only they can say."""
    memory = _meminfo(root)
    total, available, source = memory["MemTotal"], memory["MemAvailable"], "free memory"
    for limit, used in ControlGroups(root).memory_limits():
        total = min(total, limit)
        if limit - used < available:
            available, source = max(limit - used, 0), "the control group's limit"
    return Hardware(
        cpu=_cpu_line(root, "model name") or "unknown processor",
        cores=usable_cores(root),
        multiplies_bf16=set(_cpu_line(root, "flags").split()) >= _BF16_FLAGS,
        memory_bytes=total,
        available_bytes=available,
        available_from=source,
        variants=tuple(variants),
    )


def usable_cores(root: Path = Path("/")) -> int:
    """Cores left by the affinity mask and the control groups' quotas, rounded up, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *ControlGroups(root).cpu_quotas()])))


def _cpu_line(root: Path, name: str) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return ""


def _meminfo(root: Path) -> dict[str, int]:
    values = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            values[name] = int(rest.split()[0]) * 1024
    fallback = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"MemTotal": fallback, "MemAvailable": fallback // 2, **values}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
