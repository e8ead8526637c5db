"""Every family of pre-tokenizers, against BPE written out naively over the regex package.

The patterns are those that llama.cpp splits with, which differ in form from the pipelines here:
one list of regexes per family, applied one after the other.
"""

from __future__ import annotations

import functools
import itertools
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
import tokenizers

from tests.text.corpus import UNSPELLABLE, generated, lines
from treadle.models.gguf import GGUFFile
from treadle.text.pretokenizers import pre_tokenizer
from treadle.text.tokenizer import Tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
WORDS = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+CONTRACTION"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*CONTRACTION"
    r"|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
COMPOSED = ("qwen2", "qwen35", "olmo")
WHOLE_WORDS = ("llama-bpe", "tekken")
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [WORDS.replace("DIGITS", r"\p{N}{1,3}")],
    "qwen2": [WORDS.replace("DIGITS", r"\p{N}")],
    "qwen35": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "olmo": [GPT2],
    "dbrx": [WORDS.replace("DIGITS", r"\p{N}{1,3}")],
    "tekken": [CASED.replace("CONTRACTION", "").replace("DIGITS", r"\p{N}")],
    "gpt-4o": [CASED.replace("CONTRACTION", CONTRACTION).replace("DIGITS", r"\p{N}{1,3}")],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


def isolate(pattern: str, texts: list[str]) -> Iterator[str]:
    """The matches, and what lies between them."""
    for text in texts:
        at = 0
        for match in regex.finditer(pattern, text):
            yield from filter(None, (text[at : match.start()], match[0]))
            at = match.end()
        if at < len(text):
            yield text[at:]


def words_of(name: str, text: str) -> list[str]:
    if name in COMPOSED:
        text = unicodedata.normalize("NFC", text)
    words = [text]
    for pattern in PATTERNS[name]:
        words = list(isolate(pattern, words))
    return words


class NaiveBPE:
    def __init__(self, metadata: dict[str, Any], name: str) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        self.vocab = {text: token for token, text in enumerate(tokens)}
        self.ranks = {pair: rank for rank, pair in enumerate(metadata["tokenizer.ggml.merges"])}
        self.name = name
        self.letters = self.byte_letters()
        self.word = functools.cache(self.merge)

    @staticmethod
    def byte_letters() -> dict[int, str]:
        kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
        kept += range(ord("®"), ord("ÿ") + 1)
        rest = (byte for byte in range(256) if byte not in kept)
        return {byte: chr(byte) for byte in kept} | {
            byte: chr(256 + index) for index, byte in enumerate(rest)
        }

    def encode(self, text: str) -> list[int]:
        return [token for word in words_of(self.name, text) for token in self.word(word)]

    def merge(self, word: str) -> list[int]:
        parts = [self.letters[byte] for byte in word.encode()]
        if self.name in WHOLE_WORDS and "".join(parts) in self.vocab:
            return [self.vocab["".join(parts)]]
        while len(parts) > 1:
            pairs = [f"{a} {b}" for a, b in itertools.pairwise(parts)]
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 1 << 30))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.vocab[part] for part in parts if part in self.vocab]


@pytest.fixture(scope="module")
def metadata(demo_gguf: Path) -> dict[str, Any]:
    return dict(GGUFFile.open(demo_gguf).metadata)


@pytest.mark.parametrize("name", PATTERNS)
def test_family_against_naive_bpe(metadata: dict[str, Any], name: str) -> None:
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": name})
    oracle = NaiveBPE(metadata, name)
    for line in [*lines(), *UNSPELLABLE]:
        ours = tokenizer.encode(line, add_special=False, parse_special=False)
        assert ours == oracle.encode(line), repr(line)


def settled(texts: list[str]) -> list[str]:
    """Without characters that are younger than Unicode 3.2: the tables of two libraries that follow
    Unicode at different times need not agree on what is a letter."""
    category = unicodedata.ucd_3_2_0.category
    return ["".join(char for char in text if category(char) != "Cn") for text in texts]


@pytest.mark.parametrize("name", PATTERNS)
def test_words_of_every_family(name: str) -> None:
    """Word by word, because a vocabulary may make the same tokens of different words."""
    family = pre_tokenizer(name)
    model = {"type": "BPE", "vocab": {}, "merges": []}
    steps = {"type": "Sequence", "pretokenizers": family.steps}
    description = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": steps}
    cutter = tokenizers.Tokenizer.from_str(json.dumps(description)).pre_tokenizer
    letters = NaiveBPE.byte_letters()
    for line in [*lines(), *UNSPELLABLE, *settled(generated(1500))]:
        text = unicodedata.normalize("NFC", line) if family.normalizer else line
        ours = [word for word, _ in cutter.pre_tokenize_str(text)]
        theirs = ["".join(letters[b] for b in word.encode()) for word in words_of(name, line)]
        assert ours == theirs, repr(line)


def test_the_families_differ_on_the_corpus() -> None:
    """Otherwise the tests above could not tell them apart."""
    results = {name: tuple(tuple(words_of(name, line)) for line in lines()) for name in PATTERNS}
    # These two differ in words that are tokens; tests/text/test_tokenizer.py has some.
    assert results.pop("dbrx") == results["llama-bpe"]
    assert len(set(results.values())) == len(results)


def test_names_of_one_family_share_it() -> None:
    assert pre_tokenizer("llama3") is pre_tokenizer("llama-bpe")
    assert pre_tokenizer("deepseek-r1-qwen") is pre_tokenizer("qwen2")
    assert pre_tokenizer("starcoder") is pre_tokenizer("smollm")
    assert pre_tokenizer("llama4") is pre_tokenizer("gpt-4o")


def test_deepseek_cuts_as_its_published_tokenizer_does() -> None:
    """Pieces of tokenizer.json as DeepSeek V3 and V4 have it, written out."""
    steps = pre_tokenizer("deepseek-v3").steps
    built = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(step["pattern"]["Regex"]), "isolated")
            for step in steps[:-1]
        ]
    )
    words = [word for word, _ in built.pre_tokenize_str("x=1234 日本語かな.foo (a) \n\nÉtudes  b")]
    expected = "x|=|123|4| |日本語かな|.foo| (|a|)| \n\n|Études| | b"
    assert words == expected.split("|")
