"""What the scheduler sees of its neighbours: requests and the KV cache, as structural types.

    request.tokens:  p p p p p p p o o o o  +  num_pending sampled tokens still in flight
                     └ prompt ───┘ └ output
    known    = len(tokens) + num_pending
    computed = tokens with KV, counting those of launched steps; a step lets it catch up with known

Prefill, chunked prefill, a prefix hit and decode are sizes of known - computed, nothing else.

Where prompt tokens are scored, the logits at a position score the token behind it:

    prompt:  p p p p p p p      next_score is the first token, of index 1 or more, without a score;
               ▲ next_score     the position before it must be computed, cached or not
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from treadle.wire.plan import BlockCopy, BlockEdit, RowJoin


class KVMatch(Protocol):
    num_tokens: int


class KVPublished(Protocol):
    edits: list[BlockEdit]
    surplus: list[tuple[int, list[int]]]


class KV(Protocol):
    """See `cache.kv.KVCache`. Matches and leases are opaque here."""

    @property
    def finds_prefixes(self) -> bool: ...
    @property
    def version(self) -> int: ...
    def match(self, tokens: Sequence[int], salt: str) -> Any: ...
    def path(self, match: Any) -> Sequence[object]: ...
    @property
    def block_sizes(self) -> Sequence[int]: ...
    @property
    def num_blocks(self) -> Sequence[int]: ...
    @property
    def alignment(self) -> int: ...
    @property
    def available(self) -> Sequence[int]: ...
    def pins(self, match: Any) -> Sequence[int]: ...
    def price(self, match: Any, num_tokens: int) -> Sequence[int]: ...
    def missing(self, lease: Any, num_tokens: int) -> Sequence[int]: ...
    def growth(self, lease: Any, num_tokens: int) -> Sequence[int]: ...
    def fits(self, match: Any, num_tokens: int) -> bool: ...
    def lease(self, match: Any, salt: str, worth: int) -> tuple[Any, list[BlockEdit]]: ...
    def take_copies(self) -> list[BlockCopy]: ...
    def grow(self, lease: Any, num_tokens: int) -> list[BlockEdit] | None: ...
    def publish(
        self, lease: Any, tokens: Sequence[int], num_computed: int, *, decode: bool
    ) -> Any: ...
    def show(self, lease: Any, tokens: Sequence[int], end: int) -> None: ...
    def hide(self, lease: Any, tokens: Sequence[int], end: int) -> None: ...
    def free(self, surplus: Sequence[tuple[int, list[int]]]) -> None: ...
    def release(self, lease: Any, tokens: Sequence[int], num_computed: int) -> None: ...


class Fence(Protocol):
    """See `cache.fence.Fence`."""

    @property
    def next_step(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def num_deferred(self) -> int: ...
    def defer(self, action: Any) -> None: ...


class Schedulable(Protocol):
    """The part of a request that scheduling reads and writes."""

    request_id: str
    cache_salt: str
    tokens: list[int]
    num_prompt: int
    max_tokens: int
    num_computed: int
    num_pending: int
    num_settled: int
    """Leading tokens whose KV is there, and has been shown to others as far as it can be."""
    finished: bool
    row: int | None
    lease: Any
    edits: list[BlockEdit]
    """Changes of the block table that the runner has not been told yet."""
    in_token_table: bool
    """Whether the newest known token was sampled in the present row, so that the runner has it."""
    cached_tokens: int | None
    """Prefix hit at first admission."""
    priority: int
    """Less is more important."""
    routing_key: str
    """Empty for none."""
    prefilled_before: int
    """`Counters.prefilled` when it arrived."""
    next_score: int
    """Index of the next prompt token to score; num_prompt when none is left."""

    @property
    def arrived(self) -> float:
        """When, in seconds; only compared."""
        ...

    @property
    def ignore_eos(self) -> bool:
        """Whether the answer surely takes all of `max_tokens`."""
        ...

    @property
    def known(self) -> int:
        """Tokens, those in flight too."""
        ...

    @property
    def generated(self) -> int:
        """Of the known tokens, those of the answer."""
        ...

    @property
    def reusable(self) -> int:
        """How many leading tokens may take their KV from the cache."""
        ...

    def join(self, row: int) -> RowJoin: ...
