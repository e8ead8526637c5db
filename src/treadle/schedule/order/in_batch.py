"""Of requests that begin alike the later ones wait, and find what the first has computed.

SGLang's in-batch prefix check. It looks only at prefixes that the cache does not have yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class InBatchCheck(NamedTuple):
    """Who is put behind all others in this round."""

    cached: int
    """Requests of which the cache has more tokens than these are not looked at; -1: none are."""
    shared: int
    """Tokens that one must share with an earlier request to be put behind."""

    def deferred(self, waiting: Sequence[R], outlook: Outlook[R]) -> set[R]:
        """Two requests share so many tokens if so many of their first are equal: a tree of what the
        earlier ones begin with comes to a set."""
        behind: set[R] = set()
        begun: set[tuple[str, tuple[int, ...]]] = set()
        if self.cached < 0:
            return behind
        for request in waiting:
            if outlook.match(request).num_tokens > self.cached:
                continue
            start = tuple(request.tokens[: self.shared])
            if (request.cache_salt, start) in begun:
                behind.add(request)
            elif len(start) == self.shared:
                begun.add((request.cache_salt, start))
        return behind
