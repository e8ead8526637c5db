"""From parts of answers to what both endpoints say about them. One code path serves streams and
whole answers: a whole answer is all its parts merged, so the two cannot differ in text, counts or
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.server.prompts import Prompt
from treadle.server.schema.answer import (
    Answer,
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    Timings,
    Usage,
)
from treadle.server.schema.chat import ChatChoice, ChatChunkChoice
from treadle.server.schema.completions import CompletionChoice
from treadle.text.choice import ChoiceDelta
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import TokenLogprob

Choice = CompletionChoice | ChatChoice | ChatChunkChoice

LOWEST_LOGPROB = -9999.0
"""JSON has no -inf."""


class Shape(Protocol):
    """How one endpoint writes answers. Lives as long as one HTTP request."""

    @property
    def tells_tokens(self) -> bool:
        """Whether a stream tells of tokens more than their text."""
        ...

    def whole(self, part: ChoiceDelta) -> Choice:
        """The choice of a complete answer."""
        ...

    def chunks(self, part: ChoiceDelta) -> list[Choice]:
        """The choices of a stream that tell this part; one chunk each."""
        ...

    def head(self, answer: Answer[Choice], part: ChoiceDelta) -> None:
        """Put what concerns the prompt beside the choices of a whole answer, or of the first chunk
        of a stream."""
        ...


class Spelling:
    """How tokens are named in log-probabilities."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def __call__(self, token: int) -> str:
        if self._as_ids:
            return f"token_id:{token}"
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def prompt_logprobs(
    tokenizer: Tokenizer, scores: Sequence[TokenLogprob], num_top: int
) -> PromptLogprobs:
    """Of a whole prompt; `scores` begin with its second token."""
    result: PromptLogprobs = [None]
    for score in scores:
        ranked = [(token, value, rank) for rank, (token, value) in enumerate(score.top, 1)]
        entry: dict[int, PromptLogprob] = {}
        others = [(token, value, None) for token, value in score.asked]
        own = (score.token, score.logprob, score.rank)
        for token, value, rank in [own, *ranked[:num_top], *others]:
            named = PromptLogprob(finite(value), rank, tokenizer.token_text(token))
            entry.setdefault(token, named)
        result.append(entry)
    return result


class Tally:
    """Counts tokens and times: each prompt once, every token of every answer."""

    def __init__(self, prompts: Sequence[Prompt], n: int) -> None:
        self._n = n
        self._num_open = len(prompts) * n
        self._prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        cuts = [prompt.num_cut for prompt in prompts if prompt.num_cut is not None]
        self._truncated = sum(cuts) if cuts else None
        self._completion_tokens = 0
        self._num_later_tokens = 0
        """Tokens of answers but each one's first."""
        self._begun: set[int] = set()
        self._cached_tokens: dict[int, int] = {}
        self._queue_s = self._prefill_s = self._decode_s = 0.0

    @property
    def complete(self) -> bool:
        """Whether every answer has ended."""
        return self._num_open == 0

    def add(self, part: ChoiceDelta) -> None:
        num_tokens, index = len(part.token_ids), part.index
        self._completion_tokens += num_tokens
        if index in self._begun:
            self._num_later_tokens += num_tokens
        elif num_tokens:
            self._num_later_tokens += num_tokens - 1
            self._begun.add(index)
        # Later choices of a prompt find what the first one computed; the prompt did not.
        if index % self._n == 0:
            self._cached_tokens[index] = part.cached_tokens
        if part.finish_reason is not None:
            self._num_open -= 1
        if part.timings is not None:
            self._queue_s = max(self._queue_s, part.timings.queue_s)
            self._prefill_s = max(self._prefill_s, part.timings.prefill_s)
            self._decode_s = max(self._decode_s, part.timings.decode_s)

    def usage(self) -> Usage:
        details = PromptTokensDetails(sum(self._cached_tokens.values()))
        if self._truncated is not None:
            details.truncated_tokens = self._truncated
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=details,
        )

    def timings(self) -> Timings:
        cached = sum(self._cached_tokens.values())
        computed = self._prompt_tokens - cached
        return Timings(
            queue_ms=1000 * self._queue_s,
            cache_n=cached,
            prompt_n=computed,
            prompt_ms=1000 * self._prefill_s,
            prompt_per_second=_rate(computed, self._prefill_s),
            predicted_n=self._completion_tokens,
            predicted_ms=1000 * self._decode_s,
            predicted_per_second=_rate(self._num_later_tokens, self._decode_s),
        )


def _rate(num: int, seconds: float) -> float | None:
    return num / seconds if seconds > 0 else None
