"""Tokens of one answer to text, as they arrive. Never emits part of a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from treadle.text.tokenizer import Tokenizer


class Detokenizer:
    """All text fed out so far plus `finish` is what decoding all tokens at once gives."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        return self._decoder.decode(b"".join(map(self._bytes, tokens)))

    def finish(self) -> str:
        """What was begun and never completed, as U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token):
            return b""
        return self._tokenizer.token_bytes(token)
