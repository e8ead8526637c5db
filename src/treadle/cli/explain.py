"""`treadle explain`: every value in force, with its reason. Loads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from treadle.cli.flags import SettingsCommand
from treadle.cli.options import ENGINE_SECTIONS, settings_options
from treadle.cli.serve import serve_settings
from treadle.config.settings import PresetName, ServerSettings
from treadle.errors import StartError

if TYPE_CHECKING:
    from treadle.config.device import Device

_PRESET = click.Choice(get_args(PresetName))


@click.command(cls=SettingsCommand)
@click.argument("model", default="demo", metavar="[MODEL]")
@click.option("--device", "device_name", help="A described device, such as h100-80gb or 24GB.")
@click.option(
    *("--tp", "--tp-size", "--tensor-parallel-size", "tensor_parallel"),
    type=click.IntRange(1, 1024),
    default=1,
    help="Such devices that share each layer; or --device 4xh100-80gb.",
)
@click.option("--diff", nargs=2, type=_PRESET, metavar="P Q", help="Only what differs in two.")
@click.option("--step", "step_text", metavar="SHAPE", help="What a step replays: 'decode 40'.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options(ServerSettings, *ENGINE_SECTIONS, without=("model",))
def explain(
    *,
    model: str,
    device_name: str | None,
    tensor_parallel: int,
    diff: tuple[PresetName, PresetName] | None,
    step_text: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Show what a server of MODEL would be, every value with its source and reason."""
    from treadle.cli.described import described_model
    from treadle.config.explain import Case
    from treadle.config.explain import explain as explained
    from treadle.config.explain_text import show, show_differences
    from treadle.config.replay import parse_step
    from treadle.engine.build import this_machine

    settings, server = serve_settings({"model": model, **given})
    step = parse_step(step_text) if step_text is not None else None
    device = _device(device_name, tensor_parallel)
    facts, remark = described_model(settings.model.model)
    case = Case(settings, facts, this_machine(), device, server, remark)
    explanation = explained(case, step=step, diff=diff or None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation)).decode())
    else:
        lines = show_differences(explanation, *diff) if diff else show(explanation)
        click.echo("\n".join(lines))


def _device(name: str | None, count: int) -> Device | None:
    """None for this machine."""
    from treadle.config.device import described

    if name is None or name.lower() == "cpu":
        if count > 1:
            raise StartError(
                f"tensor parallelism is {count}; name devices to explain it for with --device, such"
                " as h100-80gb"
            )
        return None
    device = described(name)
    if count > 1 and device.count not in (1, count):
        raise StartError(f"--device {name} and --tp {count} say different numbers of devices")
    return msgspec.structs.replace(device, count=max(count, device.count))
