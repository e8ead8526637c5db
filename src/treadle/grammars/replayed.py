"""Matchers of libraries whose states can neither be copied nor taken back.

What was accepted is kept, and walked again where a copy is wanted. End tokens are told apart here,
not in the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from treadle.grammars.ports import MaskWords


class Walker(Protocol):
    """A library's own state."""

    def fill(self, words: MaskWords) -> None:
        """The tokens that may come next in a row of zeros; end tokens among them or not."""

    def step(self, token: int) -> bool:
        """Go on by a token that is no end; False, and nothing changed, if it is not allowed."""

    @property
    def is_complete(self) -> bool: ...


class ReplayedMatcher:
    """`walker` stands behind `accepted`."""

    can_roll_back = True

    def __init__(
        self, start: Callable[[], Walker], eos_ids: Sequence[int], accepted: Sequence[int] = ()
    ) -> None:
        self._start = start
        self._eos_ids = eos_ids
        self._stuck = False
        self._walk(accepted)

    def _walk(self, tokens: Sequence[int]) -> None:
        self._accepted: list[int] = []
        self._walker = self._start()
        for token in tokens:
            done = self.accept(token)
            assert done, "a token was accepted once and not again"

    def fill(self, words: MaskWords) -> None:
        """See Matcher."""
        words[:] = 0
        if not self._ended:
            self._walker.fill(words)
        complete = self.is_complete
        for token in self._eos_ids:
            bit = np.uint32(1 << token % 32)
            words[token // 32] = words[token // 32] | bit if complete else words[token // 32] & ~bit
        self._stuck = not words.any()

    def accept(self, token: int) -> bool:
        """See Matcher."""
        if self._ended:
            return False
        taken = self.is_complete if token in self._eos_ids else self._walker.step(token)
        if taken:
            self._accepted.append(token)
        return taken

    def forced(self) -> list[int]:
        """These libraries cannot tell."""
        return []

    def rollback(self, count: int) -> None:
        """See Matcher."""
        self._walk(self._accepted[: len(self._accepted) - count])

    def clone(self) -> ReplayedMatcher:
        """See Matcher."""
        return ReplayedMatcher(self._start, self._eos_ids, self._accepted)

    @property
    def _ended(self) -> bool:
        return bool(self._accepted) and self._accepted[-1] in self._eos_ids

    @property
    def is_complete(self) -> bool:
        return self._ended or self._walker.is_complete

    @property
    def is_finished(self) -> bool:
        return self._ended

    @property
    def failure(self) -> str | None:
        return "no token of the vocabulary can come next" if self._stuck else None
