"""SGLang's own answer, for HTTP's /generate and for Python alike: parts of one answer in, its shape
out, as a whole or for a stream."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from treadle.text.choice import ChoiceDelta
from treadle.text.sglang import Item
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import TokenLogprob

LOWEST_LOGPROB = -9999.0
"""JSON has no -inf."""

WEIGHT_VERSION = "default"
"""Weights are never replaced while they are served."""

Scored = tuple[float | None, int, str | None]
"""Log-probability, token, and its text if texts were asked for. The prompt's first token has no
log-probability: nothing predicts it."""


class FinishReason(msgspec.Struct, omit_defaults=True):
    type: Literal["stop", "length", "abort"]
    matched: int | str | UnsetType = UNSET
    """The stop string, or the stop or end token."""
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class MetaInfo(msgspec.Struct, kw_only=True):
    id: str
    finish_reason: FinishReason | None
    """None until the answer's end."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str = WEIGHT_VERSION
    e2e_latency: float | UnsetType = UNSET
    """Seconds, with the answer's end."""
    input_token_logprobs: list[Scored] | UnsetType = UNSET
    output_token_logprobs: list[Scored] | UnsetType = UNSET
    input_top_logprobs: list[list[Scored] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[Scored] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[Scored] | None] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[Scored] | None] | UnsetType = UNSET


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """One answer; in a stream, the answer so far or what is new of it."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET
    """Its place among the answers to a list, in a stream."""


class AnswerShape:
    """One answer as it grows. What is said of a part never depends on how the parts were cut, save
    for where a stream is cut."""

    def __init__(
        self, tokenizer: Tokenizer, item: Item, prompt: list[int], *, choice: int, texts: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._item = item
        self._prompt = prompt
        self._id = item.request_id if item.params.n == 1 else f"{item.request_id}-{choice}"
        self._texts = texts
        self._began_s = time.monotonic()
        self._num_tokens = 0
        self._scored_first = False
        self._begin()

    def add(self, part: ChoiceDelta) -> bool:
        """Take in what has arrived; whether there is something to tell of it."""
        meta = self._answer.meta_info
        self._answer.text += part.text
        self._answer.output_ids += part.token_ids
        self._num_tokens += len(part.token_ids)
        meta.completion_tokens = self._num_tokens
        meta.cached_tokens = part.cached_tokens
        if self._item.with_logprobs:
            self._score(part)
        if part.finish_reason is not None:
            meta.finish_reason = self._finish(part)
            meta.e2e_latency = time.monotonic() - self._began_s
        return bool(part.text or part.token_ids) or part.finish_reason is not None

    def so_far(self) -> GenerateAnswer:
        """The whole answer, from its beginning."""
        return self._answer

    def take_news(self) -> GenerateAnswer:
        """What has been added since the last call; counts are of the whole answer."""
        news = self._answer
        self._begin()
        return news

    def _begin(self) -> None:
        meta = MetaInfo(
            id=self._id,
            finish_reason=None,
            prompt_tokens=len(self._prompt),
            completion_tokens=self._num_tokens,
            cached_tokens=0,
        )
        params = self._item.params
        if params.logprobs is not None:
            meta.input_token_logprobs, meta.output_token_logprobs = [], []
            if params.logprobs:
                meta.input_top_logprobs, meta.output_top_logprobs = [], []
            if params.logprob_token_ids is not None:
                meta.input_token_ids_logprobs, meta.output_token_ids_logprobs = [], []
        self._answer = GenerateAnswer(text="", output_ids=[], meta_info=meta)

    def _score(self, part: ChoiceDelta) -> None:
        meta = self._answer.meta_info
        inputs = (meta.input_token_logprobs, meta.input_top_logprobs, meta.input_token_ids_logprobs)
        if self._item.start == 0 and not self._scored_first:
            self._scored_first = True
            first = (None, self._prompt[0], self._text_of(self._prompt[0]))
            for scores, nothing in zip(inputs, (first, None, None), strict=True):
                if scores is not UNSET:
                    scores.append(nothing)  # type: ignore[arg-type]
        self._extend(inputs, part.prompt_logprobs)
        self._extend(
            (meta.output_token_logprobs, meta.output_top_logprobs, meta.output_token_ids_logprobs),
            part.logprobs,
        )

    def _extend(
        self,
        places: tuple[
            list[Scored] | UnsetType,
            list[list[Scored] | None] | UnsetType,
            list[list[Scored] | None] | UnsetType,
        ],
        entries: list[TokenLogprob],
    ) -> None:
        tokens, tops, asked = places
        if tokens is not UNSET:
            tokens += [self._scored(entry.token, entry.logprob) for entry in entries]
        if tops is not UNSET:
            tops += [[self._scored(*pair) for pair in entry.top] for entry in entries]
        if asked is not UNSET:
            asked += [[self._scored(*pair) for pair in entry.asked] for entry in entries]

    def _scored(self, token: int, logprob: float) -> Scored:
        return (max(logprob, LOWEST_LOGPROB), token, self._text_of(token))

    def _text_of(self, token: int) -> str | None:
        return self._tokenizer.token_text(token) if self._texts else None

    def _finish(self, part: ChoiceDelta) -> FinishReason:
        if part.finish_reason == "length":
            return FinishReason("length", length=self._num_tokens)
        if part.finish_reason == "abort":
            return FinishReason("abort", message="the request was aborted")
        if part.stop_reason is not None:
            return FinishReason("stop", matched=part.stop_reason)
        # An end token ends the answer without a reason of its own; it is the last one.
        return FinishReason("stop", matched=self._answer.output_ids[-1])
