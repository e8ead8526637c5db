"""Commands that take other engines' flags beside their own: each is put into our own words before
the command line is read, and what it was is kept for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from treadle.config.aliases import ALIASES, Alias, meaning
from treadle.config.settings import Given

MARKS = "treadle.given"
"""Where a context keeps how settings were given."""


class SettingsCommand(click.Command):
    """A command whose options are settings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        marks: dict[str, Given] = {}
        translation = _Translation(self, ctx, marks)
        translated = list(translation.run(args))
        ctx.meta[MARKS] = marks
        try:
            return super().parse_args(ctx, translated)
        except click.BadParameter as error:
            error.param_hint = translation.as_written(error.param) or error.param_hint
            raise


class _Translation:
    """One command line's. A setting that is set twice, once by an alias, is refused."""

    def __init__(self, command: click.Command, ctx: click.Context, marks: dict[str, Given]) -> None:
        self._options: dict[str, click.Option] = {
            name: parameter
            for parameter in command.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        self._marks = marks
        self._own: dict[str, str] = {}

    def as_written(self, parameter: click.Parameter | None) -> str:
        """The flag of another engine that a setting was given by; empty for our own."""
        setting = "" if parameter is None else parameter.name or ""
        flag = self._own.get(setting, "")
        return f"{flag} ({setting} here)" if setting in self._marks else ""

    def run(self, args: list[str]) -> Iterator[str]:
        waiting = list(args)
        while waiting:
            word = waiting.pop(0)
            if word == "--":
                yield from (word, *waiting)
                return
            flag, is_joined, joined = word.partition("=")
            if flag not in self._options and flag.replace("_", "-") in self._options:
                flag = flag.replace("_", "-")
                word = f"{flag}{is_joined}{joined}"
            option = self._options.get(flag)
            alias = None if option or not flag.startswith("-") else _alias(flag)
            if alias is not None:
                values = [joined] if is_joined else _take(alias, flag, waiting)
                yield from self._translated(alias, flag, values)
                continue
            yield word
            if option is not None:
                self._note(option.name or "", flag)
                if not (option.is_flag or is_joined) and waiting:
                    yield waiting.pop(0)

    def _translated(self, alias: Alias, flag: str, values: list[str]) -> Iterator[str]:
        words = " ".join((flag, *values))
        found, note = meaning(alias, words, values[0] if values else True)
        for setting, value in found.items():
            self._note(setting, flag, alias=True)
            yield from self._ours(setting, value)
        for setting in found or (words,):
            self._marks[setting] = Given("argument", words, note)

    def _ours(self, setting: str, value: Any) -> Iterator[str]:
        """The setting as this command takes it."""
        option = f"--{setting.replace('_', '-')}"
        if option not in self._options:
            if setting != "model":
                raise click.UsageError(f"this command has no {option}")
            yield str(value)
        elif isinstance(value, bool):
            yield option if value else option.replace("--", "--no-", 1)
        else:
            yield from (option, str(value))

    def _note(self, setting: str, flag: str, *, alias: bool = False) -> None:
        before = self._own.setdefault(setting, flag)
        if before != flag and (alias or setting in self._marks):
            raise click.UsageError(f"{before} and {flag} both set {setting}")


_MODEL = Alias("model", "vLLM", "model")
"""Where our command has it as an argument."""


def _alias(flag: str) -> Alias | None:
    name = flag.lstrip("-").replace("-", "_")
    return _MODEL if name == _MODEL.name else ALIASES.get(name)


def _take(alias: Alias, flag: str, waiting: list[str]) -> list[str]:
    if alias.takes == "nothing":
        return []
    if not waiting:
        raise click.UsageError(f"{flag} needs a value")
    taken = [waiting.pop(0)]
    while alias.takes == "values" and waiting and not waiting[0].startswith("-"):
        taken.append(waiting.pop(0))
    return taken
