"""What a source says about a vocabulary, and how its tokens spell bytes.

A source is a GGUF file or a directory; each has a module that reads it into a Vocabulary. Never
encodes by itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from treadle.text.encoders import Encoder

SPACE = "▁"
"""How SentencePiece vocabularies spell a space."""

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end an answer, also where a model's files forget them."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """All that tells one tokenizer from another. Ids in it are those of `tokens`."""

    tokens: Sequence[str]
    """By id; an id that no token has is empty."""
    spell: Callable[[str], bytes]
    """From an ordinary token's text to its bytes."""
    literal: frozenset[int]
    """Tokens that stand for their own text."""
    special: frozenset[int]
    """Control tokens, which are no part of an answer's text."""
    encoder: Encoder
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    before: tuple[int, ...] = ()
    """What a prompt starts with where special tokens are wanted."""
    after: tuple[int, ...] = ()
    prefix_space: bool = False
    """Whether encoding puts a space in front of a text, which decoding takes away again."""


def spell_byte_level(text: str) -> bytes:
    """Each letter is a byte."""
    try:
        return text.translate(_BYTE_OF_LETTER).encode("latin-1")
    except UnicodeEncodeError:  # a letter outside the byte alphabet: the text is literal
        return text.encode()


def spell_sentencepiece(text: str) -> bytes:
    """UTF-8 in which a sign stands for spaces, or a single byte by its number."""
    if found := BYTE_TOKEN.fullmatch(text):
        return bytes([int(found[1], 16)])
    return text.replace(SPACE, " ").encode()


BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[int, int]:
    """Code point of a letter in the vocabulary → the byte it stands for.

    Printable Latin-1 stands for itself; the other bytes, in order, for the letters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{256 + i: b for i, b in enumerate(others)}}


_BYTE_OF_LETTER = _byte_alphabet()
