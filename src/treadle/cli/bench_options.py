"""What the subcommands of `treadle bench` that run an engine share: its options and the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from treadle.cli.options import ENGINE_SECTIONS, settings_options

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def engine_options(*without: str) -> Decorator:
    """MODEL, --json, and the engine's settings but for those that the measurement chooses."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = settings_options(
            *ENGINE_SECTIONS, without=("model", "served_model_name", *without)
        )(command)
        command = click.option(
            "--json",
            "json_path",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the report, with all that was measured, to this file.",
        )(command)
        return click.argument("model", default="demo", metavar="[MODEL]")(command)

    return decorate


def count_option(name: str, default: int, text: str, *, least: int = 1) -> Decorator:
    kind = click.IntRange(min=least)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def publish(report: msgspec.Struct, lines: Sequence[str], json_path: Path | None) -> None:
    from treadle.bench.report import write_json

    if json_path is not None:
        write_json(json_path, report)
    click.echo("\n".join(lines))
