"""What answers have around and beside their choices."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

C = TypeVar("C")


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int
    truncated_tokens: int | UnsetType = UNSET
    """What `truncate_prompt_tokens` cut off; there where it was asked for."""


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(msgspec.Struct):
    """Where a request's time went, under llama.cpp's names. Of several answers, which run side by
    side, the tokens are added up and the times are the longest."""

    queue_ms: float
    cache_n: int
    """Prompt tokens found in the prefix cache."""
    prompt_n: int
    """Prompt tokens computed."""
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    """From the first token to the last."""
    predicted_per_second: float | None
    """Of the tokens after the first, which belongs to the prompt's time."""


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    """1 for the most likely token; None for one that was asked for by its id."""
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""Per prompt token: itself and others, by id. Nothing predicts the first."""


class Answer(msgspec.Struct, Generic[C]):
    """A whole answer, or one chunk of a stream."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[C]
    system_fingerprint: str
    """Changes with whatever in the configuration could change an answer."""
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ModelCard(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "treadle"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"
