"""Every family of pre-tokenizers, against BPE written out naively over the regex package.

The patterns are those that llama.cpp splits with, which differ in form from the pipelines here:
one list of regexes per family, applied one after the other.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import regex

from tests.text.corpus import UNSPELLABLE, lines
from treadle.models.gguf import GGUFFile
from treadle.text.pretokenizers import pre_tokenizer
from treadle.text.tokenizer import Tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
WORDS = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [WORDS.replace("DIGITS", r"\p{N}{1,3}")],
    "qwen2": [WORDS.replace("DIGITS", r"\p{N}")],
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
        if self.name == "qwen2":
            text = unicodedata.normalize("NFC", text)
        words = [text]
        for pattern in PATTERNS[self.name]:
            words = list(isolate(pattern, words))
        return [token for word in words for token in self.word(word)]

    def merge(self, word: str) -> list[int]:
        parts = [self.letters[byte] for byte in word.encode()]
        if self.name == "llama-bpe" and "".join(parts) in self.vocab:
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


def test_the_families_differ_on_the_corpus(metadata: dict[str, Any]) -> None:
    """Otherwise the test above could not tell them apart."""
    oracles = [NaiveBPE(metadata, name) for name in PATTERNS]
    results = [tuple(tuple(oracle.encode(line)) for line in lines()) for oracle in oracles]
    assert len(set(results)) == len(PATTERNS)


def test_names_of_one_family_share_it() -> None:
    assert pre_tokenizer("llama3") is pre_tokenizer("llama-bpe")
    assert pre_tokenizer("deepseek-r1-qwen") is pre_tokenizer("qwen2")
    assert pre_tokenizer("starcoder") is pre_tokenizer("smollm")
