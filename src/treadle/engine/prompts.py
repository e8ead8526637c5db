"""The forms in which Python callers give prompts, brought into one. Never tokenizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.errors import InvalidRequest

Prompt = str | Sequence[int] | np.ndarray[Any, Any] | Mapping[str, Any]
"""A text, token ids, or vLLM's {"prompt": …} or {"prompt_token_ids": …}."""

_FIELDS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclasses.dataclass(frozen=True)
class Given:
    """One prompt: a text, token ids, or both; the ids count."""

    text: str | None
    ids: list[int] | None
    cache_salt: str | None = None


def is_one(prompts: object) -> bool:
    """Whether this is one prompt rather than a list of them."""
    if isinstance(prompts, np.ndarray):
        return prompts.ndim < 2
    if isinstance(prompts, list | tuple):
        return bool(prompts) and _is_number(prompts[0])
    return True


def read_prompts(prompts: object) -> list[Given]:
    """One prompt or several. Raises InvalidRequest for what is no prompt, naming its place."""
    if is_one(prompts):
        return [read_prompt(prompts, "the prompt")]
    assert isinstance(prompts, list | tuple | np.ndarray)
    return [read_prompt(prompt, f"prompts[{index}]") for index, prompt in enumerate(prompts)]


def read_prompt(prompt: object, where: str = "the prompt") -> Given:
    if isinstance(prompt, str):
        return Given(prompt, None)
    if isinstance(prompt, Mapping):
        return _from_fields(prompt, where)
    return Given(None, _ids(prompt, where))


def _from_fields(prompt: Mapping[str, Any], where: str) -> Given:
    given = {name: value for name, value in prompt.items() if value is not None}
    for name in given:
        if name not in _FIELDS:
            raise _wrong(f"{where} has a field {name!r}; it may have {', '.join(_FIELDS)}")
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if text is None and ids is None:
        raise _wrong(f"{where} has neither prompt nor prompt_token_ids")
    for name in ("prompt", "cache_salt"):
        if not isinstance(given.get(name, ""), str):
            raise _wrong(f"{where}: {name} is of type {type(given[name]).__name__}, not text")
    return Given(text, None if ids is None else _ids(ids, where), given.get("cache_salt"))


def _ids(prompt: object, where: str) -> list[int]:
    if isinstance(prompt, np.ndarray):
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
            raise _wrong(
                f"{where} is an array of {prompt.ndim} dimensions of {prompt.dtype}; token ids are"
                " one dimension of integers"
            )
        ids: list[int] = prompt.tolist()
        return ids
    if not isinstance(prompt, Sequence) or isinstance(prompt, str | bytes | bytearray | memoryview):
        kind = type(prompt).__name__
        raise _wrong(f"{where} is of type {kind}; a prompt is a text or a list of token ids")
    if all(type(token) is int for token in prompt):
        return list(prompt)
    for token in prompt:
        if not isinstance(token, int | np.integer) or isinstance(token, bool):
            raise _wrong(
                f"{where} holds {token!r:.40}; a prompt is a text or a list of token ids, which are"
                " whole numbers"
            )
    return [int(token) for token in prompt]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="prompt")
