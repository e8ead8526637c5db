"""`treadle bench startup`: from nothing to the first answer, in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.bench_options import count_option, engine_options, publish
from treadle.cli.flags import SettingsCommand
from treadle.cli.options import given_settings


@click.command("startup", cls=SettingsCommand)
@engine_options()
@count_option("--repeat", 3, "Starts of each kind.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds that one start may take.",
)
def bench_startup(
    model: str, json_path: Path | None, repeat: int, timeout: float, **given: Any
) -> None:
    """Measure how long MODEL takes to be ready, and to its first tokens."""
    from treadle.bench.startup import measure_startup, show_startup
    from treadle.config.given import engine_settings
    from treadle.models.source import resolve_model

    chosen = given_settings({"model": model, **given})
    engine_settings(chosen)  # wrong ones are told before anything starts
    settings = {name: chosen[name] for name in given if name in chosen}
    resolve_model(model)  # a download is not part of a start
    report = measure_startup(model, settings, repeat, timeout)
    publish(report, show_startup(report), json_path)
