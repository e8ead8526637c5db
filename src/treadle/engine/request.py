"""A request inside the engine: what it asked for, its tokens, and how far it has come."""

from __future__ import annotations

import dataclasses
from typing import Any

from treadle.engine.guide import Guide
from treadle.wire.messages import Generate, Timings
from treadle.wire.plan import BlockEdit, RowJoin
from treadle.wire.sampling_params import SamplingParams


@dataclasses.dataclass
class Times:
    """When things happened to a request, in seconds of the monotonic clock."""

    arrived: float
    started: float | None = None
    first_token: float | None = None

    def until(self, now: float) -> Timings | None:
        """How the time was spent, for a request that ends now; None if it was never scheduled."""
        if self.started is None:
            return None
        prefilled = now if self.first_token is None else self.first_token
        return Timings(self.started - self.arrived, prefilled - self.started, now - prefilled)


@dataclasses.dataclass(eq=False)
class Request:
    """Lives only in the engine's process. Progress is explained in `schedule.ports`."""

    request_id: str
    params: SamplingParams
    seed: int
    choice: int
    cache_salt: str
    bad_words: list[list[int]]
    num_prompt: int
    tokens: list[int]
    """Prompt, then output."""
    max_tokens: int
    """Resolved: never more than window and KV pool allow."""
    next_score: int
    times: Times
    num_computed: int = 0
    num_pending: int = 0
    num_settled: int = 0
    finished: bool = False
    row: int | None = None
    lease: Any = None
    edits: list[BlockEdit] = dataclasses.field(default_factory=list)
    in_token_table: bool = False
    cached_tokens: int | None = None
    priority: int = 0
    """Less is more important, whichever way it was asked for."""
    routing_key: str = ""
    prefilled_before: int = 0
    guide: Guide | None = None
    """Of an answer that must meet a constraint."""

    @classmethod
    def of(cls, message: Generate, max_tokens: int, now: float, priority: int = 0) -> Request:
        params, num_prompt = message.params, len(message.prompt)
        scored = params.prompt_logprobs is not None
        # Nothing predicts the first token.
        first_score = max(params.prompt_logprobs_start, 1) if scored else num_prompt
        return cls(
            request_id=message.request_id,
            params=params,
            seed=message.seed,
            choice=message.choice,
            cache_salt=message.cache_salt,
            bad_words=message.bad_words,
            num_prompt=num_prompt,
            tokens=list(message.prompt),
            max_tokens=max_tokens,
            next_score=min(first_score, num_prompt),
            times=Times(arrived=now),
            priority=priority,
            routing_key=message.routing_key,
            guide=_guide(message),
        )

    @property
    def arrived(self) -> float:
        return self.times.arrived

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def ignore_eos(self) -> bool:
        return self.params.ignore_eos

    @property
    def known(self) -> int:
        return len(self.tokens) + self.num_pending

    @property
    def generated(self) -> int:
        return self.known - self.num_prompt

    @property
    def reusable(self) -> int:
        """Not the last token, whose logits are wanted, nor the one whose logits score another."""
        scores = self.next_score < self.num_prompt
        return (self.next_score if scores else len(self.tokens)) - 1

    def join(self, row: int) -> RowJoin:
        """What the runner must know to sample for this request in a fresh row."""
        penalised = self.params.penalised
        looks_back = penalised or any(len(word) > 1 for word in self.bad_words)
        return RowJoin(
            row=row,
            params=self.params,
            seed=self.seed,
            choice=self.choice,
            prompt=self.tokens[: self.num_prompt] if penalised else None,
            output=self.tokens[self.num_prompt :] if looks_back else None,
            constrained=self.guide is not None,
            bad_words=self.bad_words,
        )


def _guide(message: Generate) -> Guide | None:
    if message.constraint is None:
        return None
    return Guide(message.constraint, message.constraint_field, message.params)
