"""SGLang's admission: a request starts if what all are expected to take still fits.

A running request is expected to take the ratio's share of what it may still generate, one that
starts in this step all of it; nobody more than a bound. Cached blocks count as free. Of a prompt
that is not computed whole, the answer is charged with its last chunk.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from treadle.schedule import policy
from treadle.schedule.admission.ratio import NewTokenRatio
from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission

R = TypeVar("R", bound=Schedulable)


class Left(NamedTuple):
    """Tokens of one KV group."""

    total: float
    """Available, less what is expected to be taken."""
    current: int
    """Available, less what this step takes."""


class Estimate(Admission[R]):
    """An engine in which nobody runs takes the first request that fits, whatever is expected."""

    def __init__(self, running: Running[R], ratio: NewTokenRatio, params: policy.Estimate) -> None:
        self._running = running
        self._ratio = ratio
        self._clip = params.clip_tokens
        self._set_aside = 0
        self._left: list[Left] | None = None

    @property
    def left(self) -> list[Left]:
        """The accounts, one a group; drawn up once a step, when first asked for."""
        if self._left is None:
            self._left = self._draw_up()
        return self._left

    def open(self, set_aside: int = 0) -> None:
        self._set_aside = set_aside
        self._left = None

    def admits(self, request: R, match: KVMatch, num_tokens: int) -> bool:  # noqa: ARG002
        kv = self._running.kv
        if not self._running.requests:
            return kv.fits(match, len(request.tokens))
        if request.ignore_eos and not kv.finds_prefixes:
            return self._outlives(request)
        answer = self._answer(request)
        whole = self._within(match, len(request.tokens) + answer)
        pins, sizes = kv.pins(match), kv.block_sizes
        return all(
            tokens + size < left.total - pinned * size
            for tokens, size, left, pinned in zip(whole, sizes, self.left, pins, strict=True)
        )

    def missing(self, request: R, match: KVMatch) -> float:
        """Tokens by which what it would take is more than what is left."""
        whole = self._within(match, len(request.tokens) + self._answer(request))
        parts = zip(whole, self.left, strict=True)
        return max(tokens - left.total for tokens, left in parts)

    def frees(self, request: R) -> float:
        """What a running request is expected to take yet."""
        return self._ratio.value * self._answer(request)

    def charge(self, request: R, match: KVMatch, num_tokens: int) -> None:
        end = match.num_tokens + num_tokens
        last = end == len(request.tokens)
        answer = min(request.max_tokens, self._clip) if last else 0
        pins = self._running.kv.pins(match)
        self._take(self._within(match, end), self._within(match, end + answer), pins)

    def goes_on(self, request: R, num_tokens: int) -> int:  # noqa: ARG002
        """It must go on, or what it holds would be held in vain."""
        most = int(min(left.total for left in self.left))
        return min(num_tokens, most) if most > 0 else num_tokens

    def went_on(self, request: R, num_tokens: int) -> None:
        last = request.num_computed >= len(request.tokens)
        answer = min(request.max_tokens, self._clip) if last else 0
        step = [num_tokens for _ in self.left]
        self._take(step, [tokens + answer for tokens in step], [0 for _ in step])

    def rest(self) -> None:
        self._ratio.reset()

    def _draw_up(self) -> list[Left]:
        kv = self._running.kv
        sizes = kv.block_sizes
        expected = [0.0 for _ in sizes]
        for request in self._running.requests:
            if request.known - request.num_computed > 1:
                continue  # charged as it goes on with its prompt
            share = self._ratio.value * self._answer(request)
            missing = kv.missing(request.lease, request.known + self._answer(request))
            for group, size in enumerate(sizes):
                # More than a window holds is never taken.
                expected[group] += min(share, (missing[group] + 1) * size)
        return [
            Left(blocks * size - self._set_aside - taken, blocks * size - self._set_aside)
            for blocks, size, taken in zip(kv.available, sizes, expected, strict=True)
        ]

    def _answer(self, request: R) -> int:
        """The most that it is expected to generate yet."""
        return min(max(request.max_tokens - request.generated, 0), self._clip)

    def _within(self, match: KVMatch, num_tokens: int) -> list[int]:
        """Tokens, per group, that are not cached, or as many as a window holds."""
        kv = self._running.kv
        new = num_tokens - match.num_tokens
        price = zip(kv.price(match, num_tokens), kv.pins(match), kv.block_sizes, strict=True)
        return [min(new, (blocks - pinned) * size) for blocks, pinned, size in price]

    def _take(self, step: list[int], whole: list[int], pins: object) -> None:
        parts = zip(self.left, step, whole, pins, self._running.kv.block_sizes, strict=True)  # type: ignore[call-overload]
        self._left = [
            Left(
                left.total - _ceil(now, size) - (later - now) - size - pinned * size,
                left.current - _ceil(now, size) - size - pinned * size,
            )
            for left, now, later, pinned, size in parts
        ]

    def _outlives(self, request: R) -> bool:
        """Whether all find their tokens up to their ends, where nothing is left in a cache and the
        request surely takes all that it may: walk from the first that ends to the last."""
        size = self._running.kv.block_sizes[0]
        new = _ceil(len(request.tokens), size)
        current = min(left.current for left in self.left)
        if new > min(current, *(left.total for left in self.left)):
            return False
        ends = sorted(
            (left, other.known)
            for other in (request, *self._running.requests)
            if (left := self._yet(other)) > 0
        )
        free = float(current - new)
        for index, (left, occupied) in enumerate(ends):
            alive = len(ends) - index
            if free - left * alive <= alive:
                return False
            free += occupied
        return True

    def _yet(self, request: R) -> float:
        share = 1.0 if request.ignore_eos else self._ratio.value
        return request.max_tokens * share - request.generated


def _ceil(num_tokens: int, size: int) -> int:
    return -(-num_tokens // size) * size
