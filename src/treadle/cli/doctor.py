"""`treadle doctor`: what this machine offers, and what treadle makes of it. Changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import click
import msgspec

FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
    *("avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)
"""Processor features that kernels care about, as Linux spells them; x86 first, then ARM."""

PACKAGES = ("treadle", "numpy", "msgspec", "tokenizers", "jinja2", "starlette", "uvicorn")


class Machine(msgspec.Struct, kw_only=True):
    cpu: str
    features: list[str]
    cores_online: int
    cores_usable: int
    """Left by the affinity mask and the control group's quota."""
    cores_allowed: list[int]
    memory_bytes: int
    available_bytes: int
    available_from: str
    system: str
    python: str
    packages: dict[str, str | None]


class Choice(msgspec.Struct, frozen=True):
    """A value that treadle would use here, and why."""

    value: object
    reason: str


class Use(msgspec.Struct, kw_only=True):
    kernels: str
    """Variant and threads, or what keeps them from being built."""
    kernels_ok: bool
    cache_folder: str
    demo_cached: bool
    settings: dict[str, Choice]
    """In force for the demo model; empty while it is not in the cache."""


class Report(msgspec.Struct):
    machine: Machine
    use: Use


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, as_json: bool) -> int:
    """Show what this machine offers and what treadle will use. Status 1 if it cannot run."""
    report = Report(examine_machine(), examine_use())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        click.echo("\n".join(_lines(report)))
    return 0 if report.use.kernels_ok else 1


def examine_machine(root: Path = Path("/")) -> Machine:
    from treadle.config.hardware import detect_hardware

    hardware = detect_hardware(root)
    return Machine(
        cpu=hardware.cpu,
        features=_features(root / "proc/cpuinfo"),
        cores_online=os.cpu_count() or 1,
        cores_usable=hardware.cores,
        cores_allowed=_allowed_cores(),
        memory_bytes=hardware.memory_bytes,
        available_bytes=hardware.available_bytes,
        available_from=hardware.available_from,
        system=platform.platform(),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
    )


def examine_use() -> Use:
    from treadle.models.demo import DEMO, cache_folder

    demo = cache_folder() / DEMO.file_name
    cached = demo.is_file() and demo.stat().st_size == DEMO.num_bytes
    kernels, works = _try_kernels()
    return Use(
        kernels=kernels,
        kernels_ok=works,
        cache_folder=str(cache_folder()),
        demo_cached=cached,
        settings=_settings_for(demo) if cached else {},
    )


def _try_kernels() -> tuple[str, bool]:
    """Build the native kernels, as an engine would; their description, or what is wrong."""
    from treadle.config.hardware import usable_cores
    from treadle.errors import StartError

    try:
        from treadle.kernels.native.backend import NativeBackend

        backend = NativeBackend(threads=usable_cores(), isa=None)
    except (ImportError, StartError) as error:
        return str(error), False
    description = backend.description
    backend.close()
    return description, True


def _settings_for(demo: Path) -> dict[str, Choice]:
    from treadle.config.resolve import resolve
    from treadle.config.settings import EngineSettings
    from treadle.engine.build import model_facts, this_machine
    from treadle.models.loader import read_card

    resolved = resolve(EngineSettings(), model_facts(read_card(demo)), this_machine())
    values = resolved.flat()
    return {
        name: Choice(values[name], reason.sentence) for name, reason in resolved.reasons.items()
    }


def _features(cpuinfo: Path) -> list[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            present = set(value.split())
            return [feature for feature in FEATURES if feature in present]
    return []


def _allowed_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _lines(report: Report) -> list[str]:
    machine, use = report.machine, report.use
    rows = [
        ("processor", machine.cpu),
        ("features", " ".join(machine.features) or "none known"),
        ("cores", f"{machine.cores_usable} usable of {machine.cores_online}"),
        ("affinity", _ranges(machine.cores_allowed)),
        (
            "memory",
            f"{_gib(machine.available_bytes)} left of {_gib(machine.memory_bytes)} "
            f"({machine.available_from})",
        ),
        ("system", machine.system),
        ("python", machine.python),
        *((name, version or "not installed") for name, version in machine.packages.items()),
        ("kernels", use.kernels if use.kernels_ok else f"NOT USABLE: {use.kernels}"),
        ("cache", use.cache_folder),
        ("demo model", "in the cache" if use.demo_cached else "not here yet: treadle pull demo"),
        *((name, f"{choice.value}  ({choice.reason})") for name, choice in use.settings.items()),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as "1-3,7"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
