"""The sampling options that `generate` and `chat` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from treadle.wire.sampling_params import SamplingParams

_OPTIONS = (
    click.option("--max-tokens", type=int, help="Most tokens per answer; by default what fits."),
    click.option("--temperature", type=float, help="0 takes the likeliest token each time."),
    click.option("--top-p", type=float, help="Keep the likeliest tokens up to this probability."),
    click.option("--top-k", type=int, help="Keep this many of the likeliest tokens."),
    click.option("--min-p", type=float, help="Drop tokens below this share of the likeliest."),
    click.option("--repetition-penalty", type=float, help="Above 1 discourages repeating."),
    click.option("--presence-penalty", type=float, help="Above 0 discourages tokens used before."),
    click.option("--frequency-penalty", type=float, help="The same, the more the more often."),
    click.option("--seed", type=int, help="Same seed, same answer."),
    click.option("--stop", multiple=True, help="End the answer before this text; repeatable."),
)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_params(given: dict[str, Any], **defaults: float | None) -> SamplingParams:
    """Sampling parameters out of a command's options, which are taken from `given`; those not
    given have `defaults`, or are the class's own."""
    names = [
        option_name for option_name in SamplingParams.__struct_fields__ if option_name in given
    ]
    fields = {name: given.pop(name) for name in names}
    chosen: Mapping[str, Any] = {k: v for k, v in fields.items() if v not in (None, ())}
    stop = list(chosen.get("stop", ()))
    return SamplingParams(**{"max_tokens": None, **defaults, **chosen, "stop": stop or None})
