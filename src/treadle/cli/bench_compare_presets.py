"""`treadle bench compare-presets`: whose policies suit which work, in this process."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import click

from treadle.bench.scenarios import NAMES
from treadle.cli.bench_options import count_option, engine_options, publish
from treadle.cli.flags import SettingsCommand
from treadle.cli.options import given_settings


@click.command("compare-presets", cls=SettingsCommand)
@engine_options("generation_config", "chat_template", "max_model_len", "kv_cache_memory_bytes")
@click.option("--presets", metavar="P,Q", help="Of these presets; by default of all.")
@click.option(
    "--vary", metavar="AXIS=A,B", help="Of one preset, or treadle's, with one axis or setting."
)
@click.option(
    "--scenario", "chosen", multiple=True, type=click.Choice(NAMES), help="By default all."
)
@count_option("--rounds", 3, "Runs of each on each scenario, in an order drawn anew.")
@click.option("--seed", type=click.IntRange(min=0), help="Of prompts and times; by default new.")
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a picture there.",
)
def bench_compare_presets(
    model: str,
    json_path: Path | None,
    *,
    presets: str | None,
    vary: str | None,
    plot_path: Path | None,
    **given: Any,
) -> None:
    """Compare policies on the same work: throughput, TTFT, TPOT, cache hits, preemptions.

    Each run has an engine of its own; memory for K and V is the scenario's, and alike for all."""
    from tqdm import tqdm

    from treadle.bench.compare_presets import compare_presets, variants_of
    from treadle.bench.compare_show import plot_comparison, show_comparison
    from treadle.bench.plot import require_matplotlib
    from treadle.bench.scenarios import SCENARIOS
    from treadle.models.source import resolve_model

    if plot_path is not None:
        require_matplotlib()
    scenarios = [SCENARIOS[name] for name in given.pop("chosen") or NAMES]
    rounds, seed = given.pop("rounds"), given.pop("seed")
    common = {"model": model, **given_settings(given)}
    variants = variants_of(common, presets, vary)
    with tqdm(
        total=rounds * len(scenarios) * len(variants), unit="run", disable=None, leave=False
    ) as bar:
        found = compare_presets(
            resolve_model(model),
            variants,
            scenarios,
            rounds=rounds,
            seed=secrets.randbelow(2**31) if seed is None else seed,
            progress=bar.update,
        )
    publish(found, list(show_comparison(found)), json_path)
    if plot_path is not None:
        plot_comparison(plot_path, found)
