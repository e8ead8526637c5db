"""From parts of answers to OpenAI's choices. One code path serves streams and whole answers: a
whole answer is all its parts merged, so the two cannot differ in text, counts or log-probabilities.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from treadle.server.schema import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatTokenLogprob,
    Choice,
    CompletionChoice,
    CompletionLogprobs,
    PromptTokensDetails,
    TopLogprob,
    Usage,
)
from treadle.text.choice import ChoiceDelta
from treadle.text.intake import Accepted
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import TokenLogprob

LOWEST_LOGPROB = -9999.0
"""JSON has no -inf."""


class Shape(Protocol):
    """How one endpoint writes answers. Lives as long as one HTTP request."""

    def whole(self, part: ChoiceDelta) -> Choice:
        """The choice of a complete answer."""
        ...

    def chunks(self, part: ChoiceDelta) -> list[Choice]:
        """The choices of a stream that tell this part; one chunk each."""
        ...


class CompletionShape:
    """Text completions. Offsets run on from part to part of a choice."""

    def __init__(self, tokenizer: Tokenizer, accepted: list[Accepted], echoes: list[str]) -> None:
        params = accepted[0].params
        self._tokenizer = tokenizer
        self._n = params.n
        self._with_logprobs = params.logprobs is not None
        self._skip_special = params.skip_special_tokens
        self._echoes = echoes
        self._offsets: dict[int, _Offsets] = {}

    def whole(self, part: ChoiceDelta) -> CompletionChoice:
        first = part.index not in self._offsets
        echo = self._echoes[part.index // self._n] if first and self._echoes else ""
        offsets = self._offsets.setdefault(part.index, _Offsets(self._tokenizer, echo))
        return CompletionChoice(
            index=part.index,
            text=echo + part.text,
            logprobs=self._logprobs(part, offsets) if self._with_logprobs else None,
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
        )

    def chunks(self, part: ChoiceDelta) -> list[Choice]:
        choice = self.whole(part)
        return [choice] if choice.text or _has_more_than_text(part) else []

    def _logprobs(self, part: ChoiceDelta, offsets: _Offsets) -> CompletionLogprobs:
        return CompletionLogprobs(
            text_offset=[offsets.take(token, self._skip_special) for token in part.token_ids],
            token_logprobs=[_finite(entry.logprob) for entry in part.logprobs],
            tokens=[_spelling(self._tokenizer, entry.token) for entry in part.logprobs],
            top_logprobs=[self._top(entry) for entry in part.logprobs],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        best: dict[str, float] = {}
        # The chosen token always has an entry. Of tokens with one spelling, the likelier stays.
        for token, logprob in [*entry.top, (entry.token, entry.logprob)]:
            best.setdefault(_spelling(self._tokenizer, token), _finite(logprob))
        return best


class ChatShape:
    """Chat messages. The first chunk of a choice carries the role and nothing else."""

    def __init__(self, tokenizer: Tokenizer, accepted: list[Accepted]) -> None:
        self._tokenizer = tokenizer
        self._with_logprobs = accepted[0].params.logprobs is not None
        self._begun: set[int] = set()

    def whole(self, part: ChoiceDelta) -> ChatChoice:
        return ChatChoice(
            index=part.index,
            message=AssistantMessage(part.text),
            logprobs=self._logprobs(part),
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
        )

    def chunks(self, part: ChoiceDelta) -> list[Choice]:
        chunks: list[Choice] = []
        if part.index not in self._begun:
            self._begun.add(part.index)
            chunks.append(ChatChunkChoice(part.index, ChatDelta(role="assistant", content="")))
        if part.text or _has_more_than_text(part):
            chunks.append(self._chunk(part))
        return chunks

    def _chunk(self, part: ChoiceDelta) -> ChatChunkChoice:
        choice = ChatChunkChoice(
            index=part.index,
            delta=ChatDelta(content=part.text) if part.text else ChatDelta(),
            logprobs=self._logprobs(part) if part.token_ids else None,
            finish_reason=part.finish_reason,
        )
        if part.finish_reason is not None:
            choice.stop_reason = part.stop_reason
        return choice

    def _logprobs(self, part: ChoiceDelta) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        return ChatLogprobs([self._token(entry) for entry in part.logprobs])

    def _token(self, entry: TokenLogprob) -> ChatTokenLogprob:
        return ChatTokenLogprob(
            token=_spelling(self._tokenizer, entry.token),
            logprob=_finite(entry.logprob),
            bytes=list(self._tokenizer.token_bytes(entry.token)),
            top_logprobs=[
                TopLogprob(
                    token=_spelling(self._tokenizer, token),
                    logprob=_finite(logprob),
                    bytes=list(self._tokenizer.token_bytes(token)),
                )
                for token, logprob in entry.top
            ],
        )


class Tally:
    """Counts tokens for `usage`: each prompt once, every token of every answer."""

    def __init__(self, accepted: list[Accepted]) -> None:
        self._n = accepted[0].params.n
        self._prompt_tokens = sum(len(one.prompt) for one in accepted)
        self._completion_tokens = 0
        self._cached_tokens: dict[int, int] = {}

    def add(self, part: ChoiceDelta) -> None:
        self._completion_tokens += len(part.token_ids)
        # Later choices of a prompt find what the first one computed; the prompt did not.
        if part.index % self._n == 0:
            self._cached_tokens[part.index] = part.cached_tokens

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(self._cached_tokens.values())),
        )


class _Offsets:
    """Where each token of one answer begins, in characters of its text. A token that completes a
    character begins where the character does."""

    def __init__(self, tokenizer: Tokenizer, echo: str) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = len(echo)

    def take(self, token: int, skip_special: bool) -> int:
        begin = self._num_chars
        if not (skip_special and self._tokenizer.is_special(token)):
            self._num_chars += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return begin


def _has_more_than_text(part: ChoiceDelta) -> bool:
    return bool(part.logprobs) or part.finish_reason is not None


def _spelling(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
