"""The messages that cross between the text side and the engine.

Each Generate ends in exactly one Delta with a `finish`, or in one Failed, also when it is refused,
aborted, or the engine dies. Tensors never travel here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.wire.constraint import Constraint
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
    bad_words: list[list[int]] = []
    """Token sequences that the answer must not hold; see SamplingParams.bad_words."""
    constraint: Constraint | None = None
    """What `params.structured_outputs` comes to."""
    constraint_field: str = "structured_outputs"
    """The field of the request that it came in, for errors."""
    priority: int | None = None
    """As it was asked for; what it means is the engine's setting."""
    routing_key: str = ""
    """What requests belong together by, where the waiting order looks at it."""


class Abort(msgspec.Struct, tag=True):
    """Text side → engine: nobody waits for this request any more. Unknown ids are ignored."""

    request_id: str


class Bye(msgspec.Struct, tag=True):
    """Text side → engine: stop. Requests still running end with finish "abort"."""


class Pause(msgspec.Struct, tag=True):
    """Text side → engine: start no further step until Resume; requests may still arrive and wait.

    "abort" ends every request first, "wait" lets those present end first, "keep" freezes them.
    Answered by Done, with "wait" once the last has ended.
    """

    call: int
    mode: Literal["abort", "wait", "keep"]


class Resume(msgspec.Struct, tag=True):
    """Text side → engine: go on after a Pause. Answered by Done."""

    call: int


class ResetCache(msgspec.Struct, tag=True):
    """Text side → engine: forget every cached prefix. Answered by Done; not ok while requests hold
    some of them."""

    call: int


class Done(msgspec.Struct, tag=True):
    """Engine → text side: the Pause, Resume or ResetCache of this number has been carried out."""

    call: int
    ok: bool
    """Whether it has; else nothing was changed."""


class TokenLogprob(msgspec.Struct, array_like=True):
    """Log-probabilities at one token's place under the model's unmodified distribution."""

    token: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: list[tuple[int, float]]
    """The most likely (token id, log-probability), best first."""
    asked: list[tuple[int, float]] = []
    """Those of `logprob_token_ids`, in the order in which they were asked for."""


class Timings(msgspec.Struct, array_like=True):
    """Where the time of one request went, in seconds."""

    queue_s: float
    """From its arrival at the engine until it was first scheduled."""
    prefill_s: float
    """From then to its first token."""
    decode_s: float
    """From then to its last."""


class Delta(msgspec.Struct, tag=True, kw_only=True):
    """Engine → text side: the next tokens of an answer."""

    request_id: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    """One per token when the request asked for them."""
    finish: Finish | None = None
    stop_token: int | None = None
    """The token that ended the answer, one of stop_token_ids or a further end token of the model;
    None for the model's own EOS and every other end (vLLM's rule)."""
    ends_in_text: bool = False
    """With finish "stop": the constraint leaves nothing to follow, so that the last token belongs
    to the text; else it is the token that ended the answer."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix cache when the request first started."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """The next prompt tokens scored, in order; they come in parts as the prompt is computed, and
    all of them before the first token of the answer."""
    timings: Timings | None = None
    """With `finish`, when the request was scheduled at all."""


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


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """How long prompts and answers may be; see text.lengths."""

    rule: Literal["window", "sglang", "trtllm"] = "window"
    block_size: int = 1
    step_tokens: int | None = None
    """The longest prompt that a step takes, where none is divided among steps."""
    truncate: bool = False
    """Whether a prompt that is too long is cut."""


OWN_LENGTHS = Lengths()


class Ready(msgspec.Struct, tag=True, kw_only=True):
    """Engine → text side: requests are served from now on."""

    max_model_len: int
    """Window in tokens, prompt and answer together."""
    vocab_size: int
    kv_capacity_tokens: int
    lengths: Lengths = OWN_LENGTHS
    eos_token_ids: list[int]
    resolved: dict[str, Any] = {}
    """The settings in effect, by name; see config.resolve.Resolved."""
    inputs: dict[str, Any] = {}
    """What they were resolved from: `model`, `machine`."""


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
    """Times a request gave way, in whatever manner."""
    steps: int
    retractions: int = 0
    """Of the preemptions, those that left nothing in the cache."""
    displacements: int = 0
    """Of the preemptions, those for a more important request that waited."""
    pauses: int = 0
    """Times a running request found no blocks, and kept its own until there were some."""
    chunks: int = 0
    """Parts of prompts, or of what is computed again, that did not reach its end."""
    postponements: int = 0
    """Times a waiting request was passed over for what another was about to compute."""
    evicted_tokens: int = 0
    """Cached tokens that had to make room for others."""
    step_tokens: int = 0
    """Tokens computed in all steps: prompts without their cached part, and answers."""
    paused: bool = False
    compiling: int = 0
    """Requests, among the waiting ones, whose grammar is being compiled."""
    forced_tokens: int = 0
    """Tokens of answers that a grammar left no choice for, and that took no step of their own."""


ToEngine = Generate | Abort | Bye | Pause | Resume | ResetCache
FromEngine = Delta | Failed | Progress | Ready | Stats | Done
