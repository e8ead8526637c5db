"""How many threads this process may keep busy: its affinity mask and its cgroups' CPU quotas.

Reads the machine when called, never at import.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_threads(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs in the affinity mask, or the quota rounded up where that is less; at least 1."""
    limits = [float(len(os.sched_getaffinity(0))), *_quotas(proc, cgroups)]
    return max(1, math.ceil(min(limits)))


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """The quota, in CPUs, of every cgroup this process is in, of either version."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, quota_of = cgroups, _quota_v2
        elif "cpu" in controllers.split(","):
            root, quota_of = cgroups / "cpu", _quota_v1
        else:
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            quota = quota_of(folder)
            if quota is not None:
                yield quota
            if folder == root:
                break


def _quota_v2(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if not quota or not period or int(quota) < 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
