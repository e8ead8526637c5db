"""`treadle pull`: have a model on disk before it is needed. Prints the file's path on stdout, so
that scripts can use it; progress goes to stderr."""

from __future__ import annotations

import click

from treadle.models.source import resolve_model


@click.command()
@click.argument("model")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar on stderr.")
def pull(model: str, progress: bool) -> None:
    """Fetch MODEL ('demo', or a .gguf file to check for) and print where it is."""
    click.echo(resolve_model(model, progress))
