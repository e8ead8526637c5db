"""The tokenizer of a Hugging Face model directory: tokenizer.json and the files that amend it.

The tokenizers library does what tokenizer.json says; the other files say which tokens are special,
and what goes around a prompt. Which of several files counts follows transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers

from treadle.errors import ModelFileError
from treadle.models.safetensors import (
    CONFIG,
    GENERATION_CONFIG,
    read_optional_json_object,
)
from treadle.text.encoders import LibraryEncoder
from treadle.text.vocabulary import TURN_ENDS, Vocabulary, spell_byte_level, spell_sentencepiece

_TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS_MAP = "special_tokens_map.json"

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_LISTED = ("additional_special_tokens", "extra_special_tokens")


def read_folder(path: Path) -> Vocabulary:
    """Raises ModelFileError naming the file at fault."""
    encoder = _load(path / _TOKENIZER)
    spell, strips = _spelling(path / _TOKENIZER, encoder)
    names = special_texts(path)
    special = _mark_special(encoder, path, names)
    before, after = _surroundings(encoder)
    tokens = _tokens(encoder)
    literal: frozenset[int] = frozenset()
    if spell is spell_byte_level:
        literal = frozenset(encoder.get_added_tokens_decoder())
    return Vocabulary(
        tokens=tokens,
        spell=spell,
        literal=literal,
        special=special,
        encoder=LibraryEncoder(encoder),
        bos_id=_bos_id(encoder, path, names),
        eos_ids=_eos_ids(encoder, path, names, len(tokens)),
        before=before,
        after=after,
        prefix_space=strips,
    )


def special_texts(path: Path) -> dict[str, str]:
    """The named special tokens of the directory, 'bos_token' and the like: name → text."""
    found: dict[str, str] = {}
    for file in (_SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG):
        fields = read_optional_json_object(path / file)
        for name in _NAMED:
            text = _text_of(fields.get(name))
            if text:
                found[name] = text
    return found


def _text_of(value: object) -> str | None:
    """A token is given by its text, or by an object that has it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _load(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelFileError(f"{path}: cannot be read: No such file; other forms are not supported")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelFileError(f"{path}: the vocabulary cannot be used: {error}") from None


def _spelling(path: Path, encoder: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How tokens spell bytes, and whether decoding takes a space away from the start of a text."""
    # What the library pickles is JSON; parsing the file for it once more would double loading.
    decoder = json.loads(encoder.decoder.__getstate__()) if encoder.decoder else None
    steps = {step["type"]: step for step in _steps(decoder)}
    if "ByteLevel" in steps:
        return spell_byte_level, False
    if "Metaspace" in steps:
        scheme = steps["Metaspace"].get("prepend_scheme", "always")
        return spell_sentencepiece, scheme != "never"
    if steps.get("Replace", {}).get("content") == " ":
        strip = steps.get("Strip", {})
        return spell_sentencepiece, strip.get("content") == " " and strip.get("start") == 1
    raise ModelFileError(
        f"{path}: 'decoder' is of type {' + '.join(steps) or 'null'}; supported are byte-level and "
        "SentencePiece vocabularies"
    )


def _steps(decoder: object) -> Iterator[dict[str, Any]]:
    if isinstance(decoder, dict) and isinstance(decoder.get("decoders"), list):
        for step in decoder["decoders"]:
            yield from _steps(step)
    elif isinstance(decoder, dict) and isinstance(decoder.get("type"), str):
        yield decoder


def _mark_special(
    encoder: tokenizers.Tokenizer, path: Path, names: dict[str, str]
) -> frozenset[int]:
    """Make tokens of the model special that only the configuration calls so; returns all special
    ids. What tokenizer.json says of a token counts first.

    Texts that are no token yet stay that way: a new token would have no row in the embedding.
    """
    config = read_optional_json_object(path / TOKENIZER_CONFIG)
    more: list[object] = list(names.values())
    for name in _LISTED:
        listed = config.get(name)
        more += listed if isinstance(listed, list) else []
    known = {token.content for token in encoder.get_added_tokens_decoder().values()}
    texts = dict.fromkeys(text for value in more if (text := _text_of(value)))
    encoder.add_special_tokens(
        [
            tokenizers.AddedToken(text, special=True, normalized=False)
            for text in texts
            if text not in known and encoder.token_to_id(text) is not None
        ]
    )
    added = encoder.get_added_tokens_decoder()
    return frozenset(token for token, value in added.items() if value.special)


def _surroundings(encoder: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What goes before and after a prompt. tokenizer.json alone says so: 'add_bos_token' in the
    configuration is for directories without one."""
    sample = encoder.encode("a")
    ordinary = [at for at, mask in enumerate(sample.special_tokens_mask) if not mask]
    if not ordinary:  # the vocabulary cannot spell the sample
        return tuple(sample.ids), ()
    return tuple(sample.ids[: ordinary[0]]), tuple(sample.ids[ordinary[-1] + 1 :])


def _tokens(encoder: tokenizers.Tokenizer) -> list[str]:
    vocab = encoder.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(vocab.values(), default=-1) + 1)
    for text, token in vocab.items():
        tokens[token] = text
    for token in encoder.get_added_tokens_decoder():
        tokens[token] = encoder.id_to_token(token) or ""  # as the normalizer spells it
    return tokens


def _bos_id(encoder: tokenizers.Tokenizer, path: Path, names: dict[str, str]) -> int | None:
    if "bos_token" in names:
        token: int | None = encoder.token_to_id(names["bos_token"])
        return token
    value = read_optional_json_object(path / CONFIG).get("bos_token_id")
    return value if type(value) is int and encoder.id_to_token(value) is not None else None


def _eos_ids(
    encoder: tokenizers.Tokenizer, path: Path, names: dict[str, str], vocab_size: int
) -> frozenset[int]:
    """All that any file names as an end, and the known ends of a turn."""
    config = read_optional_json_object(path / CONFIG)
    inner = config.get("text_config")
    found: set[int] = set()
    for fields in (
        config,
        inner if isinstance(inner, dict) else {},
        read_optional_json_object(path / GENERATION_CONFIG),
    ):
        value = fields.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if type(token) is not int or not 0 <= token < vocab_size:
                raise ModelFileError(
                    f"{path}: 'eos_token_id' is {value!r}; the vocabulary has {vocab_size}"
                )
            found.add(token)
    texts = [names.get("eos_token", ""), *TURN_ENDS]
    special = encoder.get_added_tokens_decoder()
    for text in texts:
        token = encoder.token_to_id(text)
        if token is not None and token in special and special[token].special:
            found.add(token)
    return frozenset(found)
