"""Row states that leave only some tokens to choose: one bit per token of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treadle.kernels.ops import IntArray, MaskArray
from treadle.wire.plan import RowJoin

WORD_BITS = 32


class RowMasks(NamedTuple):
    """Masks that the engine made for some rows of a step."""

    rows: list[int]
    words: MaskArray
    """[len(rows), words]"""

    def placed(self, rows: Sequence[int]) -> tuple[IntArray, MaskArray]:
        """The places of the masked rows among those of the step, and their masks."""
        place = {row: at for at, row in enumerate(rows)}
        return np.array([place[row] for row in self.rows], np.int32), self.words


class AllowedTokens:
    """Rows whose request names the tokens it may choose; the others cost nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // WORD_BITS)
        self._rows: dict[int, MaskArray] = {}

    def join(self, join: RowJoin) -> bool:
        """Whether the row is masked."""
        allowed = join.params.allowed_token_ids
        if allowed is not None:
            self._rows[join.row] = bits(allowed, self._words)
        return allowed is not None

    def leave(self, row: int) -> None:
        self._rows.pop(row, None)

    def collect(self, rows: Sequence[int]) -> tuple[IntArray, MaskArray] | None:
        """Of the rows of a step, the places of those that are masked, and their masks [n, words];
        None when there are none."""
        places = [at for at, row in enumerate(rows) if row in self._rows]
        if not places:
            return None
        masks = np.stack([self._rows[rows[at]] for at in places])
        return np.array(places, np.int32), masks


def bits(tokens: Sequence[int], words: int) -> MaskArray:
    """A mask [words] with the bits of `tokens` set; see `SamplingOps.mask`."""
    mask = np.zeros(words, np.uint32)
    ids = np.array(tokens, np.uint32)
    np.bitwise_or.at(mask, ids // WORD_BITS, np.uint32(1) << ids % WORD_BITS)
    return mask
