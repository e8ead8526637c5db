"""`treadle chat`: a conversation in the terminal, or through pipes.

The answers come from an engine in this process, or from any OpenAI-compatible server. Keeps the
history; the answerer keeps none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

import click

from treadle.cli.flags import SettingsCommand
from treadle.cli.generate import show
from treadle.cli.options import ENGINE_SECTIONS, given_settings, settings_options
from treadle.cli.sampling import sampling_options, take_params
from treadle.errors import InvalidRequest, PromptTooLong, RequestError
from treadle.wire.sampling_params import SamplingParams

Message = dict[str, str]

HELP = "/exit ends, /clear forgets the conversation."

TEMPERATURE, TOP_P = 0.7, 0.95
"""Unless asked otherwise: small models that always take the likeliest token run in circles."""


class Answerer(Protocol):
    """Continues a conversation."""

    name: str

    def answer(self, messages: list[Message]) -> Generator[str, None, None]: ...

    def close(self) -> None: ...


@click.command(cls=SettingsCommand)
@click.argument("model", default=None, required=False)
@click.option("--url", help="Talk to the OpenAI-compatible server at this address.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key for the server at --url.")
@click.option("--system", help="What the model is told before the conversation.")
@sampling_options
@settings_options(*ENGINE_SECTIONS, without=("model", "served_model_name"))
def chat(
    model: str | None,
    url: str | None,
    *,
    api_key: str | None,
    system: str | None,
    **given: Any,
) -> int:
    """Chat with MODEL: a .gguf file, a model's directory, a hub id, 'demo', or with --url a name
    that the server knows."""
    params = take_params(given, temperature=TEMPERATURE, top_p=TOP_P)
    answerer: Answerer
    if url is None:
        answerer = _LocalAnswerer(model, params, given_settings(given))
    else:
        from treadle.cli.remote import RemoteAnswerer

        answerer = RemoteAnswerer(url, model, api_key=api_key, params=params)
    with contextlib.closing(answerer):
        return converse(answerer, system)


def converse(answerer: Answerer, system: str | None) -> int:
    """Read turns until the input ends; the exit status, 1 if any turn found no answer."""
    if sys.stdin is None:
        raise InvalidRequest("there is no standard input to read the conversation from")
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    history = list(opening)
    answered = True
    if sys.stdin.isatty():
        click.echo(f"{answerer.name}. {HELP}", err=True)
    for line in _turns():
        match line:
            case "":
                continue
            case "/exit" | "/quit" | "/bye":
                break
            case "/clear":
                history = list(opening)
            case "/help":
                click.echo(HELP, err=True)
            case _ if line.startswith("/") and line[1:].isalpha():
                click.echo(f"treadle: there is no command {line}; {HELP}", err=True)
            case _:
                answered &= _exchange(answerer, history, line)
    return 0 if answered else 1


def _exchange(answerer: Answerer, history: list[Message], line: str) -> bool:
    """One question and its answer; what cannot be answered leaves no trace in the history."""
    history.append({"role": "user", "content": line})
    try:
        text = _answer(answerer, history)
    except RequestError as error:
        click.echo(f"treadle: {error.message}", err=True)
        history.pop()
        return False
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        history.pop()
        return True
    history.append({"role": "assistant", "content": text})
    return True


def _answer(answerer: Answerer, history: list[Message]) -> str:
    """The answer; when the window is full, the oldest exchanges make room for it."""
    while True:
        try:
            with contextlib.closing(answerer.answer(history)) as pieces:
                return show(pieces)
        except RequestError as error:
            first = next(i for i, message in enumerate(history) if message["role"] == "user")
            if error.code != PromptTooLong.code or first == len(history) - 1:
                raise
            del history[first : first + 2]
            click.echo("(the window is full: the oldest exchange was dropped)", err=True)


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


class _LocalAnswerer:
    """An engine in this process."""

    def __init__(
        self, model: str | None, params: SamplingParams, settings: Mapping[str, Any]
    ) -> None:
        from treadle.engine.llm import LLM

        self._params = params
        self._llm = LLM(model, **settings)
        self.name = self._llm.model

    def answer(self, messages: list[Message]) -> Generator[str, None, None]:
        for piece in self._llm.generate_stream("", self._params, chat=messages):
            yield piece.text

    def close(self) -> None:
        self._llm.close()
