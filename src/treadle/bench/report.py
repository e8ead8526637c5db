"""Statistics and how they are shown: tables for terminals of 80 columns, JSON for programs.

Knows nothing of what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from treadle.errors import StartError

WIDTH = 80

_LABEL_WIDTH = 44


class Spread(msgspec.Struct, frozen=True):
    """Of one figure over many requests, in the unit of its values."""

    mean: float
    std: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float


def spread(values: Iterable[float]) -> Spread | None:
    """None of no values; the deviation is the population's, as numpy's."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(
        mean=statistics.fmean(ordered),
        std=statistics.pstdev(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        min=ordered[0],
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, linear between the two nearest, as numpy's default."""
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def number(value: float | int | None) -> str:
    """Whole numbers as they are, others with three or more significant digits."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 1000 else 0
    return f"{value:,.{digits}f}"


def heading(text: str) -> str:
    return f" {text} ".center(WIDTH, "=")


def lines_of(rows: Iterable[tuple[str, float | int | str | None]]) -> list[str]:
    """One line per row: what, and the value at the right edge of its column."""
    texts = [(what, value if isinstance(value, str) else number(value)) for what, value in rows]
    return [
        f"{what:<{_LABEL_WIDTH}}{text:>{WIDTH - max(_LABEL_WIDTH, len(what))}}"
        for what, text in texts
    ]


def end_of(text: str) -> str:
    """Its last part, if it is too long for a value: of a path, what tells it from others."""
    room = WIDTH - _LABEL_WIDTH
    return text if len(text) <= room else f"…{text[1 - room :]}"


def table(columns: Sequence[str], rows: Iterable[Sequence[float | int | str | None]]) -> list[str]:
    """The first column is left-aligned and takes what the others leave of the width."""
    cells = [list(columns)]
    cells += [[c if isinstance(c, str) else number(c) for c in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    # Columns of equal width read better where there is room.
    share = (WIDTH - widths[0]) // max(len(columns) - 1, 1)
    lines = []
    for row in cells:
        line = f"{row[0]:<{widths[0]}}"
        for at in range(1, len(columns)):
            line += f"{row[at]:>{max(widths[at] + 1, min(share, 14))}}"
        lines.append(line)
    return lines


def write_json(path: Path, report: msgspec.Struct) -> None:
    """Indented, so that two runs can be compared with diff."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=1)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise StartError(f"{path}: the report cannot be written: {error.strerror}") from None
