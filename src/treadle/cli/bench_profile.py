"""`treadle bench profile`: one forward pass, op by op, and the parts of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.bench_options import count_option, engine_options, publish
from treadle.cli.flags import SettingsCommand
from treadle.cli.options import given_settings


@click.command("profile", cls=SettingsCommand)
@engine_options("generation_config", "chat_template", "prefix_cache", "overlap_depth")
@count_option("--batch-size", 1, "Rows of the pass.")
@count_option("--context", 512, "Tokens of each row that have KV already.", least=0)
@count_option("--prefill", 1, "Tokens computed for each row; 1 is a decode step.")
@count_option("--passes", 16, "Passes measured; times are their medians.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Of the sampling; 0 takes the likeliest token.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Of the sampling.",
)
@click.option("--layers", is_flag=True, help="Show each layer's sums as well.")
def bench_profile(model: str, json_path: Path | None, layers: bool, **given: Any) -> None:
    """Measure where a forward pass of MODEL spends its time, against what the machine allows."""
    from treadle.bench.passes import Shape
    from treadle.bench.profile import measure_profile
    from treadle.bench.profile_tables import show_profile
    from treadle.config.given import engine_settings
    from treadle.errors import InvalidRequest
    from treadle.models.source import resolve_model
    from treadle.wire.sampling_params import SamplingParams

    shape = Shape(
        batch_size=given.pop("batch_size"),
        context=given.pop("context"),
        tokens=given.pop("prefill"),
        passes=given.pop("passes"),
    )
    if shape.context == 0 and shape.tokens == 1:
        raise InvalidRequest("a decode step needs context: --context is 0")
    sampling = SamplingParams(temperature=given.pop("temperature"), top_p=given.pop("top_p"))
    settings = engine_settings(given_settings({"model": model, **given}))
    report = measure_profile(settings, resolve_model(model), shape, sampling)
    publish(report, show_profile(report, layers=layers), json_path)
