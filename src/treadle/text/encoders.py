"""Text to token ids: what every encoder does, and the one that the tokenizers library provides.

Encoders add nothing to a text: what a prompt starts with is the tokenizer's concern.
"""

from __future__ import annotations

import threading
from typing import Protocol

import tokenizers


class Encoder(Protocol):
    """Any thread may use it. Text that has no UTF-8 raises TypeError or UnicodeEncodeError."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Token ids; `parse_special` reads the spelling of a control token as that token."""


class LibraryEncoder:
    """The library's, which the caller leaves alone from then on."""

    def __init__(self, encoder: tokenizers.Tokenizer) -> None:
        encoder.no_truncation()
        encoder.no_padding()
        self._encoder = encoder
        self._plain_encoder: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        encoder = self._encoder if parse_special else self._encoder_of_plain_text()
        # Unlike encode, this lets other threads run meanwhile.
        (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _encoder_of_plain_text(self) -> tokenizers.Tokenizer:
        """The encoder that reads no control tokens, made when first wanted; both share the model.

        Reading them is a switch of the encoder itself, so it takes two for threads to choose.
        """
        with self._lock:
            if self._plain_encoder is None:
                encoder = tokenizers.Tokenizer(self._encoder.model)
                encoder.normalizer = self._encoder.normalizer
                encoder.pre_tokenizer = self._encoder.pre_tokenizer
                # In the order of their ids, so that tokens beyond the model get the same ids.
                added = self._encoder.get_added_tokens_decoder()
                encoder.add_tokens([added[token] for token in sorted(added)])
                encoder.encode_special_tokens = True
                self._plain_encoder = encoder
            return self._plain_encoder
