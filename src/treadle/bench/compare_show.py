"""A comparison for people: tables of 80 columns, and a picture. Works nothing out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.bench.compare_presets import Comparison, Median
from treadle.bench.report import WIDTH, heading, number
from treadle.errors import StartError

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("output", "tok/s", "output_throughput"),
    ("TTFT", "p50", "ttft_p50_ms"),
    ("TTFT", "p99", "ttft_p99_ms"),
    ("TPOT", "p50", "tpot_p50_ms"),
    ("TPOT", "p99", "tpot_p99_ms"),
    ("gap", "p99", "gap_p99_ms"),
    ("hits", "", "hit_rate"),
    ("gave", "way", "preemptions"),
)
_PANELS = (
    ("tokens a second", (("", "output_throughput"),)),
    ("TTFT, ms", (("p50", "ttft_p50_ms"), ("p99", "ttft_p99_ms"))),
    ("TPOT, ms", (("p50", "tpot_p50_ms"), ("p99", "tpot_p99_ms"))),
)
_WIDTH = 7
_INCHES = (4.2, 2.1)


def show_comparison(found: Comparison) -> Iterator[str]:
    yield heading("Policies on the same work")
    yield f"{found.model}, {found.kernels}"
    rounds = "1 round" if found.rounds == 1 else f"medians of {found.rounds} rounds"
    yield f"{rounds}, seed {found.seed}, by {found.varied}; times in milliseconds"
    names = [variant.name for variant in found.variants]
    label = min(max(len(name) for name in names), WIDTH - _WIDTH * len(_COLUMNS))
    for scenario in found.scenarios:
        yield ""
        yield f"{scenario.name}: {scenario.about}"
        for line in (0, 1):
            yield " " * label + "".join(f"{column[line]:>{_WIDTH}}" for column in _COLUMNS)
        for name in names:
            yield f"{name[:label]:<{label}}{_cells(found.median(scenario.name, name))}"
        if not found.alike(scenario.name):
            yield "  answers differ between variants"


def _cells(row: Median) -> str:
    cells = []
    for *_, field in _COLUMNS:
        value = getattr(row, field)
        if field == "hit_rate":
            text = f"{value:.0%}"
        elif field == "preemptions":
            text = f"{value:g}"
        else:
            text = number(round(value)) if value >= 100 else f"{value:.1f}"
        cells.append(f"{text:>{_WIDTH}}")
    return "".join(cells)


def plot_comparison(path: Path, found: Comparison) -> None:
    """A row for each scenario: throughput, time to the first token, time per token."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = len(found.scenarios), len(_PANELS)
    figure = Figure(figsize=(_INCHES[0] * columns, _INCHES[1] * rows + 1), layout="constrained")
    figure.suptitle(f"{found.model}: {found.rounds} rounds, medians")
    axes = figure.subplots(rows, columns, squeeze=False)
    for at, scenario in enumerate(found.scenarios):
        for panel, (title, bars) in zip(axes[at], _PANELS, strict=True):
            _bars(panel, found, scenario.name, bars)
            panel.set_title(title if at == 0 else "", fontsize=10)
        axes[at][0].set_ylabel(scenario.name)
    try:
        FigureCanvasAgg(figure).print_figure(path, dpi=110)
    except (OSError, ValueError) as error:  # a folder that is not there; an unknown suffix
        raise StartError(f"{path}: the plot cannot be written: {error}") from None


def _bars(panel: Any, found: Comparison, scenario: str, bars: tuple[tuple[str, str], ...]) -> None:
    """The larger behind the smaller."""
    names = [variant.name for variant in found.variants]
    colours = ("tab:blue", "tab:orange")
    for (label, field), colour in reversed(list(zip(bars, colours, strict=False))):
        values = [getattr(found.median(scenario, name), field) for name in names]
        panel.barh(names, values, color=colour, label=label or None)
    panel.invert_yaxis()
    panel.tick_params(labelsize=8)
    if len(bars) > 1:
        panel.legend(fontsize=7)
