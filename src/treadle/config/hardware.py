"""What this machine offers a process: cores, memory, processor features.

The one place that reads the operating system for configuration; the rest takes a `Hardware`, which
may as well describe a machine that is not here.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

_UNLIMITED = 1 << 60


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as a process sees it, after affinity masks and control groups."""

    cpu: str
    cores: int
    """Cores this process may keep busy."""
    memory_bytes: int
    """Memory the process may use in all, itself and its neighbours in the control group."""
    available_bytes: int
    """Memory that is left of it now."""
    available_from: str
    """Which limit `available_bytes` comes from, for people."""


def detect_hardware(root: Path = Path("/")) -> Hardware:
    """Describe this machine. `root` lets tests stand in another /proc and /sys."""
    memory = _meminfo(root)
    total, available, source = memory["MemTotal"], memory["MemAvailable"], "free memory"
    limit, used = _cgroup_memory(root)
    if limit is not None:
        total = min(total, limit)
        if limit - used < available:
            available, source = max(limit - used, 0), "the control group's limit"
    return Hardware(
        cpu=_cpu_name(root),
        cores=usable_cores(root),
        memory_bytes=total,
        available_bytes=available,
        available_from=source,
    )


def usable_cores(root: Path = Path("/")) -> int:
    """Cores left by the affinity mask and the control group's quota, rounded up, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores(root)
    cores = allowed or 1
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _cpu_name(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def _meminfo(root: Path) -> dict[str, int]:
    values = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            values[name] = int(rest.split()[0]) * 1024
    fallback = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"MemTotal": fallback, "MemAvailable": fallback // 2, **values}


def _cgroup_memory(root: Path) -> tuple[int | None, int]:
    """(limit, used without reclaimable page cache) in bytes; limit None when there is none."""
    base = root / "sys/fs/cgroup"
    names = ("memory.max", "memory.current", "inactive_file")
    if not (base / names[0]).exists():
        base = root / "sys/fs/cgroup/memory"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit = _number(_read(base / names[0]))
    if limit is None or limit >= _UNLIMITED:
        return None, 0
    used = _number(_read(base / names[1])) or 0
    cache = 0
    for line in _read(base / "memory.stat").splitlines():
        if line.startswith(names[2] + " "):
            cache = int(line.split()[1])
    return limit, max(used - cache, 0)


def _cgroup_cores(root: Path) -> float | None:
    quota, _, period = _read(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not period:
        quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    q, p = _number(quota), _number(period)
    return q / p if q and p and q > 0 else None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
