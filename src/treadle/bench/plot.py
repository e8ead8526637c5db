"""Pictures of a report, by matplotlib, which the extra `bench` installs."""

from __future__ import annotations

from pathlib import Path

from treadle.bench.completion import Measured
from treadle.bench.serve import Report
from treadle.errors import StartError

_INCHES = (10, 7)


def require_matplotlib() -> None:
    """Said before anything is measured."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise StartError(
            "--plot needs matplotlib: pip install 'treadle[bench]', or leave it out"
        ) from None


def write_plot(path: Path, report: Report) -> None:
    """Above, when each request was sent, had its first token and ended; below, how the two times
    of a request are distributed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    good = [one for one in report.requests if one.error is None]
    figure = Figure(figsize=_INCHES, layout="constrained")
    timeline, shares = figure.subplots(2)
    workload = report.plan.workload
    figure.suptitle(f"{report.server.model}: {workload.name}, {len(good)} requests")
    for at, one in enumerate(sorted(good, key=lambda one: one.sent_s)):
        first, end = one.sent_s + (one.ttft_s or 0), one.sent_s + (one.latency_s or 0)
        timeline.plot((one.sent_s, first), (at, at), color="tab:orange", linewidth=2)
        timeline.plot((first, end), (at, at), color="tab:blue", linewidth=2)
    timeline.set(xlabel="seconds: waiting for the first token, then answering", ylabel="request")
    for label, values in _distributions(good):
        part = [(place + 1) / len(values) for place in range(len(values))]
        shares.step(values, part, where="post", label=label)
    shares.set(xlabel="milliseconds", ylabel="share of requests", ylim=(0, 1))
    shares.set_xscale("log")
    shares.grid(visible=True, alpha=0.3)
    if good:
        shares.legend()
    try:
        FigureCanvasAgg(figure).print_figure(path)
    except (OSError, ValueError) as error:  # a folder that is not there; an unknown suffix
        raise StartError(f"{path}: the plot cannot be written: {error}") from None


def _distributions(good: list[Measured]) -> list[tuple[str, list[float]]]:
    """Sorted values by name, without those that no request has."""
    times = {
        "TTFT": [one.ttft_s for one in good],
        "TPOT": [one.tpot_s for one in good],
        "E2EL": [one.latency_s for one in good],
    }
    sorted_ms = {
        name: sorted(value * 1000 for value in values if value is not None)
        for name, values in times.items()
    }
    return [(name, values) for name, values in sorted_ms.items() if values]
