"""What Python callers get, under vLLM's names, and how it grows from the parts of answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence

from treadle.text.choice import ChoiceDelta
from treadle.text.intake import Accepted
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import Timings, TokenLogprob


@dataclasses.dataclass(frozen=True)
class Logprob:
    """One token's log-probability under the model's unmodified distribution."""

    logprob: float
    rank: int | None
    """1 for the most likely token; None for one of `logprob_token_ids`."""
    decoded_token: str


TokenLogprobs = dict[int, Logprob]
"""At one place: the token there, the most likely ones and those asked for, by id."""


@dataclasses.dataclass(frozen=True)
class CompletionOutput:
    """One of the n answers to a prompt, or what is new of it."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum over the whole answer so far; None unless log-probabilities were asked for."""
    logprobs: list[TokenLogprobs] | None
    """One entry per token of `token_ids`."""
    finish_reason: str | None
    """"stop", "length" or "abort"; None while the answer goes on."""
    stop_reason: str | int | None
    """The stop string or stop token that ended the answer; None for EOS and length."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass(frozen=True)
class RequestMetrics:
    """When things happened to a request, in seconds since the epoch. With several answers: to the
    first of them, and `finished_time` to the last. None until it has happened."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_in_queue(self) -> float | None:
        return self.first_scheduled_time and self.first_scheduled_time - self.arrival_time


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    """None when token ids were given."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None
    """One entry per prompt token; None for the first, which nothing predicts, and for those before
    `prompt_logprobs_start`. None as a whole unless asked for."""
    outputs: list[CompletionOutput]
    finished: bool
    """Whether all n answers are complete."""
    metrics: RequestMetrics
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


class Answers:
    """The n answers to one prompt as they grow. What was handed out does not change any more."""

    def __init__(
        self, request_id: str, prompt: str | None, accepted: Accepted, tokenizer: Tokenizer
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._accepted = accepted
        self._tokenizer = tokenizer
        self._arrived = time.time()
        self._timings: list[Timings] = []
        self._answers = [_Answer() for _ in range(accepted.params.n)]
        self._prompt_logprobs = self._unscored()
        self._cached_tokens = 0

    @property
    def finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self._answers)

    def add(self, choice: int, part: ChoiceDelta) -> None:
        answer = self._answers[choice]
        answer.text += part.text
        answer.token_ids += part.token_ids
        answer.logprobs += self._named(part.logprobs)
        answer.cumulative += sum(entry.logprob for entry in part.logprobs)
        answer.finish_reason, answer.stop_reason = part.finish_reason, part.stop_reason
        if choice == 0 and self._prompt_logprobs is not None:
            # All n score the prompt alike.
            self._prompt_logprobs += self._named(part.prompt_logprobs)
        if part.timings is not None:
            self._timings.append(part.timings)
        self._cached_tokens = max(self._cached_tokens, part.cached_tokens)

    def abort(self) -> None:
        """End all n before any token."""
        for answer in self._answers:
            answer.finish_reason = "abort"

    def so_far(self) -> RequestOutput:
        """All answers from their beginnings."""
        return self._output(
            [self._completion(index, answer, _Seen()) for index, answer in enumerate(self._answers)]
        )

    def take_news(self) -> RequestOutput:
        """Of the answers that have grown or ended since the last call, what is new."""
        news = []
        for index, answer in enumerate(self._answers):
            seen, answer.seen = answer.seen, answer.extent()
            if answer.seen != seen:
                news.append(self._completion(index, answer, seen))
        return self._output(news)

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        scores = self._prompt_logprobs
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._accepted.prompt,
            prompt_logprobs=None if scores is None else list(scores),
            outputs=outputs,
            finished=self.finished,
            metrics=_metrics(self._arrived, self._timings),
            num_cached_tokens=self._cached_tokens,
        )

    def _completion(self, index: int, answer: _Answer, seen: _Seen) -> CompletionOutput:
        scored = self._accepted.params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=answer.text[seen.chars :],
            token_ids=answer.token_ids[seen.tokens :],
            cumulative_logprob=answer.cumulative if scored else None,
            logprobs=answer.logprobs[seen.tokens :] if scored else None,
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )

    def _unscored(self) -> list[TokenLogprobs | None] | None:
        params = self._accepted.params
        if params.prompt_logprobs is None:
            return None
        start = max(params.prompt_logprobs_start, 1)
        return [None] * min(start, len(self._accepted.prompt))

    def _named(self, entries: Iterable[TokenLogprob]) -> list[TokenLogprobs]:
        return [named_logprobs(entry, self._tokenizer) for entry in entries]


@dataclasses.dataclass
class _Seen:
    """How much of an answer was handed out as news."""

    chars: int = 0
    tokens: int = 0
    finished: bool = False


@dataclasses.dataclass
class _Answer:
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    cumulative: float = 0.0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    seen: _Seen = dataclasses.field(default_factory=_Seen)

    def extent(self) -> _Seen:
        return _Seen(len(self.text), len(self.token_ids), self.finish_reason is not None)


def named_logprobs(entry: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobs:
    """By token id: the token itself, then the most likely ones, then those asked for."""
    text = tokenizer.token_text
    named = {entry.token: Logprob(entry.logprob, entry.rank, text(entry.token))}
    for rank, (token, logprob) in enumerate(entry.top, 1):
        named.setdefault(token, Logprob(logprob, rank, text(token)))
    for token, logprob in entry.asked:
        named.setdefault(token, Logprob(logprob, None, text(token)))
    return named


def _metrics(arrived: float, timings: Sequence[Timings]) -> RequestMetrics:
    if not timings:
        return RequestMetrics(arrived)
    return RequestMetrics(
        arrival_time=arrived,
        first_scheduled_time=arrived + min(each.queue_s for each in timings),
        first_token_time=arrived + min(each.queue_s + each.prefill_s for each in timings),
        finished_time=arrived
        + max(each.queue_s + each.prefill_s + each.decode_s for each in timings),
    )
