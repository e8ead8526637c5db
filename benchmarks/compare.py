"""Treadle beside other engines on the same machine, model, prompts and threads, taking turns.

    python -m benchmarks.compare --peer treadle --peer llama-server=/path/to/llama-server

Each round starts each engine afresh, asks it every workload, and stops it, so that slow minutes of
the machine meet all of them. benchmarks/README.md tells how to install the peers. What was found
goes to a file of JSON after every engine's turn, of which `python -m benchmarks.performance` makes
the page.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks import tasks
from benchmarks.floors import measure_machine, peak_rate, shape_of
from benchmarks.peers import Peer, Session, Setting, folder_mb
from benchmarks.result import Comparison, Outcome, Row
from benchmarks.running import Unable
from benchmarks.tasks import Task
from treadle.bench.burners import Burners
from treadle.bench.drive import Plan
from treadle.bench.floors import read_bandwidth
from treadle.bench.workloads import workload
from treadle.errors import TreadleError
from treadle.models.loader import read_card
from treadle.models.source import resolve_model
from treadle.text.load import load_text

FIRST_ANSWER = Plan(
    workload=workload("single", num_requests=1, input_len=5, output_len=8), num_warmup=0
)


@click.command()
@click.option("--model", default="demo", show_default=True, help="A GGUF file, which all can read.")
@click.option("--peer", "peers", multiple=True, metavar="NAME[=WHERE]", required=True)
@click.option("--model-of", multiple=True, metavar="NAME=PATH", help="A peer's own form of it.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--rounds-of", multiple=True, metavar="NAME=N", help="Fewer for a peer that is slow.")
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--only", multiple=True, type=click.Choice([one.key for one in tasks.ALL]))
@click.option("--title", help="The model's name by default.")
@click.option("--quick", is_flag=True, help="All in little, to see that it runs.")
@click.option(
    "--json", "path", type=click.Path(path_type=Path), default=Path("build/comparison.json")
)
def main(peers: tuple[str, ...], only: tuple[str, ...], path: Path, **given: Any) -> None:
    """Compare engines. The first peer is what the others' ratios are of."""
    forms = _pairs("--model-of", given["model_of"])
    chosen = [one for one in tasks.ALL if not only or one.key in only]
    compare(
        [Peer.parse(text).reading(forms) for text in peers],
        [one.reduced() for one in chosen] if given["quick"] else chosen,
        model=given["model"],
        rounds=Rounds(given["rounds"], _pairs("--rounds-of", given["rounds_of"])),
        threads=given["threads"],
        file=File(path, given["title"], " ".join(["python -m benchmarks.compare", *sys.argv[1:]])),
    )


class Rounds:
    """How often each peer is started."""

    def __init__(self, most: int, by_name: dict[str, str] | None = None) -> None:
        self.most = most
        self._by_name = {name: int(count) for name, count in (by_name or {}).items()}

    def has(self, name: str, round_number: int) -> bool:
        return round_number < self._by_name.get(name, self.most)


class File(msgspec.Struct, frozen=True):
    """Where a comparison is kept, and what it says of itself."""

    path: Path
    title: str | None
    command: str


def compare(
    peers: Sequence[Peer],
    chosen: Sequence[Task],
    *,
    model: str,
    rounds: Rounds,
    threads: int,
    file: File,
) -> None:
    source = resolve_model(model)
    card = read_card(source)
    shape = shape_of(card)
    setting = Setting(source, _ordinary_ids(source), threads)
    found = Comparison(
        title=file.title or card.name or source.stem,
        command=file.command,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        model=source.name,
        shape=shape,
        peak=peak_rate(measure_machine(threads), shape),
        rounds=rounds.most,
        threads=threads,
        rows=rows_of(chosen),
        outcomes=[_outcome(peer, source) for peer in peers],
    )
    for round_number in range(rounds.most):
        for peer, outcome in zip(peers, found.outcomes, strict=True):
            if rounds.has(peer.name, round_number):
                _measure(peer, outcome, setting, chosen, seed=1000 * round_number)
                file.path.parent.mkdir(parents=True, exist_ok=True)
                file.path.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


def rows_of(chosen: Sequence[Task]) -> list[Row]:
    return [
        Row(
            key=figure.key,
            task=task.key,
            name=figure.name,
            unit=figure.unit,
            is_cost=figure.is_cost,
            work=task.work,
            num_counted=figure.num_counted,
        )
        for task in chosen
        for figure in task.figures
    ]


def _outcome(peer: Peer, source: Path) -> Outcome:
    size, version = peer.installed()
    form = peer.model or source
    return Outcome(
        name=peer.name,
        kind=peer.kind,
        form=form.name,
        form_mb=folder_mb(form),
        version=version,
        installed_mb=size,
    )


def _measure(
    peer: Peer, outcome: Outcome, setting: Setting, chosen: Sequence[Task], seed: int
) -> None:
    """One start of one engine; what it cannot do is noted, and leaves the rest alone."""
    try:
        with peer.session(setting) as session, Burners(1) as burners:
            _first_answer(outcome, session)
            for at, task in enumerate(chosen):
                burning = burners.burning() if task.burners else contextlib.nullcontext()
                with _noted(outcome, task.key), burning:
                    _ask(outcome, session, task, seed + at, setting.threads)
            if session.watch is not None:
                outcome.peak_mib.append(session.watch.stop())
    except Unable as error:
        outcome.faults["start"] = str(error)
        click.echo(f"{peer.name}: {error}", err=True)


def _first_answer(outcome: Outcome, session: Session) -> None:
    if session.ready_s is not None:
        with _noted(outcome, "first answer"):
            answered = session.running.ask(FIRST_ANSWER)
            outcome.ready_s.append(session.ready_s)
            outcome.first_answer_s.append(session.ready_s + answered.duration_s)
            click.echo(f"{outcome.name}: ready after {session.ready_s:.1f} s", err=True)


def _ask(outcome: Outcome, session: Session, task: Task, seed: int, threads: int) -> None:
    """The read bandwidth of some machines flips within seconds: it is measured on both sides."""
    before = read_bandwidth(threads)
    found = session.running.ask(task.plan(seed))
    outcome.reads.setdefault(task.key, []).append((before + read_bandwidth(threads)) / 2)
    for figure in task.figures:
        value = figure.of(found)
        outcome.values.setdefault(figure.key, []).append(value)
        click.echo(f"{outcome.name}: {figure.name}: {value:,.1f} {figure.unit}", err=True)


@contextlib.contextmanager
def _noted(outcome: Outcome, key: str) -> Iterator[None]:
    try:
        yield
    except (Unable, TreadleError) as error:
        outcome.faults[key] = str(error)
        click.echo(f"{outcome.name}: {key}: {error}", err=True)


def _ordinary_ids(source: Path) -> list[int]:
    tokenizer = load_text(source, with_defaults=False).tokenizer
    return [token for token in range(tokenizer.vocab_size) if not tokenizer.is_special(token)]


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for name, value in pairs.items():
        if not value:
            raise click.UsageError(f"{option} {name}: NAME=VALUE")
    return pairs


if __name__ == "__main__":
    main()
