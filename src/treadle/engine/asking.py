"""From what Python callers give to accepted requests. Never runs them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from treadle.engine.prompts import Given
from treadle.errors import InvalidRequest
from treadle.text.frontend import Frontend
from treadle.text.intake import Accepted, Place
from treadle.wire.sampling_params import SamplingParams

Message = Mapping[str, Any]
Conversation = Sequence[Message]


class ChatOptions(TypedDict, total=False):
    """How a conversation becomes a prompt. What is left out is as the model's template has it."""

    chat_template: str | None
    """A Jinja template in place of the model's."""
    add_generation_prompt: bool
    """Open an answer; by default, unless the last message is to be continued."""
    continue_final_message: bool
    """The answer goes on where the last message ends."""
    tools: Sequence[Mapping[str, Any]] | None
    """Shown to the template; calls in the answer are not parsed."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Further variables of the template."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """One prompt on its way."""

    text: str | None
    """None when token ids were given."""
    accepted: Accepted


class Asking:
    """What a call leaves open: the model's own parameters, and seeds in the order of calls."""

    def __init__(self, seed: int | None) -> None:
        """Raises InvalidRequest for a seed that is not one."""
        SamplingParams(seed=seed)
        self._seeds = None if seed is None else random.Random(seed)  # noqa: S311

    def params(
        self,
        frontend: Frontend,
        params: SamplingParams | Sequence[SamplingParams] | None,
        count: int,
    ) -> list[SamplingParams]:
        """The parameters of each of `count` prompts."""
        if params is None:
            params = default_params(frontend)
        if isinstance(params, SamplingParams):
            params = [params] * count
        if not isinstance(params, Sequence) or not all(
            isinstance(one, SamplingParams) for one in params
        ):
            raise InvalidRequest(
                "sampling_params must be SamplingParams, or a list of them for a list of prompts",
                param="sampling_params",
            )
        if len(params) != count:
            raise InvalidRequest(
                f"there are {count} prompts and {len(params)} sampling parameters",
                param="sampling_params",
            )
        return [self._seeded(one) for one in params]

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if self._seeds is None or params.seed is not None:
            return params
        return msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))


def priorities_of(priority: Sequence[int] | None, count: int) -> list[int | None]:
    """One for each of `count` prompts."""
    if priority is None:
        return [None] * count
    if not isinstance(priority, Sequence) or not all(type(one) is int for one in priority):
        raise InvalidRequest(
            "priority must be a list of whole numbers, one for each prompt", param="priority"
        )
    if len(priority) != count:
        raise InvalidRequest(
            f"there are {count} prompts and {len(priority)} priorities", param="priority"
        )
    return list(priority)


def accept_prompt(
    frontend: Frontend,
    given: Given,
    params: SamplingParams,
    cache_salt: str,
    priority: int | None = None,
) -> Asked:
    """Raises a RequestError that says what is wrong."""
    ids = given.ids
    if ids is None:
        assert given.text is not None
        ids = frontend.encode(given.text, add_special=True)
    salt = cache_salt if given.cache_salt is None else given.cache_salt
    accepted = frontend.check(frontend.cut(ids), params)
    place = Place(priority)
    return Asked(given.text, dataclasses.replace(accepted, cache_salt=salt, place=place))


def accept_chat(
    frontend: Frontend,
    messages: Conversation,
    params: SamplingParams,
    cache_salt: str,
    options: ChatOptions,
) -> Asked:
    """Likewise; the template writes the special tokens of a prompt."""
    text = render(frontend, messages, options)
    given = Given(text, frontend.encode(text, add_special=False))
    return accept_prompt(frontend, given, params, cache_salt)


def default_params(frontend: Frontend) -> SamplingParams:
    """The model's own defaults, else the class's."""
    chosen: dict[str, Any] = dict(frontend.text.sampling_defaults)
    return SamplingParams(**chosen)


def conversations_of(messages: object) -> list[Conversation]:
    """One conversation or several. Raises InvalidRequest for anything else."""
    if isinstance(messages, Sequence) and not isinstance(messages, str | bytes):
        if any(isinstance(message, Mapping) for message in messages):
            return [messages]
        if all(isinstance(one, Sequence) and not isinstance(one, str | bytes) for one in messages):
            return list(messages)
    raise InvalidRequest(
        "messages must be a list of messages, each a mapping, or a list of such lists",
        param="messages",
    )


def render(frontend: Frontend, messages: Conversation, options: ChatOptions) -> str:
    """The prompt of a conversation."""
    unknown = sorted(options.keys() - ChatOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"chat has no argument {unknown[0]!r}")
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    source = given.pop("chat_template", None)
    further = given.pop("chat_template_kwargs", {})
    text = frontend.text
    template = text.require_template() if source is None else text.template_of(source)
    return template.render(list(messages), **{**further, **given})
