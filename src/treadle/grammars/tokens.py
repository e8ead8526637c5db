"""The vocabulary as grammar libraries want it: the bytes of every token, and what ends an answer.

Made from a tokenizer once per engine. Never encodes by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from treadle.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Ids run from 0 to `size` - 1, those a model's padded head adds included."""

    spellings: Sequence[bytes]
    """By id: what a token puts into a text; empty for control tokens and ids that have no token,
    which no grammar ever allows."""
    names: Sequence[str]
    """By id: a control token as texts spell it, such as '<|im_end|>'; empty for the others."""
    eos_ids: tuple[int, ...]
    """In ascending order; at least one where answers can end by themselves."""
    encode: Callable[[str], list[int]]
    """A text as the tokenizer writes it, nothing put in front and no control tokens read."""

    @property
    def size(self) -> int:
        return len(self.spellings)

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, size: int, eos_ids: Iterable[int]) -> TokenTable:
        """`size` is the model's, which may be larger than the tokenizer's or smaller."""
        ends = tuple(sorted(token for token in {*eos_ids} if 0 <= token < size))
        silent = {*ends, *(t for t in range(tokenizer.vocab_size) if tokenizer.is_special(t))}

        def encode(text: str) -> list[int]:
            """Behind a line break, so that no space is put in front, as at a text's start."""
            ids = tokenizer.encode("\n" + text, add_special=False, parse_special=False)
            for count in range(1, 4):
                if b"".join(map(tokenizer.token_bytes, ids[:count])).endswith(b"\n"):
                    return ids[count:]
            return tokenizer.encode(text, add_special=False, parse_special=False)

        return cls(
            spellings=[b"" if t in silent else tokenizer.token_bytes(t) for t in range(size)],
            names=[tokenizer.token_text(t) if t in silent else "" for t in range(size)],
            eos_ids=ends,
            encode=encode,
        )
