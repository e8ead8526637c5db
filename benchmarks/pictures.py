"""A comparison as bars: one picture, a panel for each rate."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.result import Comparison, Row

COLUMNS = 2


def draw(folder: Path, found: Comparison) -> list[str]:
    """Names of the files written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in found.rows if any(one.values.get(row.key) for one in found.outcomes)]
    if not rows:
        return []
    num_lines = -(-len(rows) // COLUMNS)
    height = num_lines * (0.28 * len(found.outcomes) + 0.9)
    figure = Figure(figsize=(5 * COLUMNS, height), layout="constrained")
    panels = figure.subplots(num_lines, COLUMNS, squeeze=False).flat
    for row, axes in zip(rows, panels, strict=False):
        _panel(axes, found, row)
    for axes in list(panels)[len(rows) :]:
        axes.set_axis_off()
    slug = re.sub(r"[^a-z0-9]+", "-", found.title.lower()).strip("-")
    name = f"performance-{slug}.png"
    FigureCanvasAgg(figure).print_figure(folder / name, dpi=80)
    return [name]


def _panel(axes: object, found: Comparison, row: Row) -> None:
    """Medians with the lowest and highest round, and a line at the floor."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    outcomes = list(reversed(found.outcomes))
    for at, outcome in enumerate(outcomes):
        values, middle = outcome.values.get(row.key, []), outcome.median(row.key) or 0.0
        spread = [[middle - min(values)], [max(values) - middle]] if values else None
        color = "tab:blue" if outcome.kind.startswith("treadle") else "tab:gray"
        axes.barh(at, middle, xerr=spread, color=color)
    axes.set_yticks(range(len(outcomes)), [one.name for one in outcomes], fontsize=8)
    if (floor := found.floor(row, found.outcomes[0])) is not None:
        axes.axvline(floor[0], color="tab:red", linestyle="--")
    better = "less is better" if row.is_cost else "more is better"
    axes.set_title(row.name, fontsize=9)
    axes.set_xlabel(f"{row.unit}, {better}", fontsize=8)
