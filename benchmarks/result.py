"""What a comparison found, as it lies in a file of JSON between measuring and writing the page."""

from __future__ import annotations

import statistics

import msgspec

from benchmarks.floors import Shape, Work, least


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A figure: what it counts, and what its task computes at the least."""

    key: str
    task: str
    name: str
    unit: str
    is_cost: bool
    work: Work
    num_counted: int | None


class Outcome(msgspec.Struct, kw_only=True):
    """All that was found out about one engine, round by round."""

    name: str
    kind: str
    form: str
    """The file or folder that it read."""
    form_mb: float
    version: str = ""
    installed_mb: float | None = None
    values: dict[str, list[float]] = {}
    """By row."""
    reads: dict[str, list[float]] = {}
    """By task: bytes per second that the machine read just before and after, on average."""
    ready_s: list[float] = []
    first_answer_s: list[float] = []
    """From the start of the process to the eighth token of the first answer."""
    peak_mib: list[float] = []
    faults: dict[str, str] = {}

    def median(self, row: str) -> float | None:
        return median(self.values.get(row, []))


class Comparison(msgspec.Struct, kw_only=True):
    title: str
    command: str
    date: str
    model: str
    shape: Shape
    peak: float
    """Operations per second of the unit that the model's products use."""
    rounds: int
    threads: int
    rows: list[Row]
    outcomes: list[Outcome]

    def floor(self, row: Row, outcome: Outcome) -> tuple[float, str] | None:
        """The row's figure at its best, on the day that this engine had, and what binds it."""
        reads = outcome.reads.get(row.task)
        if row.num_counted is None or not reads:
            return None
        found = least(self.shape, row.work, statistics.fmean(reads), self.peak)
        if row.num_counted:
            return row.num_counted / found.seconds, found.bound
        return found.seconds, found.bound


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
