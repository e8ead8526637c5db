"""OpenAI's requests and answers as types. Fields beyond OpenAI's have vLLM's names.

An explicit null is the same as an absent field. Unknown fields are ignored; fields that would
change the answer and are not implemented are declared, and refused when they hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from treadle.errors import InvalidRequest
from treadle.wire.messages import Finish
from treadle.wire.sampling_params import MAX_LOGPROBS, SamplingParams

COMPLETION_MAX_TOKENS = 16

_SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "logit_bias",
    "skip_special_tokens",
)

_UNSUPPORTED_FIELDS = (
    "suffix",
    "tools",
    "functions",
    "function_call",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "structural_tag",
    "regex",
    "ebnf",
    "grammar",
    "json_schema",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "use_beam_search",
    "continue_final_message",
    "chat_template",
    "documents",
    "audio",
)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What both endpoints take."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[int, float] | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None

    response_format: ResponseFormat | None = None
    tool_choice: Any = None
    modalities: list[str] | None = None
    best_of: int | None = None
    suffix: Any = None
    tools: Any = None
    functions: Any = None
    function_call: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    structural_tag: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None
    json_schema: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    documents: Any = None
    audio: Any = None

    def refuse_unsupported(self) -> None:
        """Raise InvalidRequest for a field that would be dropped without a word."""
        for name in _UNSUPPORTED_FIELDS:
            if getattr(self, name) not in (None, False, "", [], {}):
                raise _unsupported(name)
        if self.response_format is not None and self.response_format.type != "text":
            raise _unsupported("response_format", f" with type '{self.response_format.type}'")
        if self.tool_choice not in (None, "none", "auto"):
            raise _unsupported("tool_choice")
        if self.modalities not in (None, [], ["text"]):
            raise _unsupported("modalities", " other than text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequest("best_of is supported only when equal to n", param="best_of")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options is allowed only with stream", param="stream_options"
            )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(
        self, defaults: Mapping[str, float], *, max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """What was asked for, else the model's defaults, else the class's."""
        fields = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        given = {name: value for name, value in fields.items() if value is not None}
        chosen: dict[str, Any] = {**defaults, **given}
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **chosen)


class CompletionRequest(GenerationRequest, kw_only=True):
    # Several kinds of list cannot be told apart by type; `openai.prompts_of` does.
    prompt: str | list[str | int | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None

    def params(self, defaults: Mapping[str, float]) -> SamplingParams:
        if self.echo and self.logprobs is not None:
            raise _unsupported("logprobs", " together with echo")
        max_tokens = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self.sampling(defaults, max_tokens=max_tokens, logprobs=self.logprobs)


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def params(self, defaults: Mapping[str, float]) -> SamplingParams:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
        if not 0 <= (self.top_logprobs or 0) <= MAX_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs}; it must be 0 to {MAX_LOGPROBS}",
                param="top_logprobs",
            )
        longest = self.max_completion_tokens
        return self.sampling(
            defaults,
            max_tokens=self.max_tokens if longest is None else longest,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class CompletionChoice(msgspec.Struct):
    """The whole of an answer, or a part of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None


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


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType | None = UNSET


Choice = CompletionChoice | ChatChoice | ChatChunkChoice
ChoiceT = TypeVar("ChoiceT", bound=Choice)


class Answer(msgspec.Struct, Generic[ChoiceT]):
    """A whole answer, or one chunk of a stream."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChoiceT]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "treadle"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


def _unsupported(name: str, how: str = "") -> InvalidRequest:
    return InvalidRequest(f"{name}{how} is not supported", param=name)
