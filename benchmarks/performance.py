"""Writes comparisons down: docs/performance.md and its pictures, of files that compare.py wrote.

    python -m benchmarks.performance build/performance/*.json

Measures nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.pictures import draw
from benchmarks.result import Comparison, Outcome, Row, median
from treadle.bench.startup import StartupReport
from treadle.bench.startup_child import NUM_TOKENS

SETTINGS = {
    "treadle": "its server over HTTP, all settings at their defaults but the threads",
    "treadle_engine": "the same engine in process: no HTTP, no text",
    "llama_cpp": "C API in process, one batch over all sequences, flash attention; what prompts"
    " share is found by the driver, computed once and lent",
    "llama-server": "its server over HTTP, 32 slots over one pool, flash attention",
    "openvino_genai": "ContinuousBatchingPipeline in process, prefix caching, latency hint, pinned"
    " threads, activations quantised by 64",
    "vllm": "its server over HTTP, bfloat16, compiled, threads bound to the cores, prefix caching",
    "transformers": "PyTorch in process, bfloat16, a loop of its own over one batch",
}

LEGEND = (
    "Medians of the rounds; in brackets the ratio to the first engine. ↑: more is better, ↓: less"
    " is. The floor is the best that the machine allows: weights and KV by the read bandwidth that"
    " was measured just before and after (bytes), multiply-adds of the matrix products by their"
    " measured peak (operations); attention's operations and everything else count as nothing."
    " *reached* is the first engine's share of it; engines that read the same file have their own"
    " where memory's speed decides. Engines in process pay nothing for HTTP."
)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--startup", type=click.Path(exists=True, path_type=Path), help="Of bench startup.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs"), show_default=True)
def main(files: tuple[Path, ...], startup: Path | None, out: Path) -> None:
    """Write the page of the comparisons in FILES, the most important first."""
    found = [msgspec.json.decode(path.read_bytes(), type=Comparison) for path in files]
    report = None
    if startup is not None:
        report = msgspec.json.decode(startup.read_bytes(), type=StartupReport)
    write(out, found, report)


def write(folder: Path, found: Sequence[Comparison], startup: StartupReport | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sections = [_section(folder, one) for one in found]
    parts = ["# Performance", LEGEND, _machine(found), *sections]
    if startup is not None:
        parts.append(_startup(startup))
    parts.append("How to measure it again: [benchmarks/README.md](../benchmarks/README.md).")
    (folder / "performance.md").write_text("\n\n".join(filter(None, parts)) + "\n")


def _machine(found: Sequence[Comparison]) -> str:
    names = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    reads = [
        value / 1e9
        for one in found
        for outcome in one.outcomes
        for values in outcome.reads.values()
        for value in values
    ]
    spread = f"{min(reads):.0f} to {max(reads):.0f} GB/s" if reads else "an unknown rate"
    processor = next(names, platform.processor())
    return "\n".join(
        [
            f"- {found[0].date}, {processor}, {platform.system()} {platform.release()},"
            f" Python {platform.python_version()}; {found[0].threads} threads for every engine",
            f"- memory was read at {spread}, differing from second to second",
            "- each engine was started afresh in every round, taking turns; the same prompts of"
            " random tokens, greedy, no end before the length asked for, every answer's tokens"
            " counted",
        ]
    )


def _section(folder: Path, found: Comparison) -> str:
    unit = "bytes" if found.shape.on_bytes else "floats"
    pictures = draw(folder, found)
    parts = [
        f"## {found.title}",
        f"`{found.model}`: a step reads {found.shape.weight_bytes / 1e6:,.0f} MB of weights; the"
        f" peak is {found.peak / 1e9:,.0f} G operations per second in multiply-adds of {unit}."
        f" Rounds: {found.rounds}.",
        _rates(found),
        _costs(found),
        _engines(found),
        _faults(found),
        f"```\n{found.command}\n```",
        *(f"![{found.title}]({name})" for name in pictures),
    ]
    return "\n\n".join(filter(None, parts))


def _rates(found: Comparison) -> str:
    first = found.outcomes[0]
    rows = [
        [
            f"{row.name}, {row.unit} {'↓' if row.is_cost else '↑'}",
            *(_cell(row, outcome, first) for outcome in found.outcomes),
            *_floor_cells(found, row, first),
        ]
        for row in found.rows
    ]
    rows += [_shares(found, row) for row in found.rows if _is_bound_by_bytes(found, row)]
    rows += [_slow_down(found)] if first.median("disturbed") else []
    return _markdown(["", *(one.name for one in found.outcomes), "floor", "reached"], rows)


def _cell(row: Row, outcome: Outcome, first: Outcome) -> str:
    value, base = outcome.median(row.key), first.median(row.key)
    if value is None:
        return "–"
    ratio = f" ({value / base:.2f})" if base and outcome is not first else ""
    return number(value) + ratio


def _floor_cells(found: Comparison, row: Row, first: Outcome) -> list[str]:
    floor, value = found.floor(row, first), first.median(row.key)
    if floor is None:
        return ["", ""]
    best, bound = floor
    if value is None:
        return [f"{number(best)} ({bound})", "–"]
    share = best / value if row.is_cost else value / best
    return [f"{number(best)} ({bound})", f"{share:.0%}"]


def _is_bound_by_bytes(found: Comparison, row: Row) -> bool:
    floor = found.floor(row, found.outcomes[0])
    return floor is not None and floor[1] == "bytes"


def _shares(found: Comparison, row: Row) -> list[str]:
    """Each engine had its own moment of a memory whose speed flips, so each has its own floor."""

    def cell(one: Outcome) -> str:
        value, floor = one.median(row.key), found.floor(row, one)
        if value is None or floor is None or one.form != found.model:
            return "–"
        return f"{value / floor[0]:.0%}"

    return [f"{row.name}: share of its own floor ↑", *map(cell, found.outcomes), "", ""]


def _slow_down(found: Comparison) -> list[str]:
    """What a burnt core costs: an engine that shares two cores fairly loses a third or a half."""

    def cell(one: Outcome) -> str:
        alone, beside = one.median("stream"), one.median("disturbed")
        return f"{alone / beside:.1f} ×" if alone and beside else "–"

    return ["slower by a burnt core ↓", *map(cell, found.outcomes), "", ""]


def _costs(found: Comparison) -> str:
    costs: list[tuple[str, Callable[[Outcome], float | None]]] = [
        ("ready after, s ↓", lambda one: median(one.ready_s)),
        ("first answer of 8 tokens after, s ↓", lambda one: median(one.first_answer_s)),
        ("peak resident memory of all its processes, MiB ↓", lambda one: median(one.peak_mib)),
        ("installed, MB ↓", lambda one: one.installed_mb),
    ]
    rows = [[name, *(_or_dash(of(one)) for one in found.outcomes)] for name, of in costs]
    return _markdown(["", *(one.name for one in found.outcomes)], rows)


def _engines(found: Comparison) -> str:
    rows = [
        [one.name, one.version, f"{one.form}, {one.form_mb:,.0f} MB", SETTINGS.get(one.kind, "")]
        for one in found.outcomes
    ]
    lines = _markdown(["engine", "version", "reads", "how"], rows)
    return lines.replace("---:", "---")


def _faults(found: Comparison) -> str:
    lines = [
        f"- {one.name}, {key}: {reason}"
        for one in found.outcomes
        for key, reason in one.faults.items()
    ]
    return "\n".join(["What could not be measured:", "", *lines]) if lines else ""


def _startup(report: StartupReport) -> str:
    """Of our own command line, to the end of the process."""
    serve = median([start.seconds for start in report.serve])
    generate = median([start.seconds for start in report.generate])
    assert serve is not None
    assert generate is not None
    return (
        f"## Starting\n\n`treadle serve {report.model}` is ready after {serve:.2f} s;"
        f" `treadle generate` of {NUM_TOKENS} tokens ends after {generate:.2f} s (median of"
        f" {report.repeat}, files in the system's cache)."
    )


def number(value: float) -> str:
    """Three digits that count, and no fewer before the point."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def _or_dash(value: float | None) -> str:
    return "–" if value is None else number(value)


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
