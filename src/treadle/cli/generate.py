"""`treadle generate`: one prompt, one answer, in this process. Only the answer goes to stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from treadle.cli.flags import SettingsCommand
from treadle.cli.options import ENGINE_SECTIONS, given_settings, settings_options
from treadle.cli.sampling import sampling_options, take_params
from treadle.errors import InvalidRequest

RAW_MAX_TOKENS = 128


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class _Timings(msgspec.Struct):
    load_s: float
    first_token_s: float
    total_s: float
    tokens_per_s: float | None
    """After the first token; None for answers of one token."""


class _Report(msgspec.Struct):
    text: str
    finish_reason: str | None
    usage: _Usage
    timings: _Timings


@click.command(cls=SettingsCommand)
@click.argument("prompt")
@click.option(
    "--model",
    show_default="demo",
    help="A .gguf file, a model's directory, a hub id, 'demo' or 'gemma'.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Continue the prompt as it is, without chat template; by at most "
    f"{RAW_MAX_TOKENS} tokens unless told otherwise.",
)
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@settings_options(*ENGINE_SECTIONS, without=("model", "served_model_name"))
def generate(prompt: str, *, model: str | None, raw: bool, as_json: bool, **given: Any) -> None:
    """Answer PROMPT; '-' reads it from standard input."""
    text = _read_stdin() if prompt == "-" else prompt
    # A text that is merely continued need not have an end.
    params = take_params(given, temperature=0.0, max_tokens=RAW_MAX_TOKENS if raw else None)
    began = time.monotonic()
    from treadle.engine.llm import LLM

    with contextlib.closing(LLM(model, **given_settings(given))) as llm:
        loaded = time.monotonic()
        chat = None if raw else [{"role": "user", "content": text}]
        pieces = llm.generate_stream(text, params, chat=chat)
        if as_json:
            report = _collect(pieces, load_s=loaded - began)
            click.echo(msgspec.json.encode(report).decode())
        else:
            show(piece.text for piece in pieces)


def _read_stdin() -> str:
    if sys.stdin is None:  # the shell closed it
        raise InvalidRequest("there is no standard input to read the prompt from")
    return sys.stdin.read()


def show(pieces: Iterable[str]) -> str:
    """Print an answer as it comes, and end its line, also when it breaks off; the whole text."""
    texts: list[str] = []
    try:
        for piece in pieces:
            texts.append(piece)
            click.echo(piece, nl=False)
            sys.stdout.flush()  # a pipe's reader sees it come, and keeps it if we are interrupted
    except OSError:  # nothing can be written
        raise
    except BaseException:
        click.echo("", nl=bool(texts) and not texts[-1].endswith("\n"))
        raise
    text = "".join(texts)
    click.echo("", nl=not text.endswith("\n"))
    return text


def _collect(pieces: Iterator[Any], load_s: float) -> _Report:
    began = time.monotonic()
    first: float | None = None
    texts: list[str] = []
    num_tokens = num_first = 0
    last = None
    for last in pieces:
        texts.append(last.text)
        num_tokens = last.num_tokens
        if first is None:
            first, num_first = time.monotonic(), num_tokens
    assert last is not None
    assert first is not None
    now = time.monotonic()
    return _Report(
        text="".join(texts),
        finish_reason=last.finish_reason,
        usage=_Usage(last.num_prompt_tokens, num_tokens, last.cached_tokens),
        timings=_Timings(
            load_s=load_s,
            first_token_s=first - began,
            total_s=now - began,
            tokens_per_s=(num_tokens - num_first) / (now - first)
            if num_tokens > num_first
            else None,
        ),
    )
