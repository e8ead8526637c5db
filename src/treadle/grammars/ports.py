"""What the engine sees of a grammar library: a backend compiles, a grammar makes matchers.

    GrammarBackend ──compile(constraint)──▶ Grammar ──matcher()──▶ Matcher
    one per engine    in a thread, cached     shared, immutable      one per row

    each step:   fill(words) while the model computes  →  sample  →  accept(token)

Libraries are imported by their backend alone, when it is made.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from treadle.wire.constraint import Constraint

MaskWords = npt.NDArray[np.uint32]
"""One row, [ceil(vocab_size / 32)]: bit token % 32 of word token // 32 says that it is allowed."""


class Matcher(Protocol):
    """Where one answer stands in its grammar. One thread at a time."""

    def fill(self, words: MaskWords) -> None:
        """Write every word of the row: the tokens that may come next, end tokens of the model among
        them where the text may end. Of several ways to write text that must come, a backend may
        leave the tokenizer's own alone. No bit at all means that nothing can come; `failure` says
        why."""

    def accept(self, token: int) -> bool:
        """Go on by one token; False, and nothing changed, if the grammar forbids it, or a limit was
        met, which `failure` tells. An end token finishes the matcher where the text may end."""

    def forced(self) -> list[int]:
        """Tokens that must come next, as the tokenizer itself would write their text; empty where
        there is a choice or the backend cannot tell. They are not accepted by that."""

    def rollback(self, count: int) -> None:
        """Take back the last accepted tokens; only if `can_roll_back`."""

    def clone(self) -> Matcher:
        """Another one that stands where this one stands."""

    @property
    def can_roll_back(self) -> bool: ...

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here, so that end tokens are allowed."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing but an end token can come, or one has: the answer is over."""

    @property
    def failure(self) -> str | None:
        """Why the matcher can go no further although the text is not complete, as one sentence: a
        limit of the library was met, or no token of the vocabulary fits."""


class Grammar(Protocol):
    """A compiled constraint. Any thread may use it."""

    @property
    def num_bytes(self) -> int:
        """What keeping it costs, roughly."""

    def matcher(self) -> Matcher:
        """One that stands at the start; cheap."""


class GrammarBackend(Protocol):
    """A library over one vocabulary. Any thread may use it."""

    @property
    def name(self) -> str: ...

    def compile(self, constraint: Constraint) -> Grammar:
        """Raises InvalidRequest, whose sentence names the keyword or place at fault, for what is
        wrong, too large, or more than the library enforces: nothing is ignored silently."""
