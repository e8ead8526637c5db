"""What `LLM` returns, under vLLM's names."""

from __future__ import annotations

import dataclasses

from treadle.text.choice import ChoiceDelta
from treadle.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Logprob:
    """One token's log-probability under the model's unmodified distribution."""

    logprob: float
    rank: int | None
    """1 for the most likely token."""
    decoded_token: str


@dataclasses.dataclass(frozen=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    """Per token: the token itself and the most likely ones, by id."""
    finish_reason: str | None
    stop_reason: str | int | None
    """The stop string or stop token that ended the answer; None for EOS and length."""


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    """None when token ids were given."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""


@dataclasses.dataclass(frozen=True)
class StreamPiece:
    """The next text of a streamed answer; the last one has a finish reason."""

    text: str
    finish_reason: str | None
    num_prompt_tokens: int
    num_tokens: int
    """Tokens of the answer so far."""
    cached_tokens: int


def completion_output(
    answer: ChoiceDelta, index: int, tokenizer: Tokenizer, *, with_logprobs: bool
) -> CompletionOutput:
    logprobs = _logprobs(answer, tokenizer) if with_logprobs else None
    total = sum(entry.logprob for entry in answer.logprobs) if with_logprobs else None
    return CompletionOutput(
        index=index,
        text=answer.text,
        token_ids=answer.token_ids,
        cumulative_logprob=total,
        logprobs=logprobs,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
    )


def _logprobs(answer: ChoiceDelta, tokenizer: Tokenizer) -> list[dict[int, Logprob]]:
    entries = []
    for own in answer.logprobs:
        entry = {own.token: Logprob(own.logprob, own.rank, tokenizer.token_text(own.token))}
        for rank, (token, logprob) in enumerate(own.top, 1):
            entry.setdefault(token, Logprob(logprob, rank, tokenizer.token_text(token)))
        entries.append(entry)
    return entries
