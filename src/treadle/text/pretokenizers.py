"""How each family of byte-level BPE vocabularies cuts text into words before merging.

A GGUF file names its family in `tokenizer.ggml.pre`. Steps are in the tokenizers library's JSON
form and become regexes only for the family in use. Never guesses: a family that is not listed is
refused, because a near miss gives tokens that look right and are not the model's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from treadle.errors import ModelFileError

Step = dict[str, Any]


def _split(pattern: str) -> Step:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_level(*, words: bool) -> Step:
    """Bytes to letters; with `words`, first cut as GPT-2 does."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": words,
    }


_GPT2_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # as ByteLevel's
)
_CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_QWEN35_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words that begin with a capital, and words that are all capitals; what may follow, and digits.
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SUFFIX"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SUFFIX"
    r"|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_WORDS = _CASED_WORDS.replace("SUFFIX", "").replace("DIGITS", r"\p{N}")
_O200K_WORDS = _CASED_WORDS.replace("SUFFIX", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace(
    "DIGITS", r"\p{N}{1,3}"
)
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)


@dataclasses.dataclass(frozen=True)
class PreTokenizer:
    """What the vocabularies of one family share."""

    steps: tuple[Step, ...]
    normalizer: Step | None = None
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges would make of it."""
    add_bos: bool = False
    """Whether a prompt starts with BOS when the file does not say."""


_GPT2 = PreTokenizer((_byte_level(words=True),))
_SMOLLM = PreTokenizer(({"type": "Digits", "individual_digits": True}, _byte_level(words=True)))
_LLAMA3 = PreTokenizer(
    (_split(_CL100K_WORDS % 3), _byte_level(words=False)), ignore_merges=True, add_bos=True
)
_CL100K = PreTokenizer((_split(_CL100K_WORDS % 3), _byte_level(words=False)))
_QWEN2 = PreTokenizer(
    (_split(_CL100K_WORDS.replace("{1,%d}", "")), _byte_level(words=False)),
    normalizer={"type": "NFC"},
)
_QWEN35 = PreTokenizer(
    (_split(_QWEN35_WORDS), _byte_level(words=False)), normalizer={"type": "NFC"}
)
_OLMO = PreTokenizer((_byte_level(words=True),), normalizer={"type": "NFC"})
_TEKKEN = PreTokenizer(
    (_split(_TEKKEN_WORDS), _byte_level(words=False)), ignore_merges=True, add_bos=True
)
_O200K = PreTokenizer((_split(_O200K_WORDS), _byte_level(words=False)))
_DEEPSEEK_V3 = PreTokenizer(
    (
        _split(r"\p{N}{1,3}"),
        _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        _split(_DEEPSEEK_WORDS),
        _byte_level(words=False),
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
        _split(r"\p{N}"),
        _byte_level(words=False),
    )
)
_DEFAULT = PreTokenizer(
    (
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(_GPT2_WORDS),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _byte_level(words=False),
    )
)

_FAMILIES = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _OLMO,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "codeshell": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-coder": _DEEPSEEK_CODER,
}
"""By the name in the file. OLMo 2 and Phi 4 are 'dbrx' there, SmolLM 3 is 'llama-bpe'."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """The family that `tokenizer.ggml.pre` names."""
    try:
        return _FAMILIES[name]
    except KeyError:
        raise ModelFileError(
            f"metadata key 'tokenizer.ggml.pre' names '{name}', which is not supported; "
            "supported are " + ", ".join(_FAMILIES)
        ) from None
