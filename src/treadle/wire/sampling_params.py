"""What a caller may ask of the sampler, under vLLM's names; checked once, at intake."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from treadle.errors import InvalidRequest
from treadle.wire.structured_outputs import StructuredOutputsParams

MAX_LOGPROBS = 20
"""Most alternatives a request may ask for per token (OpenAI and vLLM allow 20)."""

MAX_STOPS = 64
MAX_STOP_CHARS = 4096
"""Each answer looks for its stop strings at every character."""

MAX_LOGPROB_TOKEN_IDS = 128
"""vLLM's limit on single ids asked for."""

MAX_BAD_WORDS = 1024

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy (vLLM's threshold)."""

_LARGEST_INT = 2**31 - 1


class Limit(NamedTuple):
    """What a number may be."""

    low: float
    high: float
    open_below: bool = False
    """Whether `low` itself is too low."""


LIMITS: Mapping[str, Limit] = {
    "n": Limit(1, 128),
    "temperature": Limit(0, 100),
    "top_p": Limit(0, 1, open_below=True),
    "top_k": Limit(-1, _LARGEST_INT),
    "min_p": Limit(0, 1),
    "presence_penalty": Limit(-2, 2),
    "frequency_penalty": Limit(-2, 2),
    "repetition_penalty": Limit(0, 100, open_below=True),
    "seed": Limit(-(2**63), 2**64 - 1),
    "max_tokens": Limit(0, _LARGEST_INT),
    "min_tokens": Limit(0, _LARGEST_INT),
    "logprobs": Limit(0, MAX_LOGPROBS),
    "prompt_logprobs": Limit(0, MAX_LOGPROBS),
    "prompt_logprobs_start": Limit(0, _LARGEST_INT),
}
"""Of each number on its own; checked here, and told in the API's description."""

BIAS_LIMIT = Limit(-100, 100)


class RequestOutputKind(enum.StrEnum):
    """What each output of a stream holds (vLLM's names)."""

    CUMULATIVE = "cumulative"
    """The answer so far."""
    DELTA = "delta"
    """What is new of it."""
    FINAL_ONLY = "final_only"
    """Nothing until the answer is complete."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the tokens of one request. Defaults are those of vLLM's class of this name."""

    n: int = 1
    """Independent answers to one prompt."""
    temperature: float = 1.0
    """0 (or below 1e-5) takes the most likely token; ties go to the lowest id."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """Same seed, same prompt, same answer. None draws one."""
    min_tokens: int = 0
    """No end, by EOS, stop token or stop string, before this many tokens."""
    max_tokens: int | None = 16
    """None means as many as the window leaves; 0 computes the prompt and chooses nothing."""
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: dict[int, float] | None = None
    """Token id → value added to its logit, -100 to 100."""
    allowed_token_ids: list[int] | None = None
    """Choose among these only."""
    bad_words: list[str] | None = None
    """Texts that the answer must not hold; ruled out as the token sequences that spell them, at the
    start of a word or within one (vLLM's rule)."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the answer's text must be."""
    logprobs: int | None = None
    """Return the token's log-probability and this many alternatives."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first, which nothing predicts."""
    prompt_logprobs_start: int = 0
    """Index of the first prompt token to score (SGLang's logprob_start_len)."""
    logprob_token_ids: list[int] | None = None
    """Report these ids wherever log-probabilities are reported, likely or not."""
    skip_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What each output of `AsyncLLM.generate` holds; nothing else asks."""

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def restricted(self) -> bool:
        """Whether some tokens may not be chosen, or not yet."""
        return bool(self.allowed_token_ids or self.bad_words or self.min_tokens or self.logit_bias)

    @property
    def penalised(self) -> bool:
        """Whether the choice depends on the tokens that came before."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    def __post_init__(self) -> None:
        """Raise InvalidRequest, naming field and limit, if a value is of a wrong type or size."""
        _typed(self)
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if value is not None:
                _in_range(name, value, limit)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}",
                param="min_tokens",
            )
        self._check_lists()
        asked = self.structured_outputs
        if asked is not None and not isinstance(asked, StructuredOutputsParams):
            raise InvalidRequest(
                "structured_outputs must be a StructuredOutputsParams", param="structured_outputs"
            )
        if any(not text for text in self.stop_strings):
            raise InvalidRequest("stop strings must not be empty", param="stop")
        _at_most("the number of stop strings", len(self.stop_strings), MAX_STOPS, "stop")
        longest = max(map(len, self.stop_strings), default=0)
        _at_most("the length of a stop string", longest, MAX_STOP_CHARS, "stop")
        for token, bias in (self.logit_bias or {}).items():
            _in_range(f"logit_bias[{token}]", bias, BIAS_LIMIT)

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequest if a token id is outside the vocabulary."""
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"):
            for token in getattr(self, name) or ():
                _token_id(name, token, vocab_size)

    def _check_lists(self) -> None:
        if self.allowed_token_ids == []:
            raise InvalidRequest(
                "allowed_token_ids is empty, so that no token is left to choose",
                param="allowed_token_ids",
            )
        asked = len(self.logprob_token_ids or ())
        _at_most(
            "the number of logprob_token_ids", asked, MAX_LOGPROB_TOKEN_IDS, "logprob_token_ids"
        )
        words = self.bad_words or []
        _at_most("the number of bad words", len(words), MAX_BAD_WORDS, "bad_words")
        longest = max(map(len, words), default=0)
        _at_most("the length of a bad word", longest, MAX_STOP_CHARS, "bad_words")
        if any(not word for word in words):
            raise InvalidRequest("bad words must not be empty", param="bad_words")


@functools.cache
def _field_types() -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(SamplingParams))


def _typed(params: SamplingParams) -> None:
    """Python callers may pass anything; what comes over the wire or HTTP was decoded by type."""
    for name, kind in _field_types():
        value = getattr(params, name)
        try:
            msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at")[0]
            message = f"{name} is {value!r:.40}: {reason[0].lower()}{reason[1:]}"
            raise InvalidRequest(message, param=name) from None


def _in_range(name: str, value: float, limit: Limit, *, param: str | None = None) -> None:
    low, high, open_below = limit
    finite = isinstance(value, int) or math.isfinite(value)  # an int may be too large for isfinite
    if finite and low <= value <= high and not (open_below and value == low):
        return
    floor = f"above {low}" if open_below else f"at least {low}"
    shown = f"{value}"[:40]
    raise InvalidRequest(
        f"{name} is {shown}; it must be {floor} and at most {high}", param=param or name
    )


def _at_most(name: str, count: int, high: int, param: str) -> None:
    _in_range(name, count, Limit(0, high), param=param)


def _token_id(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise InvalidRequest(
            f"{name} holds {token}; token ids run from 0 to {vocab_size - 1}", param=name
        )
