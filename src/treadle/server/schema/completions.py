"""Text completions: the request, and the choices of its answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from treadle.errors import InvalidRequest
from treadle.server.schema.answer import PromptLogprobs
from treadle.server.schema.request import GenerationRequest
from treadle.wire.messages import Finish
from treadle.wire.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest, kw_only=True):
    # Several kinds of list cannot be told apart by type; `prompts.prompts_of` does.
    prompt: str | list[str | int | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens

    def check(self) -> None:
        super().check()
        if self.logprob_token_ids is not None and self.logprobs is None:
            raise InvalidRequest("logprob_token_ids needs logprobs", param="logprob_token_ids")

    def params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """With `echo`, `logprobs` concerns the prompt as well."""
        scored = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return self.sampling(
            defaults,
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=max((num for num in scored if num is not None), default=None),
        )


class CompletionLogprobs(msgspec.Struct):
    """One entry per token. The first token of an echoed prompt has no log-probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct):
    """The whole of an answer, or a part of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
