"""Chat: the request, and the choices of its answer, whole and in a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from treadle.errors import InvalidRequest
from treadle.server.schema.request import GenerationRequest, unsupported
from treadle.wire.messages import Finish
from treadle.wire.sampling_params import MAX_LOGPROBS, SamplingParams


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    """For the template, which may do nothing with it."""
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def asked_tokens(self) -> int | None:
        longest = self.max_completion_tokens
        return self.max_tokens if longest is None else longest

    def check(self) -> None:
        super().check()
        if self.echo:
            raise unsupported("echo", " for chat")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
        if self.logprob_token_ids is not None and not self.logprobs:
            raise InvalidRequest("logprob_token_ids needs logprobs", param="logprob_token_ids")
        if not 0 <= (self.top_logprobs or 0) <= MAX_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs}; it must be 0 to {MAX_LOGPROBS}",
                param="top_logprobs",
            )
        if self.asked_tokens == 0:
            raise InvalidRequest(
                "max_tokens is 0; a chat's answer must be allowed at least 1", param="max_tokens"
            )

    def params(self, defaults: Mapping[str, float]) -> SamplingParams:
        return self.sampling(
            defaults,
            max_tokens=self.asked_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatDelta(msgspec.Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
