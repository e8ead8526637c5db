"""`treadle bench throughput`: many requests at once, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.bench_options import count_option, engine_options, publish
from treadle.cli.flags import SettingsCommand
from treadle.cli.options import given_settings


@click.command("throughput", cls=SettingsCommand)
@engine_options("generation_config", "chat_template")
@count_option("--num-prompts", 32, "Requests, all at once.")
@count_option("--input-len", 128, "Tokens of each prompt, beside a shared prefix.")
@count_option("--output-len", 128, "Tokens of each answer.")
@count_option("--shared-prefix", 0, "Tokens that begin every prompt alike.", least=0)
def bench_throughput(model: str, json_path: Path | None, **given: Any) -> None:
    """Measure how fast MODEL answers many requests, in this process."""
    from treadle.bench.throughput import Requests, measure_throughput, show_throughput
    from treadle.config.given import engine_settings
    from treadle.models.source import resolve_model

    requests = Requests(**{name: given.pop(name) for name in Requests.__struct_fields__})
    settings = engine_settings(given_settings({"model": model, **given}))
    report = measure_throughput(settings, resolve_model(model), requests)
    publish(report, show_throughput(report), json_path)
