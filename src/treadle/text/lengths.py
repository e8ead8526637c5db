"""How long prompts and answers may be: treadle's own rule, and those of engines that have others.

What the window or the KV cache can never hold, the engine refuses whatever the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from treadle.errors import PromptTooLong
from treadle.wire.messages import Ready
from treadle.wire.sampling_params import SamplingParams

RESERVED = 5
"""SGLang: prompt tokens short of the longest request."""


def longest_kept(engine: Ready) -> int | None:
    """How many of its first tokens a longer prompt keeps; None where it is refused."""
    return max(_longest_input(engine), 1) if engine.lengths.truncate else None


def settle(num_prompt: int, params: SamplingParams, engine: Ready) -> SamplingParams:
    """The parameters with `max_tokens` a number. Raises PromptTooLong."""
    return _RULES[engine.lengths.rule](num_prompt, params, engine)


def _by_window(num_prompt: int, params: SamplingParams, engine: Ready) -> SamplingParams:
    """Prompt and answer fit the window and the KV cache; an open answer takes what is left."""
    limit = min(engine.max_model_len, engine.kv_capacity_tokens)
    num_answer = 1 if params.max_tokens is None else params.max_tokens
    if num_prompt + num_answer > limit:
        what = (
            f"maximum context length is {engine.max_model_len} tokens"
            if limit == engine.max_model_len
            else f"KV cache holds {engine.kv_capacity_tokens} tokens"
        )
        raise _too_long(what, num_prompt, num_answer, limit)
    if params.max_tokens is None:
        # Checks itself anew: min_tokens has something to be compared with now.
        params = msgspec.structs.replace(params, max_tokens=limit - num_prompt)
    return params


def _as_trtllm(num_prompt: int, params: SamplingParams, engine: Ready) -> SamplingParams:
    """Where prompts are not chunked, one that no step can take is refused."""
    step = engine.lengths.step_tokens
    if step is not None and num_prompt > step:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens; a step takes {step} (max_num_batched_tokens), and"
            " prompts are not divided among steps here",
            param="prompt",
        )
    return _by_window(num_prompt, params, engine)


def _as_sglang(num_prompt: int, params: SamplingParams, engine: Ready) -> SamplingParams:
    """What is asked for must fit the window; what the pool cannot hold is taken off the answer."""
    window, asked = engine.max_model_len, params.max_tokens
    if engine.lengths.truncate:
        asked = asked and min(asked, window - num_prompt)
    elif num_prompt + (asked or 0) > window:
        what = f"maximum context length is {window} tokens"
        raise _too_long(what, num_prompt, asked or 0, window)
    elif num_prompt >= _longest_input(engine):
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens; this server takes fewer than"
            f" {_longest_input(engine)}, {RESERVED} short of its longest request",
            param="prompt",
        )
    size, pool = engine.lengths.block_size, engine.kv_capacity_tokens
    left = (
        _longest_request(engine) - num_prompt - 1,
        pool - -(-num_prompt // size) * size - size - 1,
    )
    longest = max(0, min(left) if asked is None else min(asked, *left))
    return msgspec.structs.replace(
        params, max_tokens=longest, min_tokens=min(params.min_tokens, longest)
    )


_RULES: Mapping[str, Callable[[int, SamplingParams, Ready], SamplingParams]] = {
    "window": _by_window,
    "sglang": _as_sglang,
    "trtllm": _as_trtllm,
}


def _longest_request(engine: Ready) -> int:
    return min(engine.max_model_len - 1, engine.kv_capacity_tokens - 1)


def _longest_input(engine: Ready) -> int:
    return _longest_request(engine) - RESERVED


def _too_long(what: str, num_prompt: int, num_answer: int, limit: int) -> PromptTooLong:
    return PromptTooLong(
        f"this model's {what}, and the request needs {num_prompt + num_answer}: "
        f"{num_prompt} in the prompt and {num_answer} for the answer",
        param="prompt" if num_prompt >= limit else "max_tokens",
    )
