"""Text to token ids and back, whatever kind of vocabulary a model comes with.

Encoding is the vocabulary's encoder's; decoding is a table of bytes per token, so that an answer
can be decoded token by token. Never renders chats.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from treadle.errors import InvalidRequest
from treadle.text.from_folder import read_folder
from treadle.text.from_gguf import read_gguf
from treadle.text.vocabulary import Vocabulary


class Tokenizer:
    """One vocabulary. Immutable after construction as far as callers see; any thread may use it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)
        self._special = vocabulary.special
        self.bos_id = vocabulary.bos_id
        self.eos_ids = vocabulary.eos_ids
        self.add_bos = vocabulary.bos_id is not None and vocabulary.bos_id in vocabulary.before

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that the `tokenizer.ggml` keys describe."""
        return cls(read_gguf(metadata))

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face model directory."""
        return cls(read_folder(path))

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary.tokens)

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes, so at least the characters, that one token can stand for."""
        return max(len(self.token_bytes(token)) for token in range(self.vocab_size))

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`.

        `add_special` puts BOS in front where the model wants it, unless the text begins with it
        already. `parse_special` reads the spelling of a control token in `text` as that token;
        without it, it is text like any other.
        """
        try:
            ids = self._vocabulary.encoder.encode(text, parse_special=parse_special)
        except (TypeError, UnicodeEncodeError):  # a str that has no UTF-8
            raise InvalidRequest("the text holds a lone surrogate, half of a character") from None
        if not add_special:
            return ids
        before = self._vocabulary.before
        if before and ids[: len(before)] == [*before]:
            before = ()
        return [*before, *ids, *self._vocabulary.after]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The ids as a text of its own, without the space that encoding puts in front of one;
        bytes that are not UTF-8 become U+FFFD."""
        spell = self.visible_bytes if skip_special else self.token_bytes
        text = b"".join(map(spell, ids)).decode(errors="replace")
        return text.removeprefix(" ") if self._vocabulary.prefix_space else text

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; none for ids that the vocabulary does not have, which a
        model with a padded vocabulary can sample."""
        if not 0 <= token < len(self._bytes):
            return b""
        value = self._bytes[token]
        if value is None:
            value = self._bytes[token] = self._spell(token)
        return value

    def visible_bytes(self, token: int) -> bytes:
        """Likewise, but control tokens stand for none."""
        if token in self._special:
            return b""
        known = self._bytes[token] if 0 <= token < len(self._bytes) else b""
        return self.token_bytes(token) if known is None else known

    def _spell(self, token: int) -> bytes:
        text = self._vocabulary.tokens[token]
        return text.encode() if token in self._vocabulary.literal else self._vocabulary.spell(text)

    def token_text(self, token: int) -> str:
        """The token's text on its own; U+FFFD where it holds part of a character."""
        return self.token_bytes(token).decode(errors="replace")

    def spelling(self, token: int) -> str:
        """The token as the vocabulary writes it, such as 'Ġthe' or '▁the'."""
        return self._vocabulary.tokens[token]

    def is_special(self, token: int) -> bool:
        """Whether it is a control token, which is not part of an answer's text."""
        return token in self._special
