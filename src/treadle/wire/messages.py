"""The messages that cross between the text side and the engine.

Each Generate ends in exactly one Delta with a `finish`, or in one Failed, also when it is refused,
aborted, or the engine dies. Tensors never travel here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.wire.sampling_params import SamplingParams

Finish = Literal["stop", "length", "abort"]


class Generate(msgspec.Struct, tag=True, kw_only=True):
    """Text side → engine: one prompt, one answer."""

    request_id: str
    prompt: list[int]
    """Token ids, at least one."""
    params: SamplingParams
    """`n` is 1 in effect: a request for several answers is one Generate per choice."""
    seed: int
    """Resolved by the text side; 0 to 2**64 - 1."""
    choice: int = 0
    """Index of this answer among the n of its prompt; part of the random key."""
    cache_salt: str = ""
    """KV is shared only between requests of the same salt."""


class Abort(msgspec.Struct, tag=True):
    """Text side → engine: nobody waits for this request any more. Unknown ids are ignored."""

    request_id: str


class Bye(msgspec.Struct, tag=True):
    """Text side → engine: stop. Requests still running end with finish "abort"."""


class TokenLogprob(msgspec.Struct, array_like=True):
    """Log-probabilities of one output token under the model's unmodified distribution."""

    token: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: list[tuple[int, float]]
    """The most likely (token id, log-probability), best first."""


class Delta(msgspec.Struct, tag=True, kw_only=True):
    """Engine → text side: the next tokens of an answer."""

    request_id: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    """One per token when the request asked for them."""
    finish: Finish | None = None
    stop_token: int | None = None
    """The stop_token_ids member that ended the answer; None for EOS and every other end."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix cache when the request first started."""


class Failed(msgspec.Struct, tag=True, kw_only=True):
    """Engine → text side: this request ends without (further) tokens."""

    request_id: str
    status: int
    message: str
    code: str | None = None
    param: str | None = None


class Progress(msgspec.Struct, tag=True):
    """Engine → text side, while starting: a phase that has ended."""

    phase: str
    seconds: float
    detail: str = ""


class Ready(msgspec.Struct, tag=True, kw_only=True):
    """Engine → text side: requests are served from now on."""

    max_model_len: int
    """Window in tokens, prompt and answer together."""
    vocab_size: int
    kv_capacity_tokens: int
    eos_token_ids: list[int]


class Stats(msgspec.Struct, tag=True, kw_only=True):
    """Engine → text side: gauges now, counters since start."""

    running: int
    waiting: int
    kv_usage: float
    """Share of KV blocks held by requests, 0 to 1; evictable cache counts as free."""
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    """Prompt tokens found there."""
    preemptions: int
    steps: int


ToEngine = Generate | Abort | Bye
FromEngine = Delta | Failed | Progress | Ready | Stats
