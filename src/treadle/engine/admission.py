"""What the engine accepts: a request that window and KV pool can hold, of ids that exist.

The text side has checked the same with better words; here it is checked against what is, so that
nothing behind this point can meet a request that never ends.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from treadle.engine.guide import Guide
from treadle.engine.limits import UNLIMITED, Limits
from treadle.engine.priorities import REFUSED, Priorities
from treadle.errors import EngineError, InvalidRequest, PromptTooLong, TreadleError
from treadle.wire.messages import OWN_LENGTHS, Generate, Lengths
from treadle.wire.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True)
class Served:
    """What the engine must know of the model and its own size to accept and end requests."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    """The model's own first."""
    overlap_depth: int
    priorities: Priorities = REFUSED
    limits: Limits = UNLIMITED
    lengths: Lengths = OWN_LENGTHS
    resolved: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings in effect, for people to look at."""
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What they were resolved from: `model`, `machine`."""


def longest_answer(message: Generate, served: Served, capacity_tokens: int) -> int:
    """The most tokens the answer may have. Raises when window or pool can never hold them."""
    message.params.check(served.vocab_size)
    num_prompt, asked = len(message.prompt), message.params.max_tokens
    if num_prompt == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    ids = [*message.prompt, *(token for word in message.bad_words for token in word)]
    if min(ids) < 0 or max(ids) >= served.vocab_size:
        limit = served.vocab_size - 1
        raise InvalidRequest(f"prompt token ids run from 0 to {limit}", param="prompt")
    if not all(message.bad_words):
        raise InvalidRequest("a bad word has no token", param="bad_words")
    least = 1 if asked is None else asked
    for what, limit in (
        ("the model's window", served.max_model_len),
        ("the KV cache", capacity_tokens),
    ):
        if num_prompt + least > limit:
            raise PromptTooLong(
                f"{what} holds {limit} tokens; the prompt has {num_prompt}"
                + (f" and max_tokens is {asked}" if asked else ""),
                param="prompt" if num_prompt >= limit else "max_tokens",
            )
    return min(served.max_model_len, capacity_tokens) - num_prompt if asked is None else asked


def out_of_kv(num_tokens: int) -> TreadleError:
    """What is said to a request that runs alone and finds no block for its next token."""
    return EngineError(f"the KV cache holds no more than this request's {num_tokens} tokens")


def nothing_to_choose(params: SamplingParams, guide: Guide | None) -> TreadleError:
    """What is said to a request for whose next token no choice is left: by its own restrictions, or
    because the model computed no number."""
    if guide is not None:
        return _nothing_fits(params, guide)
    if params.restricted:
        return InvalidRequest(
            "no token is left to choose: allowed_token_ids, bad_words, logit_bias and min_tokens"
            " together rule out all of them",
            param="allowed_token_ids" if params.allowed_token_ids else None,
        )
    return EngineError("the model's output is not a number; its weights may be damaged")


def _nothing_fits(params: SamplingParams, guide: Guide) -> TreadleError:
    if guide.failure is not None:
        return InvalidRequest(f"{guide.field}: {guide.failure}", param=guide.field)
    if params.restricted:
        return InvalidRequest(
            f"no token is left to choose: {guide.field} and what else the request rules out"
            " (allowed_token_ids, bad_words, logit_bias, min_tokens) leave none together",
            param=guide.field,
        )
    return EngineError("the model's output is not a number; its weights may be damaged")
