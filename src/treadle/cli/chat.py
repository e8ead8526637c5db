"""`treadle chat`: a conversation in the terminal, or through pipes.

The answers come from an engine in this process, or from any OpenAI-compatible server. Keeps the
history; the answerer keeps none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import Protocol

import click

from treadle.cli.generate import show
from treadle.errors import RequestError
from treadle.wire.sampling_params import SamplingParams

Message = dict[str, str]

HELP = "/exit ends, /clear forgets the conversation."


class Answerer(Protocol):
    """Continues a conversation."""

    name: str

    def answer(self, messages: list[Message]) -> Generator[str, None, None]: ...

    def close(self) -> None: ...


@click.command()
@click.argument("model", default=None, required=False)
@click.option("--url", help="Talk to the OpenAI-compatible server at this address.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key for the server at --url.")
@click.option("--system", help="What the model is told before the conversation.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--max-tokens", type=int, help="Most tokens per answer; by default the window.")
def chat(
    model: str | None,
    url: str | None,
    *,
    api_key: str | None,
    system: str | None,
    temperature: float,
    max_tokens: int | None,
) -> None:
    """Chat with MODEL: a .gguf file, 'demo', or with --url a name that the server knows."""
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    with contextlib.closing(_answerer(model, url, api_key, params)) as answerer:
        converse(answerer, system)


def converse(answerer: Answerer, system: str | None) -> None:
    """Read turns until the input ends."""
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    history = list(opening)
    if sys.stdin.isatty():
        click.echo(f"{answerer.name}. {HELP}", err=True)
    for line in _turns():
        if line == "/exit":
            return
        if line == "/clear":
            history = list(opening)
        elif line:
            _exchange(answerer, history, line)


def _exchange(answerer: Answerer, history: list[Message], line: str) -> None:
    """One question and its answer; what cannot be answered leaves no trace in the history."""
    history.append({"role": "user", "content": line})
    pieces = answerer.answer(history)
    try:
        with contextlib.closing(pieces):
            text = show(pieces)
    except RequestError as error:
        click.echo(f"treadle: {error.message}", err=True)
        history.pop()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        click.echo(err=True)
        history.pop()
    else:
        history.append({"role": "assistant", "content": text})


def _turns() -> Iterator[str]:
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.strip()
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() line editing)
    with contextlib.suppress(EOFError):
        while True:
            yield input("> ").strip()


def _answerer(
    model: str | None, url: str | None, api_key: str | None, params: SamplingParams
) -> Answerer:
    if url is not None:
        from treadle.cli.remote import RemoteAnswerer

        return RemoteAnswerer(url, model, api_key=api_key, params=params)
    return _LocalAnswerer(model or "demo", params)


class _LocalAnswerer:
    """An engine in this process."""

    def __init__(self, model: str, params: SamplingParams) -> None:
        from treadle.engine.llm import LLM

        self.name = model
        self._params = params
        self._llm = LLM(model)

    def answer(self, messages: list[Message]) -> Generator[str, None, None]:
        for piece in self._llm.generate_stream("", self._params, chat=messages):
            yield piece.text

    def close(self) -> None:
        self._llm.close()
