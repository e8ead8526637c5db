"""Whether a token ends its answer, and why."""

from __future__ import annotations

from typing import NamedTuple

from treadle.engine.admission import Served
from treadle.engine.request import Request
from treadle.wire.messages import Finish


class End(NamedTuple):
    """Why an answer is over."""

    finish: Finish
    stop_token: int | None = None
    """See `wire.messages.Delta.stop_token`."""
    in_text: bool = False
    """See `wire.messages.Delta.ends_in_text`."""


def end_of(request: Request, served: Served, *, ahead: int) -> End | None:
    """The end that the answer's newest token makes; its guide stands `ahead` tokens behind it."""
    params, token, ends = request.params, request.tokens[-1], served.eos_token_ids
    if request.num_output >= params.min_tokens:
        if not params.ignore_eos and token in ends:
            return End("stop", None if token == ends[0] else token)
        if token in params.stop_token_ids:
            return End("stop", token)
    guide = request.guide
    if guide is not None and not ahead and guide.is_over:
        # Whatever min_tokens and ignore_eos say: there is nothing to go on with.
        return End("stop", in_text=token not in ends)
    return End("length") if request.num_output >= request.max_tokens else None
