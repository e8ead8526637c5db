"""What a request for completions and one for chat have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from treadle.errors import InvalidRequest
from treadle.server.schema.constraints import Constraints
from treadle.wire.sampling_params import SamplingParams

NonEmpty = Annotated[str, Meta(min_length=1, max_length=1024)]

RequestId = Annotated[str, Meta(max_length=256, pattern=r"^[!-~]+$(?!\n)")]
"""Goes into headers and logs, so it is printable ASCII without spaces."""


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Refused(Constraints, kw_only=True):
    """Fields that would change the answer and are not implemented; what asks for nothing is their
    default."""

    suffix: Any = None
    tools: Any = None
    functions: Any = None
    function_call: Any = None
    stop_regex: Any = None
    use_beam_search: Any = None
    audio: Any = None
    web_search_options: Any = None
    prompt_embeds: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None
    logits_processors: Any = None
    custom_logit_processor: Any = None
    vllm_xargs: Any = None
    kv_transfer_params: Any = None
    lora_path: Any = None
    session_params: Any = None
    return_hidden_states: Any = None
    mirostat: Any = None
    dry_multiplier: Any = None
    xtc_probability: Any = None
    dynatemp_range: Any = None
    typical_p: Any = 1

    def refuse(self) -> None:
        """Raise InvalidRequest for a field that would be dropped without a word."""
        for name, nothing in _REFUSED:
            if getattr(self, name) not in (nothing, None, False, "", [], {}):
                raise unsupported(name)


_REFUSED = [
    (field.name, field.default)
    for field in msgspec.structs.fields(Refused)
    if field.name not in Constraints.__struct_fields__
]


class GenerationRequest(Refused, kw_only=True):
    """What both endpoints take. Fields of SamplingParams have its names."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: RequestId | None = None
    """Names the answer and what the engine calls it; random by default."""
    cache_salt: NonEmpty | None = None
    priority: int | None = None
    """What it does is the server's setting (vLLM's field)."""
    routing_key: str | None = None
    """SGLang's field; the header x-smg-routing-key says the same."""
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    """Most prompt tokens to keep; -1 for as many as the window leaves."""
    truncation_side: Literal["left", "right"] | None = None
    """Where a prompt is cut: "left" keeps its end, and is the default."""

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
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None

    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    timings: bool | None = None
    timings_per_token: bool | None = None
    """llama.cpp's clients set it; taken as `timings`."""

    tool_choice: Any = None
    modalities: list[str] | None = None
    best_of: int | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    @property
    def wants_timings(self) -> bool:
        return bool(self.timings or self.timings_per_token)

    def check(self) -> None:
        """Raise InvalidRequest where a field asks for something that there is not, or contradicts
        another. Ranges are SamplingParams' affair."""
        self.refuse()
        if self.tool_choice not in (None, "none", "auto"):
            raise unsupported("tool_choice")
        if self.modalities not in (None, [], ["text"]):
            raise unsupported("modalities", " other than text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequest("best_of is supported only when equal to n", param="best_of")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options is allowed only with stream", param="stream_options"
            )
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest(
                "prompt_logprobs is not available with stream", param="prompt_logprobs"
            )
        if self.logprob_token_ids == []:
            raise InvalidRequest("logprob_token_ids is an empty list", param="logprob_token_ids")

    def sampling(self, defaults: Mapping[str, float], **settled: int | None) -> SamplingParams:
        """What is settled, else what was asked for, else the model's defaults, else the class's."""
        asked = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        asked["structured_outputs"] = self.constraint()
        given = {name: value for name, value in asked.items() if value is not None}
        chosen: dict[str, Any] = {**defaults, **given, **settled}
        return SamplingParams(**chosen)


_SAMPLING_FIELDS = [
    name for name in SamplingParams.__struct_fields__ if name in GenerationRequest.__struct_fields__
]


def unsupported(name: str, how: str = "") -> InvalidRequest:
    return InvalidRequest(f"{name}{how} is not supported", param=name)
