"""A request inside the engine: what it asked for, its tokens, and how far it has come."""

from __future__ import annotations

import dataclasses
from typing import Any

from treadle.wire.messages import Generate
from treadle.wire.plan import BlockEdit, RowJoin
from treadle.wire.sampling_params import SamplingParams


@dataclasses.dataclass(eq=False)
class Request:
    """Lives only in the engine's process. Progress is explained in `schedule.ports`."""

    request_id: str
    params: SamplingParams
    seed: int
    choice: int
    cache_salt: str
    num_prompt: int
    tokens: list[int]
    """Prompt, then output."""
    max_tokens: int
    """Resolved: never more than window and KV pool allow."""
    num_computed: int = 0
    num_pending: int = 0
    finished: bool = False
    row: int | None = None
    lease: Any = None
    edits: list[BlockEdit] = dataclasses.field(default_factory=list)
    in_token_table: bool = False
    cached_tokens: int | None = None

    @classmethod
    def of(cls, message: Generate, max_tokens: int) -> Request:
        return cls(
            request_id=message.request_id,
            params=message.params,
            seed=message.seed,
            choice=message.choice,
            cache_salt=message.cache_salt,
            num_prompt=len(message.prompt),
            tokens=list(message.prompt),
            max_tokens=max_tokens,
        )

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def join(self, row: int) -> RowJoin:
        """What the runner must know to sample for this request in a fresh row."""
        history = self.params.penalised
        return RowJoin(
            row=row,
            params=self.params,
            seed=self.seed,
            choice=self.choice,
            prompt=self.tokens[: self.num_prompt] if history else None,
            output=self.tokens[self.num_prompt :] if history else None,
        )
