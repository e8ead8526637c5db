"""Reading the machine: files of /proc and /sys as several systems have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle.config.hardware import detect_hardware, usable_cores
from treadle.kernels.native.backend import available_variants


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMORY = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n"}


def test_free_memory_counts_where_nothing_limits(tmp_path: Path) -> None:
    unlimited = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"}
    machine = detect_hardware(write(tmp_path, {**MEMORY, **unlimited}))
    assert (machine.memory_bytes, machine.available_bytes) == (1000 * 1024, 800 * 1024)
    assert machine.available_from == "free memory"


def test_the_control_group_counts_where_it_is_tighter(tmp_path: Path) -> None:
    """Cache that the kernel would drop is not in use."""
    limited = {
        "sys/fs/cgroup/memory.max": "500000\n",
        "sys/fs/cgroup/memory.current": "400000\n",
        "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 150000\n",
    }
    machine = detect_hardware(write(tmp_path, {**MEMORY, **limited}))
    assert (machine.memory_bytes, machine.available_bytes) == (500000, 250000)
    assert machine.available_from == "the control group's limit"


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    limited = {
        "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "500000\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "400000\n",
        "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    machine = detect_hardware(write(tmp_path, {**MEMORY, **limited}))
    assert machine.available_bytes == 200000


def test_processors_that_multiply_bf16(tmp_path: Path) -> None:
    others = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni"
    for flags, multiplies in (others, False), (f"{others} avx512_bf16 amx_bf16", True):
        cpu = f"vmx flags\t: ept\nmodel name\t: any\nflags\t\t: fpu {flags}\n"
        machine = detect_hardware(write(tmp_path, {**MEMORY, "proc/cpuinfo": cpu}))
        assert (machine.cpu, machine.multiplies_bf16) == ("any", multiplies)
    (tmp_path / "proc/cpuinfo").unlink()
    machine = detect_hardware(tmp_path)
    assert (machine.cpu, machine.multiplies_bf16) == ("unknown processor", False)


def test_the_machine_here_agrees_with_the_kernels() -> None:
    assert detect_hardware().multiplies_bf16 == ("avx512bf16" in available_variants())


@pytest.mark.parametrize(("quota", "cores"), [("max", 64), ("150000", 2), ("1000", 1)])
def test_a_quota_above_is_rounded_up_to_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    groups = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        "sys/fs/cgroup/outer/cpu.max": f"{quota} 100000\n",
    }
    assert usable_cores(write(tmp_path, groups)) == cores


def test_a_quota_of_the_older_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    groups = {
        "proc/self/cgroup": "3:cpu,cpuacct:/box\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
    }
    assert usable_cores(write(tmp_path, groups)) == 3
    write(tmp_path, {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "-1\n"})
    assert usable_cores(tmp_path) == 8


def test_this_machine_can_be_read() -> None:
    machine = detect_hardware()
    assert machine.cores >= 1
    assert 0 < machine.available_bytes <= machine.memory_bytes
