"""Intake: what must hold of a request before it is queued, and how it becomes Generates.

Checked once, here, for HTTP and Python callers alike; what passes is of another type, `Accepted`.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from treadle.errors import InvalidRequest
from treadle.text.lengths import settle
from treadle.text.tokenizer import Tokenizer
from treadle.wire.constraint import Constraint
from treadle.wire.messages import Generate, Ready
from treadle.wire.sampling_params import SamplingParams

_SEED_BITS = 64


MAX_ANSWERS = 1024
"""Prompts times n of one call: what one client may queue at a stroke, unless the server says."""

MAX_SALT_CHARS = 1024
"""vLLM's limit."""


class Place(NamedTuple):
    """What a request says of its place among the waiting ones; the engine's settings say what comes
    of it."""

    priority: int | None = None
    routing_key: str = ""

    def check(self) -> None:
        """Raise InvalidRequest for what cannot be sent."""
        if self.priority is not None and not -(2**63) < self.priority < 2**63:
            raise InvalidRequest(
                f"priority is {self.priority}; it must fit in 64 bits", param="priority"
            )
        if len(self.routing_key) > MAX_SALT_CHARS:
            raise InvalidRequest(
                f"routing_key may have at most {MAX_SALT_CHARS} characters", param="routing_key"
            )


ANYWHERE = Place()


@dataclasses.dataclass(frozen=True)
class Accepted:
    """A prompt and parameters that passed `check`; `params.max_tokens` is a number."""

    prompt: list[int]
    params: SamplingParams
    bad_words: list[list[int]] = dataclasses.field(default_factory=list)
    cache_salt: str | None = None
    """Where set, in place of the call's."""
    constraint: Constraint | None = None
    place: Place = ANYWHERE


def check(
    prompt: list[int], params: SamplingParams, engine: Ready, tokenizer: Tokenizer
) -> Accepted:
    """Raise what is wrong with a request, or accept it; its longest answer is then known."""
    vocab_size = min(engine.vocab_size, tokenizer.vocab_size)
    params.check(vocab_size)
    if not prompt:
        raise InvalidRequest("the prompt holds no token", param="prompt")
    params = _end_turns(settle(len(prompt), params, engine), engine, tokenizer)
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"prompt holds {token}; token ids run from 0 to {vocab_size - 1}", param="prompt"
            )
    if params.prompt_logprobs_start > len(prompt):
        raise InvalidRequest(
            f"scoring cannot start at token {params.prompt_logprobs_start}; the prompt has"
            f" {len(prompt)}",
            param="prompt_logprobs_start",
        )
    asked = params.structured_outputs
    return Accepted(
        prompt,
        params,
        _spellings(params.bad_words or [], tokenizer),
        constraint=None if asked is None else asked.constraint,
    )


def fan_out(requests: Sequence[Accepted], request_id: str, cache_salt: str) -> list[Generate]:
    """One Generate per prompt and choice, in the order of the choices' indices. A prompt is scored
    for its first choice alone; see SharedScores.

    Raises InvalidRequest where a salt is no text, or too long.
    """
    generates: list[Generate] = []
    for request in requests:
        params = request.params
        salt = cache_salt if request.cache_salt is None else request.cache_salt
        _check_salt(salt)
        request.place.check()
        drawn = secrets.randbits(_SEED_BITS) if params.seed is None else params.seed
        first = len(generates)
        generates += (
            Generate(
                request_id=f"{request_id}-{first + choice}",
                prompt=request.prompt,
                params=_of_choice(params, choice),
                seed=drawn % 2**_SEED_BITS,
                choice=choice,
                cache_salt=salt,
                bad_words=request.bad_words,
                constraint=request.constraint,
                constraint_field=_field_of(params),
                priority=request.place.priority,
                routing_key=request.place.routing_key,
            )
            for choice in range(params.n)
        )
    return generates


def _of_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """The constraint goes beside them."""
    own: dict[str, Any] = {"n": 1, "structured_outputs": None}
    if choice:
        own |= {"prompt_logprobs": None, "prompt_logprobs_start": 0}
    return msgspec.structs.replace(params, **own)


def _field_of(params: SamplingParams) -> str:
    asked = params.structured_outputs
    return "structured_outputs" if asked is None else asked.given_as


def _check_salt(salt: object) -> None:
    if not isinstance(salt, str) or len(salt) > MAX_SALT_CHARS:
        raise InvalidRequest(
            f"cache_salt must be a text of at most {MAX_SALT_CHARS} characters", param="cache_salt"
        )


def _spellings(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Each word's tokens within a text, and those behind a space, where that is one token sequence
    more of the same length (vLLM's rule)."""
    found: list[list[int]] = []
    for word in words:
        bare = word.lstrip() or word
        inner = tokenizer.encode(bare, add_special=False)
        spaced = tokenizer.encode(" " + bare, add_special=False)
        found.append(inner)
        if spaced[0] != inner[0] and len(spaced) == len(inner):
            found.append(spaced)
    return found


def _end_turns(params: SamplingParams, engine: Ready, tokenizer: Tokenizer) -> SamplingParams:
    """Tokens that end a turn by their spelling, though the model's file does not name them as ends,
    stop the answer like stop tokens (as vLLM treats further end tokens of a generation config)."""
    unnamed = sorted(tokenizer.eos_ids.difference(engine.eos_token_ids))
    if params.ignore_eos or not unnamed:
        return params
    return msgspec.structs.replace(params, stop_token_ids=[*params.stop_token_ids, *unnamed])


def check_number(num_prompts: int, n: int, most: int = MAX_ANSWERS) -> None:
    """Raise InvalidRequest where an HTTP request asks for more answers than one may."""
    if num_prompts * n > most:
        raise InvalidRequest(
            f"{num_prompts} prompts with n = {n} ask for {num_prompts * n} answers; one request may"
            f" ask for {most}",
            param="n" if num_prompts <= most else "prompt",
        )
