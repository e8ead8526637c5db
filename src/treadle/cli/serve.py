"""`treadle serve`: puts the server's parts together. Imports what is heavy only after the port is
taken and the engine's process has begun its own imports."""

from __future__ import annotations

from typing import Any

import click

from treadle.cli.flags import SettingsCommand
from treadle.cli.options import ENGINE_SECTIONS, given_settings, settings_options
from treadle.config.given import SECTIONS, engine_settings, server_settings
from treadle.config.settings import EngineSettings, ModelSettings, ServerSettings


@click.command(cls=SettingsCommand)
@click.argument("model", default="demo", metavar="[MODEL]")
@settings_options(ServerSettings, *ENGINE_SECTIONS, without=("model",))
def serve(model: str, **given: Any) -> int:
    """Serve MODEL over an OpenAI-compatible HTTP API.

    MODEL is a .gguf file, a model's directory, a hub id, 'demo' or 'gemma'."""
    return run(*serve_settings({"model": model, **given}))


def serve_settings(options: dict[str, Any]) -> tuple[EngineSettings, ServerSettings]:
    """What a command with all of a server's options was given."""
    given = given_settings(options)
    server = {name: given.pop(name) for name in SECTIONS["server"] if name in given}
    settings = engine_settings({**given, "usage": "server"})
    return settings, server_settings(server, given.get("config"))


def run(settings: EngineSettings, server: ServerSettings) -> int:
    """Serve until a signal or the engine's end; the exit status."""
    from treadle.server.listen import is_local, listen, url_of
    from treadle.server.log import say

    listener = listen(server.host, server.port)
    say(f"listening on {url_of(listener)}, loading {settings.model.model}")
    if not (server.api_key or is_local(listener)):
        say("no API key is set: anybody who reaches it may use it")
    from treadle.config.processes import num_text_workers
    from treadle.engine import crew

    processes = crew.Crew(num_text_workers(settings))
    try:
        from treadle.models.source import resolve_model
        from treadle.server.serve import Launch, run_server

        launch = Launch(
            settings=settings,
            names=_names(settings.model),
            locate=lambda: resolve_model(settings.model.model),
            processes=processes,
            server=server,
        )
        return run_server(listener, launch)
    finally:
        processes.terminate()


def _names(model: ModelSettings) -> tuple[str, ...]:
    """What the model answers to, known before its file is there: what it was asked for by, and its
    file's or folder's name."""
    from pathlib import Path

    from treadle.models.source import model_name

    if model.served_model_name:
        return tuple(model.served_model_name)
    asked, name = model.model, model_name(model.model)
    return (name, asked) if Path(asked).exists() else (asked, name)
