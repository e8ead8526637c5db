"""Speed of the engine in process on one model: load, one stream, prefill, many streams.

    python benchmarks/engine.py [--model demo] [--repeat 3] [--json] [setting=value …]

Prints the median of the repeats, and for one stream the share of the floor: bytes of weights read
per token, divided by the memory bandwidth measured in the same run. Settings are those of the
command line, such as max_num_batched_tokens=256.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec
import numpy as np

from treadle.config.settings import engine_settings
from treadle.engine.build import build_engine
from treadle.engine.loop import Engine
from treadle.models.loader import read_card
from treadle.models.source import resolve_model
from treadle.wire.messages import Delta, Generate
from treadle.wire.sampling_params import SamplingParams


class Figure(msgspec.Struct):
    name: str
    median: float
    low: float
    high: float
    unit: str


class Load:
    """Requests of random tokens, never twice the same prompt."""

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._rng = random.Random(0)
        self._serial = 0

    def run(self, streams: int, num_in: int, num_out: int) -> tuple[float, float]:
        """Seconds until every request has its first token, and from then to the end."""
        params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True)
        began = time.perf_counter()
        for _ in range(streams):
            prompt = [self._rng.randrange(self._vocab_size) for _ in range(num_in)]
            self._serial += 1
            self._engine.handle(
                Generate(request_id=str(self._serial), prompt=prompt, params=params, seed=0)
            )
        started: dict[str, float] = {}
        while self._engine.has_work:
            for message in self._engine.step():
                assert isinstance(message, Delta)
                started.setdefault(message.request_id, time.perf_counter())
        ended = time.perf_counter()
        last_start = max(started.values())
        return last_start - began, ended - last_start


def measure(name: str, unit: str, repeat: int, once: Callable[[], float]) -> Figure:
    values = sorted(once() for _ in range(repeat))
    return Figure(name, statistics.median(values), values[0], values[-1], unit)


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read from memory together."""
    arrays = [np.ones(2**25, np.float64) for _ in range(threads)]  # 256 MiB each
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(4):
            began = time.perf_counter()
            list(pool.map(np.max, arrays))
            best = max(best, sum(a.nbytes for a in arrays) / (time.perf_counter() - began))
    return best


@click.command()
@click.option("--model", default="demo", show_default=True)
@click.option("--repeat", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True)
@click.argument("settings", nargs=-1)
def main(model: str, repeat: int, as_json: bool, settings: tuple[str, ...]) -> None:
    path: Path = resolve_model(model)
    chosen = dict(setting.split("=", 1) for setting in settings)
    began = time.perf_counter()
    lines: list[str] = []
    engine = build_engine(
        engine_settings({"model": model, **chosen}),
        path,
        lambda p: lines.append(f"{p.phase}: {p.seconds:.2f} s, {p.detail}"),
    )
    loading = time.perf_counter() - began
    card = read_card(path)
    load = Load(engine, card.vocab_size)
    load.run(1, 8, 8)
    figures = [
        Figure("load", loading, loading, loading, "s"),
        measure("1 stream, 32 in 128 out", "tok/s", repeat, lambda: 127 / load.run(1, 32, 128)[1]),
        measure("prefill 512", "tok/s", repeat, lambda: 512 / load.run(1, 512, 1)[0]),
        measure("prefill 2048", "tok/s", repeat, lambda: 2048 / load.run(1, 2048, 1)[0]),
        measure(
            "32 streams, 128 in 128 out",
            "tok/s out",
            repeat,
            lambda: 32 * 128 / sum(load.run(32, 128, 128)),
        ),
    ]
    bandwidth = read_bandwidth(2)
    engine.close()
    if as_json:
        click.echo(msgspec.json.encode(figures).decode())
        return
    click.echo("\n".join(lines))
    for figure in figures:
        spread = f"{figure.low:10.1f} … {figure.high:.1f}"
        click.echo(f"{figure.name:30} {figure.median:10.1f} {figure.unit:10} {spread}")
    floor = bandwidth / card.weight_bytes
    click.echo(
        f"memory {bandwidth / 1e9:.0f} GB/s: one stream can reach {floor:.0f} tok/s,"
        f" {figures[1].median / floor:.0%} reached"
    )


if __name__ == "__main__":
    main()
