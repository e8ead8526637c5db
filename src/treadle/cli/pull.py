"""`treadle pull`: have a model on disk before it is needed. Prints its path on stdout, so that
scripts can use it; progress goes to stderr."""

from __future__ import annotations

import os

import click

from treadle.models.source import resolve_model


@click.command()
@click.argument("model")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar on stderr.")
def pull(model: str, progress: bool) -> None:
    """Fetch MODEL and print where it is.

    MODEL is 'demo' (SmolLM2-135M-Instruct), 'gemma' (Gemma 3 270M, under Google's Gemma terms of
    use), an id on the Hugging Face hub such as org/name or, for one of its GGUF files,
    org/name:Q4_K_M, or a path to check for.
    """
    # As bytes, because a path need not be text.
    click.echo(os.fsencode(resolve_model(model, progress)))
