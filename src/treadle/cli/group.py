"""A command whose members live in modules of their own, imported one by one when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class Commands(click.Group):
    """Each member's module defines one click command named like the module's last part."""

    def __init__(self, *args: Any, members: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._members = members

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self._members:
            return None
        module = importlib.import_module(self._members[cmd_name])
        command = getattr(module, self._members[cmd_name].rpartition(".")[2])
        assert isinstance(command, click.Command)
        return command
