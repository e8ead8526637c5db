"""The tokenizer that the `tokenizer.ggml` keys of a GGUF file describe.

Byte-level BPE goes to the tokenizers library; SentencePiece vocabularies have an encoder of their
own. What the keys do not fit is refused by the key's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import tokenizers

from treadle.errors import ModelFileError
from treadle.text.encoders import LibraryEncoder
from treadle.text.pretokenizers import PreTokenizer, pre_tokenizer
from treadle.text.sentencepiece import Pieces, SentencePieceEncoder
from treadle.text.vocabulary import (
    BYTE_TOKEN,
    SPACE,
    TURN_ENDS,
    Vocabulary,
    spell_byte_level,
    spell_sentencepiece,
)

_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_BYTE = 6

_PREFIX = "tokenizer.ggml."


def read_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises ModelFileError naming the key at fault."""
    fields = _Fields(metadata)
    model = fields.get("model", str, "")
    if model == "gpt2":
        return _byte_level(fields)
    if model == "llama":
        return _sentencepiece(fields, str(metadata.get("general.architecture", "")))
    raise ModelFileError(
        f"metadata key 'tokenizer.ggml.model' is '{model}'; supported are byte-level BPE ('gpt2') "
        "and SentencePiece ('llama')"
    )


class _Fields:
    """The `tokenizer.ggml` keys, checked as they are read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens = self.strings("tokens")
        self.kinds = self.per_token("token_type")

    def get(self, name: str, kind: type[Any], default: Any) -> Any:
        value = self._metadata.get(_PREFIX + name, default)
        if type(value) is not kind:
            raise ModelFileError(
                f"metadata key '{_PREFIX}{name}' is of type {type(value).__name__}, "
                f"expected {kind.__name__}"
            )
        return value

    def strings(self, name: str) -> list[str]:
        values: list[str] = self.get(name, list, [])
        if not values or type(values[0]) is not str:
            raise ModelFileError(f"metadata key '{_PREFIX}{name}' holds no strings")
        return values

    def per_token(self, name: str) -> list[Any]:
        """An array with an entry for each token, or an empty one."""
        values: list[Any] = self.get(name, list, [])
        if values and len(values) != len(self.tokens):
            raise ModelFileError(
                f"metadata key '{_PREFIX}{name}' has {len(values)} entries "
                f"for {len(self.tokens)} tokens"
            )
        return values

    def token_id(self, name: str) -> int | None:
        key = f"{name}_token_id"
        if _PREFIX + key not in self._metadata:
            return None
        value: int = self.get(key, int, 0)
        if not 0 <= value < len(self.tokens):
            raise ModelFileError(
                f"metadata key '{_PREFIX}{key}' is {value}; the vocabulary has {len(self.tokens)}"
            )
        return value

    def of_kind(self, kind: int) -> dict[str, int]:
        """Text → id of the tokens of a kind. Empty texts cannot occur in a prompt."""
        found = (token for token, value in enumerate(self.kinds) if value == kind)
        return {self.tokens[token]: token for token in found if self.tokens[token]}

    def ends(self, control: Mapping[str, int], *, add_bos: bool) -> dict[str, Any]:
        """What goes around a prompt, and what ends an answer: fields of Vocabulary."""
        bos, eos = self.token_id("bos"), self.token_id("eos")
        add_bos = self.get("add_bos_token", bool, add_bos) and bos is not None
        add_eos = self.get("add_eos_token", bool, False) and eos is not None
        named = (eos, self.token_id("eot"), self.token_id("eom"))
        known = (control.get(text) for text in TURN_ENDS)
        return {
            "bos_id": bos,
            "before": (bos,) if add_bos else (),
            "after": (eos,) if add_eos else (),
            "eos_ids": frozenset(token for token in (*named, *known) if token is not None),
        }


def _byte_level(fields: _Fields) -> Vocabulary:
    family = pre_tokenizer(fields.get("pre", str, "default"))
    control, user_defined = fields.of_kind(_CONTROL), fields.of_kind(_USER_DEFINED)
    return Vocabulary(
        tokens=fields.tokens,
        spell=spell_byte_level,
        literal=frozenset((*control.values(), *user_defined.values())),
        special=frozenset(control.values()),
        encoder=LibraryEncoder(_library_encoder(fields, family, control, user_defined)),
        **fields.ends(control, add_bos=family.add_bos),
    )


def _library_encoder(
    fields: _Fields,
    family: PreTokenizer,
    control: Mapping[str, int],
    user_defined: Mapping[str, int],
) -> tokenizers.Tokenizer:
    tokens = fields.tokens
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
                "special": text in control,
            }
            for text in (*control, *user_defined)
        ],
        "normalizer": family.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": family.steps},
        "model": {
            "type": "BPE",
            "ignore_merges": family.ignore_merges,
            "vocab": vocab,
            "merges": fields.strings("merges"),
        },
    }
    try:
        return tokenizers.Tokenizer.from_buffer(msgspec.json.encode(description))
    except Exception as error:  # the library raises nothing more specific
        raise ModelFileError(f"the vocabulary cannot be used: {error}") from None


def _sentencepiece(fields: _Fields, architecture: str) -> Vocabulary:
    if not fields.kinds:
        raise ModelFileError(f"metadata key '{_PREFIX}token_type' is missing")
    control = fields.of_kind(_CONTROL) | fields.of_kind(_UNKNOWN)
    user_defined, ids = fields.of_kind(_USER_DEFINED), fields.of_kind(_NORMAL)
    gemma = architecture.startswith("gemma")
    if gemma:
        # Gemma's files call runs of spaces user-defined. Its published tokenizer has them as pieces
        # that are merged before all others; the longest first, as SentencePiece takes them.
        runs = [text for text in user_defined if not text.strip(" ")]
        ids |= {SPACE * len(text): user_defined.pop(text) for text in runs}
    prefix_space = fields.get("add_space_prefix", bool, True)
    pieces = Pieces(
        ids=ids,
        keys=_gemma_keys(ids) if gemma else _keys(fields, ids),
        byte_ids=_byte_ids(fields),
        unknown_id=fields.token_id("unknown"),
    )
    return Vocabulary(
        tokens=fields.tokens,
        spell=spell_sentencepiece,
        literal=frozenset(),
        special=frozenset(control.values()),
        encoder=SentencePieceEncoder(
            pieces, control=control, user_defined=user_defined, prefix_space=prefix_space
        ),
        prefix_space=prefix_space,
        **fields.ends(control, add_bos=True),
    )


def _gemma_keys(ids: Mapping[str, int]) -> dict[str, float]:
    """Gemma's scores say nothing; the order of ids does, behind the runs of spaces."""
    return {text: token if text.strip(SPACE) else -len(text) for text, token in ids.items()}


def _keys(fields: _Fields, ids: Mapping[str, int]) -> dict[str, float]:
    """Pieces with higher scores are merged first."""
    scores = fields.per_token("scores")
    if not scores or type(scores[0]) is not float:
        raise ModelFileError(f"metadata key '{_PREFIX}scores' holds no numbers")
    if not np.isfinite(scores).all():
        raise ModelFileError(f"metadata key '{_PREFIX}scores' holds numbers that are not finite")
    return {text: -scores[token] for text, token in ids.items()}


def _byte_ids(fields: _Fields) -> dict[int, int]:
    """The token of each byte that has one."""
    found = {}
    for text, token in fields.of_kind(_BYTE).items():
        match = BYTE_TOKEN.fullmatch(text)
        if match is None:
            raise ModelFileError(
                f"metadata key '{_PREFIX}tokens' has the byte token '{text}', "
                "which does not look like <0x0A>"
            )
        found[int(match[1], 16)] = token
    return found
