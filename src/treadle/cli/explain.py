"""`treadle explain`: every value in force, with its reason. Loads no weights."""

from __future__ import annotations

from typing import Any, get_args

import click
import msgspec

from treadle.cli.flags import SettingsCommand
from treadle.cli.options import ENGINE_SECTIONS, settings_options
from treadle.cli.serve import serve_settings
from treadle.config.settings import PresetName, ServerSettings

_PRESET = click.Choice(get_args(PresetName))


@click.command(cls=SettingsCommand)
@click.argument("model", default="demo", metavar="[MODEL]")
@click.option("--device", "device_name", help="A described device, such as h100-80gb or 24GB.")
@click.option("--diff", nargs=2, type=_PRESET, metavar="P Q", help="Only what differs in two.")
@click.option("--step", "step_text", metavar="SHAPE", help="What a step replays: 'decode 40'.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options(ServerSettings, *ENGINE_SECTIONS, without=("model",))
def explain(
    *,
    model: str,
    device_name: str | None,
    diff: tuple[PresetName, PresetName] | None,
    step_text: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Show what a server of MODEL would be, every value with its source and reason."""
    from treadle.config.device import described
    from treadle.config.explain import Case
    from treadle.config.explain import explain as explained
    from treadle.config.explain_text import show, show_differences
    from treadle.config.replay import parse_step
    from treadle.engine.build import model_facts, this_machine
    from treadle.models.loader import read_card
    from treadle.models.source import resolve_model

    settings, server = serve_settings({"model": model, **given})
    step = parse_step(step_text) if step_text else None
    case = Case(
        settings,
        model_facts(read_card(resolve_model(settings.model.model))),
        this_machine(),
        described(device_name) if device_name not in (None, "cpu") else None,
        server,
    )
    explanation = explained(case, step=step, diff=diff or None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation)).decode())
    else:
        lines = show_differences(explanation, *diff) if diff else show(explanation)
        click.echo("\n".join(lines))
