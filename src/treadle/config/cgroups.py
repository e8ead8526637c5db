"""Linux control groups, both versions: what they leave this process of cores and memory.

A limit may stand at the process's own group or at any above it, so all are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT = 1 << 60
"""Version 1 writes a number about as large as a page counter holds."""


class ControlGroups:
    """Reads below `root`; missing files mean no limit."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._mount = root / "sys/fs/cgroup"
        self._own = _read(root / "proc/self/cgroup").splitlines() or ["0::/"]

    def cpu_quotas(self) -> Iterator[float]:
        """Cores that each limiting group grants."""
        for version, folder in self._folders("cpu"):
            if version == 2:
                quota, _, period = _read(folder / "cpu.max").partition(" ")
            else:
                quota = _read(folder / "cpu.cfs_quota_us")
                period = _read(folder / "cpu.cfs_period_us")
            cores, per = _number(quota), _number(period)
            if cores is not None and cores > 0 and per:
                yield cores / per

    def memory_limits(self) -> Iterator[tuple[int, int]]:
        """(limit, use) in bytes of each limiting group; page cache the kernel would drop is not
        in use."""
        for version, folder in self._folders("memory"):
            limit_name, use_name, cache_name = (
                ("memory.max", "memory.current", "inactive_file")
                if version == 2
                else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            )
            limit = _number(_read(folder / limit_name))
            if limit is not None and limit < _NO_LIMIT:
                use = _number(_read(folder / use_name)) or 0
                yield limit, max(use - _stat(folder, cache_name), 0)

    def _folders(self, controller: str) -> Iterator[tuple[int, Path]]:
        """(version, folder) of this process's group of a controller and of all above it."""
        for line in self._own:
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                version, top = 2, self._mount
            elif controller in controllers.split(","):
                version, top = 1, self._mount / controller
            else:
                continue
            own = top / path.lstrip("/")
            for folder in (own, *own.parents):
                yield version, folder
                if folder == top:
                    break


def _stat(folder: Path, name: str) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
