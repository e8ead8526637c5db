"""What the cache has of waiting requests."""

from __future__ import annotations

from typing import Generic, TypeVar

from treadle.schedule.ports import KV, KVMatch, Schedulable

R = TypeVar("R", bound=Schedulable)


class Matches(Generic[R]):
    """Those that cannot start are asked for with every step; each is looked for again only once the
    cache, or the request itself, has changed."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._version = kv.version
        self._found: dict[R, tuple[int, KVMatch]] = {}
        """How many tokens could have been found, and the match."""

    def of(self, request: R) -> KVMatch:
        if self._version != self._kv.version:
            self._version = self._kv.version
            self._found.clear()
        reusable = request.reusable
        found = self._found.get(request)
        if found is None or found[0] != reusable:
            match = self._kv.match(request.tokens[:reusable], request.cache_salt)
            self._found[request] = found = reusable, match
        return found[1]
