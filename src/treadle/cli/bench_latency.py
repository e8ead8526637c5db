"""`treadle bench latency`: one batch at a time, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.bench_options import count_option, engine_options, publish
from treadle.cli.flags import SettingsCommand
from treadle.cli.options import given_settings


@click.command("latency", cls=SettingsCommand)
@engine_options("generation_config", "chat_template")
@count_option("--input-len", 32, "Tokens of each prompt.")
@count_option("--output-len", 128, "Tokens of each answer.")
@count_option("--batch-size", 1, "Requests at once.")
@count_option("--iterations", 10, "Batches measured, one after the other.")
@count_option("--warmup", 2, "Batches before them.", least=0)
@count_option("--burners", 0, "Measure also beside this many processes that burn a core.", least=0)
def bench_latency(model: str, json_path: Path | None, **given: Any) -> None:
    """Measure how fast MODEL answers a batch, in this process."""
    from treadle.bench.latency import Batch, measure_latency, show_latency
    from treadle.config.given import engine_settings
    from treadle.models.source import resolve_model

    batch = Batch(**{name: given.pop(name) for name in Batch.__struct_fields__})
    settings = engine_settings(given_settings({"model": model, **given}))
    report = measure_latency(settings, resolve_model(model), batch)
    publish(report, show_latency(report), json_path)
