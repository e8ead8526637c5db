"""Text to token ids and back, for the byte-level BPE vocabulary of a GGUF file.

Encoding is the tokenizers library's; decoding is a table of bytes per token, so that an answer can
be decoded token by token. Never reads files and never renders chats.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import tokenizers

from treadle.errors import InvalidRequest, ModelFileError
from treadle.text.pretokenizers import PreTokenizer, pre_tokenizer

_CONTROL = 3
_USER_DEFINED = 4

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end an answer, also where a file's metadata forgets them."""


class Tokenizer:
    """One vocabulary. Immutable after construction as far as callers see; any thread may use it."""

    def __init__(
        self,
        tokens: list[str],
        merges: list[str],
        *,
        family: PreTokenizer,
        control: Mapping[str, int],
        user_defined: Mapping[str, int],
    ) -> None:
        self._tokens = tokens
        self._bytes: list[bytes | None] = [None] * len(tokens)
        self._raw = frozenset((*control.values(), *user_defined.values()))
        self._special = frozenset(control.values())
        self._control = control
        self._user_defined = user_defined
        self._encoder = _build_encoder(tokens, merges, family, [*control, *user_defined])
        self._plain_encoder: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        self.bos_id: int | None = None
        self.add_bos = family.add_bos
        self.eos_ids: frozenset[int] = frozenset()

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that the `tokenizer.ggml` keys describe."""
        fields = _Fields(metadata)
        model = fields.get("model", str, "")
        if model != "gpt2":
            raise ModelFileError(
                f"metadata key 'tokenizer.ggml.model' is '{model}'; "
                "only byte-level BPE ('gpt2') is supported"
            )
        tokens = fields.strings("tokens")
        family = pre_tokenizer(fields.get("pre", str, "default"))
        kinds = fields.get("token_type", list, [])
        if kinds and len(kinds) != len(tokens):
            raise ModelFileError(
                f"metadata key 'tokenizer.ggml.token_type' has {len(kinds)} entries "
                f"for {len(tokens)} tokens"
            )
        result = cls(
            tokens,
            fields.strings("merges"),
            family=family,
            control=_of_kind(_CONTROL, tokens, kinds),
            user_defined=_of_kind(_USER_DEFINED, tokens, kinds),
        )
        ids = {name: fields.token_id(name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
        result._set_ends(ids, add_bos=fields.get("add_bos_token", bool, family.add_bos))
        return result

    def _set_ends(self, ids: Mapping[str, int | None], *, add_bos: bool) -> None:
        self.bos_id = ids["bos"]
        self.add_bos = add_bos and self.bos_id is not None
        named = (ids["eos"], ids["eot"], ids["eom"])
        known = (self._control.get(text) for text in _TURN_ENDS)
        self.eos_ids = frozenset(token for token in (*named, *known) if token is not None)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`.

        `add_special` puts BOS in front where the model wants it. `parse_special` reads the spelling
        of a control token in `text` as that token; without it, it is text like any other.
        """
        encoder = self._encoder if parse_special else self._encoder_of_plain_text()
        try:
            # Unlike encode, this lets other threads run meanwhile.
            (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # a str that has no UTF-8
            raise InvalidRequest("the text holds a lone surrogate, half of a character") from None
        ids: list[int] = encoding.ids
        if add_special and self.add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of the ids; bytes that are not UTF-8 become U+FFFD."""
        kept = (token for token in ids if not (skip_special and token in self._special))
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; none for ids that the vocabulary does not have, which a
        model with a padded vocabulary can sample."""
        if not 0 <= token < len(self._tokens):
            return b""
        value = self._bytes[token]
        if value is None:
            value = self._bytes[token] = self._spell(token)
        return value

    def _spell(self, token: int) -> bytes:
        text = self._tokens[token]
        if token not in self._raw:
            try:
                return text.translate(_BYTE_OF_LETTER).encode("latin-1")
            except UnicodeEncodeError:  # a letter outside the byte alphabet: the text is literal
                pass
        return text.encode()

    def token_text(self, token: int) -> str:
        """The token's text on its own; U+FFFD where it holds part of a character."""
        return self.token_bytes(token).decode(errors="replace")

    def is_special(self, token: int) -> bool:
        """Whether it is a control token, which is not part of an answer's text."""
        return token in self._special

    def _encoder_of_plain_text(self) -> tokenizers.Tokenizer:
        """The encoder without control tokens, made when first wanted; both share the model."""
        with self._lock:
            if self._plain_encoder is None:
                encoder = tokenizers.Tokenizer(self._encoder.model)
                encoder.normalizer = self._encoder.normalizer
                encoder.pre_tokenizer = self._encoder.pre_tokenizer
                encoder.add_tokens(
                    [tokenizers.AddedToken(text, normalized=False) for text in self._user_defined]
                )
                self._plain_encoder = encoder
            return self._plain_encoder


def _byte_alphabet() -> dict[int, int]:
    """Code point of a letter in the vocabulary → the byte it stands for.

    Printable Latin-1 stands for itself; the other bytes, in order, for the letters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{256 + i: b for i, b in enumerate(others)}}


_BYTE_OF_LETTER = _byte_alphabet()


def _build_encoder(
    tokens: list[str], merges: list[str], family: PreTokenizer, added: list[str]
) -> tokenizers.Tokenizer:
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    # JSON is the library's fastest way in: half the time of building its objects from Python lists.
    description = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": vocab[text],
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text in added
        ],
        "normalizer": family.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": family.steps},
        "model": {
            "type": "BPE",
            "ignore_merges": family.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }
    try:
        return tokenizers.Tokenizer.from_buffer(msgspec.json.encode(description))
    except Exception as error:  # the library raises nothing more specific
        raise ModelFileError(f"the vocabulary cannot be used: {error}") from None


def _of_kind(kind: int, tokens: list[str], kinds: list[int]) -> dict[str, int]:
    """Text → id of the tokens of a kind. Empty texts cannot occur in a prompt."""
    found = (token for token, value in enumerate(kinds) if value == kind and tokens[token])
    return {tokens[token]: token for token in found}


class _Fields:
    """The `tokenizer.ggml` keys, checked as they are read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def get(self, name: str, kind: type[Any], default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if type(value) is not kind:
            raise ModelFileError(
                f"metadata key 'tokenizer.ggml.{name}' is of type {type(value).__name__}, "
                f"expected {kind.__name__}"
            )
        return value

    def strings(self, name: str) -> list[str]:
        values: list[str] = self.get(name, list, [])
        if not values or type(values[0]) is not str:
            raise ModelFileError(f"metadata key 'tokenizer.ggml.{name}' holds no strings")
        return values

    def token_id(self, name: str, vocab_size: int) -> int | None:
        key = f"{name}_token_id"
        if f"tokenizer.ggml.{key}" not in self._metadata:
            return None
        value: int = self.get(key, int, 0)
        if not 0 <= value < vocab_size:
            raise ModelFileError(
                f"metadata key 'tokenizer.ggml.{key}' is {value}; the vocabulary has {vocab_size}"
            )
        return value
