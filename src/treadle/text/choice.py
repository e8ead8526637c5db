"""One answer on the text side: Deltas of the engine in, parts that a reader sees out."""

from __future__ import annotations

import dataclasses

from treadle.text.output import AnswerText
from treadle.wire.messages import Delta, Finish, Timings, TokenLogprob


@dataclasses.dataclass(slots=True)
class ChoiceDelta:
    """The next part of one answer. The last part of an answer, and only that, has a reason."""

    index: int
    """Prompt index * n + choice."""
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    """One per token when asked for, else empty."""
    cached_tokens: int
    finish_reason: Finish | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended the answer."""
    prompt_logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    """The next prompt tokens scored; all of them come before the first token of the answer."""
    timings: Timings | None = None
    """With the reason, if the engine got as far as starting the request."""

    def append(self, later: ChoiceDelta) -> None:
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.cached_tokens = max(self.cached_tokens, later.cached_tokens)
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.prompt_logprobs += later.prompt_logprobs
        self.timings = later.timings


@dataclasses.dataclass(slots=True)
class Choice:
    """Turns the Deltas of one Generate into parts of one answer."""

    index: int
    text: AnswerText
    cached_tokens: int = 0

    def part(self, delta: Delta) -> ChoiceDelta:
        """Tokens to text; a stop string in it ends the answer whatever the engine thinks. If it
        did not think so, the caller must abort the request."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        finish = delta.finish
        text, num_tokens, stop = self.text.feed(
            delta.tokens,
            final=finish is not None,
            stop_token=finish == "stop" and not delta.ends_in_text,
        )
        return ChoiceDelta(
            self.index,
            text,
            delta.tokens[:num_tokens],
            (delta.logprobs or [])[:num_tokens],
            self.cached_tokens,
            finish if stop is None else "stop",
            delta.stop_token if stop is None else stop,
            delta.prompt_logprobs or [],
            delta.timings,
        )
