"""Writes a comparison down: docs/performance.md and its pictures. Measures only the machine."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.floors import Work, least_s, measure_machine, operation, peak_rate
from benchmarks.peers import Peer
from treadle.bench.floors import Machine
from treadle.models.card import ModelCard


class Task(NamedTuple):
    key: str
    name: str
    unit: str
    work: Work
    num_counted: int
    """Tokens that the unit counts in so much work."""

    def floor(self, machine: Machine, card: ModelCard) -> float:
        return self.num_counted / least_s(machine, card, self.work)


class Outcome(msgspec.Struct, kw_only=True):
    """All that was found out about one engine, round by round."""

    peer: Peer
    version: str = ""
    installed_mb: float | None = None
    rates: dict[str, list[float]] = {}
    ready_s: list[float] = []
    peak_mib: list[float] = []
    faults: dict[str, str] = {}

    def rate(self, key: str) -> float | None:
        return _median(self.rates.get(key, []))


class Comparison(msgspec.Struct, kw_only=True):
    command: str
    model: str
    card: ModelCard
    rounds: int
    threads: int
    tasks: list[Task]
    outcomes: list[Outcome]


def write(folder: Path, found: Comparison) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    machine = measure_machine(found.threads)
    pictures = [_picture(folder, found, task, machine) for task in found.tasks]
    text = "\n\n".join(
        [
            "# Performance",
            _conditions(found, machine),
            "## Speed",
            "Medians of the rounds; in brackets the ratio to the first engine. A floor is what the"
            " machine allows: the weights' bytes by its read bandwidth where each token reads them"
            " all, the multiply-adds by its peak where prompts are computed. The last-level cache"
            " can beat the first.",
            _rates(found, machine),
            "## Costs",
            _costs(found),
            _faults(found),
            *(f"![{task.name}]({name})" for task, name in zip(found.tasks, pictures, strict=True)),
        ]
    )
    (folder / "performance.md").write_text(text.replace("\n\n\n\n", "\n\n") + "\n")


def _conditions(found: Comparison, machine: Machine) -> str:
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    rows = [
        f"- {datetime.now(UTC):%Y-%m-%d}, {processor}, {found.threads} threads,"
        f" {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"- {found.model}: {found.card.weight_bytes / 1e6:,.0f} MB of weights",
        f"- memory is read at {machine.read_bytes_per_s / 1e9:.1f} GB/s;"
        f" {peak_rate(machine, found.card) / 1e9:,.0f} G operations per second in"
        f" {operation(found.card)}",
        f"- rounds: {found.rounds}; each engine started afresh in each, taking turns",
        *map(_engine, found.outcomes),
        f"\n```\n{found.command}\n```",
    ]
    return "\n".join(rows)


def _engine(one: Outcome) -> str:
    form = f", which read {one.peer.model.name}" if one.peer.model is not None else ""
    return f"- {one.peer.name} {one.version}{form}"


def _rates(found: Comparison, machine: Machine) -> str:
    first = found.outcomes[0]

    def cell(outcome: Outcome, task: Task) -> str:
        rate, base = outcome.rate(task.key), first.rate(task.key)
        if rate is None:
            return "–"
        return f"{rate:,.0f}" + (f" ({rate / base:.2f})" if base and outcome is not first else "")

    rows = [
        [
            f"{task.name}, {task.unit}",
            *(cell(outcome, task) for outcome in found.outcomes),
            f"{task.floor(machine, found.card):,.0f}",
        ]
        for task in found.tasks
    ]
    return _markdown(["", *(one.peer.name for one in found.outcomes), "floor"], rows)


def _costs(found: Comparison) -> str:
    costs: list[tuple[str, Callable[[Outcome], float | None], str]] = [
        ("ready after, s", lambda one: _median(one.ready_s), ".2f"),
        (
            "peak resident memory of all its processes, MiB",
            lambda one: _median(one.peak_mib),
            ",.0f",
        ),
        ("installed, MB", lambda one: one.installed_mb, ",.0f"),
    ]
    rows = [
        [name, *(_or_dash(of(one), form) for one in found.outcomes)] for name, of, form in costs
    ]
    return _markdown(["", *(one.peer.name for one in found.outcomes)], rows)


def _faults(found: Comparison) -> str:
    lines = [
        f"- {one.peer.name}, {key}: {reason}"
        for one in found.outcomes
        for key, reason in one.faults.items()
    ]
    return "\n".join(["What could not be measured:", "", *lines]) if lines else ""


def _picture(folder: Path, found: Comparison, task: Task, machine: Machine) -> str:
    """Bars of the medians with the lowest and highest round, and a line at the floor."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.6 * len(found.outcomes) + 1.4), layout="constrained")
    axes = figure.subplots()
    for at, outcome in enumerate(reversed(found.outcomes)):
        values = outcome.rates.get(task.key, [])
        middle = _median(values) or 0.0
        spread = [[middle - min(values)], [max(values) - middle]] if values else None
        axes.barh(at, middle, xerr=spread, color="tab:blue")
    axes.set_yticks(range(len(found.outcomes)), [o.peer.name for o in reversed(found.outcomes)])
    axes.axvline(task.floor(machine, found.card), color="tab:red", linestyle="--", label="floor")
    axes.legend()
    axes.set(xlabel=task.unit, title=task.name)
    name = f"performance-{task.key}.png"
    FigureCanvasAgg(figure).print_figure(folder / name)
    return name


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
