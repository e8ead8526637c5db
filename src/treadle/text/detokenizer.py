"""Tokens of one answer to text, as they arrive. Never emits part of a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from treadle.text.tokenizer import Tokenizer


class Detokenizer:
    """All text fed out so far plus `finish` is what decoding all tokens at once gives."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._spell = tokenizer.visible_bytes if skip_special else tokenizer.token_bytes
        self._begun = b""
        """A character that more bytes may complete."""

    def feed(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        data = b"".join([self._begun, *map(self._spell, tokens)])
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._begun = data[used:]
        return text

    def finish(self) -> str:
        """What was begun and never completed, as U+FFFD."""
        begun, self._begun = self._begun, b""
        return begun.decode(errors="replace")
