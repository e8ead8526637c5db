"""Treadle beside other engines on the same machine, model, prompts and threads, taking turns.

    python -m benchmarks.compare --peer treadle --peer llama-server=/path/to/llama-server

Each round starts each engine afresh, asks it every workload, and stops it, so that slow minutes of
the machine meet all of them. benchmarks/README.md tells how to install the peers. Writes
docs/performance.md and pictures; --out puts them elsewhere.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.floors import Work
from benchmarks.peers import Peer, Session, Setting, Unable
from benchmarks.performance import Comparison, Outcome, Task, write
from treadle.bench.drive import Plan
from treadle.bench.figures import Figures
from treadle.bench.workloads import Name, workload
from treadle.errors import TreadleError
from treadle.models.loader import read_card
from treadle.models.source import resolve_model


def _decode_rate(found: Figures) -> float:
    assert found.tpot_ms is not None
    return 1000 / found.tpot_ms.p50


def _prefill_rate(found: Figures) -> float:
    assert found.ttft_ms is not None
    return found.total_input_tokens / found.completed / found.ttft_ms.p50 * 1000


def _output_rate(found: Figures) -> float:
    return found.output_throughput


def _total_rate(found: Figures) -> float:
    return found.total_throughput


Rate = Callable[[Figures], float]


class Measure(msgspec.Struct, frozen=True):
    """A row of the table."""

    task: Task
    rate: Rate
    name: Name
    sizes: dict[str, int]
    cached_prefix: bool = False

    def plan(self, seed: int, warmup: int = 1) -> Plan:
        return Plan(
            workload=workload(self.name, seed=seed, **self.sizes),
            num_warmup=warmup,
            cached_prefix=self.cached_prefix,
        )


_SHARED = {"num_requests": 32, "prefix_len": 1024, "input_len": 32, "output_len": 32}

MEASURES = [
    Measure(
        Task("stream", "one stream, 32 in, 128 out", "tok/s out", Work(0, 0, 1, 1), 1),
        _decode_rate,
        "single",
        {"num_requests": 5, "input_len": 32, "output_len": 128},
    ),
    Measure(
        Task("prefill-512", "prompt of 512", "tok/s in", Work(512, 1, 0, 1), 512),
        _prefill_rate,
        "single",
        {"num_requests": 5, "input_len": 512, "output_len": 1},
    ),
    Measure(
        Task("prefill-2048", "prompt of 2,048", "tok/s in", Work(2048, 1, 0, 1), 2048),
        _prefill_rate,
        "single",
        {"num_requests": 3, "input_len": 2048, "output_len": 1},
    ),
    Measure(
        Task(
            "streams-32",
            "32 streams, 128 in, 128 out",
            "tok/s out",
            Work(32 * 128, 32, 127, 32),
            32 * 128,
        ),
        _output_rate,
        "concurrent",
        {"num_requests": 32, "concurrency": 32, "input_len": 128, "output_len": 128},
    ),
    Measure(
        Task(
            "shared-cold",
            "32 share 1,024 + 32 in, 32 out, cold",
            "tok/s",
            Work(1024 + 32 * 32, 32, 31, 32),
            32 * (1056 + 32),
        ),
        _total_rate,
        "shared-prefix",
        _SHARED,
    ),
    Measure(
        Task(
            "shared-cached",
            "the same, prefix cached",
            "tok/s",
            Work(32 * 32, 32, 31, 32),
            32 * (1056 + 32),
        ),
        _total_rate,
        "shared-prefix",
        _SHARED,
        cached_prefix=True,
    ),
]


@click.command()
@click.option("--model", default="demo", show_default=True, help="A GGUF file, which all can read.")
@click.option("--peer", "peers", multiple=True, metavar="NAME[=WHERE]", required=True)
@click.option("--model-of", multiple=True, metavar="NAME=PATH", help="A peer's own form of it.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--only", multiple=True, type=click.Choice([one.task.key for one in MEASURES]), help="Repeat."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs"), show_default=True)
def main(model: str, peers: tuple[str, ...], model_of: tuple[str, ...], **given: Any) -> None:
    """Compare engines. The first peer is what the others' ratios are of."""
    rounds, threads, only = given["rounds"], given["threads"], given["only"]
    path = resolve_model(model)
    card = read_card(path)
    setting = Setting(path, card.vocab_size, threads)
    chosen = [one for one in MEASURES if not only or one.task.key in only]
    forms = dict(text.split("=", 1) for text in model_of)
    outcomes = [Outcome(peer=Peer.parse(text).reading(forms)) for text in peers]
    for round_number in range(rounds):
        for outcome in outcomes:
            _measure(outcome, setting, chosen, seed=1000 * round_number)
    for outcome in outcomes:
        outcome.installed_mb, outcome.version = outcome.peer.installed()
    comparison = Comparison(
        command=" ".join(["python -m benchmarks.compare", *sys.argv[1:]]),
        model=path.name,
        card=card,
        rounds=rounds,
        threads=threads,
        tasks=[one.task for one in chosen],
        outcomes=outcomes,
    )
    write(given["out"], comparison)


def _measure(outcome: Outcome, setting: Setting, chosen: list[Measure], seed: int) -> None:
    """One start of one engine; what it cannot do is noted, and leaves the rest alone."""
    try:
        with outcome.peer.session(setting) as session:
            for at, one in enumerate(chosen):
                with _noted(outcome, one.task.key):
                    rate = one.rate(session.running.ask(one.plan(seed + at)))
                    outcome.rates.setdefault(one.task.key, []).append(rate)
                    say = f"{outcome.peer.name}: {one.task.name}: {rate:,.1f} {one.task.unit}"
                    click.echo(say, err=True)
            _note_costs(outcome, session)
    except Unable as error:
        outcome.faults["start"] = str(error)
        click.echo(f"{outcome.peer.name}: {error}", err=True)


def _note_costs(outcome: Outcome, session: Session) -> None:
    if session.ready_s is not None:
        outcome.ready_s.append(session.ready_s)
    if session.watch is not None:
        outcome.peak_mib.append(session.watch.stop())
    if outcome.ready_s:
        click.echo(
            f"{outcome.peer.name}: ready after {statistics.median(outcome.ready_s):.1f} s", err=True
        )


@contextlib.contextmanager
def _noted(outcome: Outcome, key: str) -> Iterator[None]:
    try:
        yield
    except (Unable, TreadleError) as error:
        outcome.faults[key] = str(error)
        click.echo(f"{outcome.peer.name}: {key}: {error}", err=True)


if __name__ == "__main__":
    main()
