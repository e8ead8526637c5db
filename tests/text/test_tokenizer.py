"""The tokenizer: against transformers on the same file, and against files that do not fit."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import pre_tokenizers

from tests.text.corpus import UNSPELLABLE, lines
from treadle.errors import InvalidRequest, ModelFileError
from treadle.models.gguf import GGUFFile
from treadle.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def oracle(demo_gguf: Path) -> transformers.PreTrainedTokenizerBase:
    """transformers' tokenizer of the same file, with the pre-tokenizer that SmolLM2 publishes:
    transformers does not read `tokenizer.ggml.pre`, so it leaves out the splitting of digits."""
    result = transformers.AutoTokenizer.from_pretrained(demo_gguf.parent, gguf_file=demo_gguf.name)
    result.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), result.backend_tokenizer.pre_tokenizer]
    )
    return result


@pytest.fixture(scope="module")
def metadata(demo_gguf: Path) -> dict[str, Any]:
    return dict(GGUFFile.open(demo_gguf).metadata)


def test_ids_and_text_equal_those_of_transformers(
    tokenizer: Tokenizer, oracle: transformers.PreTrainedTokenizerBase
) -> None:
    corpus = [*lines(), *UNSPELLABLE]
    assert len(corpus) > 300
    for line in corpus:
        ids = tokenizer.encode(line)
        assert ids == oracle.encode(line, add_special_tokens=False), repr(line)
        for skip in (False, True):
            assert tokenizer.decode(ids, skip_special=skip) == oracle.decode(
                ids, skip_special_tokens=skip
            ), repr(line)


def test_text_survives_the_round_trip(tokenizer: Tokenizer) -> None:
    for line in lines():
        assert tokenizer.decode(tokenizer.encode(line), skip_special=False) == line
        plain = tokenizer.encode(line, parse_special=False)
        assert not any(map(tokenizer.is_special, plain))
        assert tokenizer.decode(plain) == line


def test_special_tokens_in_text(tokenizer: Tokenizer) -> None:
    parsed = tokenizer.encode("a<|im_end|>b")
    assert 2 in parsed
    assert tokenizer.decode(parsed) == "ab"
    assert tokenizer.decode(parsed, skip_special=False) == "a<|im_end|>b"
    assert 2 not in tokenizer.encode("a<|im_end|>b", parse_special=False)


def test_what_the_demo_file_says(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, frozenset({2}))
    assert not tokenizer.add_bos
    assert [token for token in range(100) if tokenizer.is_special(token)] == list(range(17))


def test_bytes_of_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_text(2) == "<|im_end|>"
    (space_the,) = tokenizer.encode(" the")
    assert tokenizer.token_bytes(space_the) == b" the"
    euro = tokenizer.encode("💶")
    assert b"".join(map(tokenizer.token_bytes, euro)) == "💶".encode()
    assert tokenizer.token_text(euro[-1]) == "\ufffd"
    single = [tokenizer.token_bytes(token) for token in range(17, 252)]
    assert len(set(single)) == 235  # the vocabulary lacks 21 of the 256 bytes
    assert all(len(value) == 1 for value in single)


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(49152) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([33, 49152, 34]) == tokenizer.decode([33, 34])


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d x"])
@pytest.mark.parametrize("parse_special", [True, False])
def test_lone_surrogates_are_refused(tokenizer: Tokenizer, text: str, parse_special: bool) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tokenizer.encode(text, parse_special=parse_special)


def test_bos_is_added_where_the_file_wants_it(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.add_bos_token": True})
    assert tokenizer.add_bos
    assert tokenizer.encode("hi") == [1, *tokenizer.encode("hi", add_special=False)]
    del metadata["tokenizer.ggml.add_bos_token"]
    llama = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": "llama-bpe"})
    assert llama.add_bos
    without = {**metadata, "tokenizer.ggml.pre": "llama-bpe"}
    del without["tokenizer.ggml.bos_token_id"]
    assert not Tokenizer.from_gguf(without).add_bos


def small(**changes: Any) -> dict[str, Any]:
    """A vocabulary of the 256 bytes, two merges and some special tokens."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + index) for index in range(68)]
    tokens = [*letters, "ab", "abc", "<|end|>", "<tool>", "<pad>"]
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": ["a b", "ab c"],
        "token_type": [1] * 258 + [3, 4, 5],
        "eos_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def test_user_defined_tokens_are_found_in_any_text_and_shown() -> None:
    tokenizer = Tokenizer.from_gguf(small())
    assert tokenizer.encode("abc<tool>ab<|end|>") == [257, 259, 256, 258]
    plain = tokenizer.encode("abc<tool>ab<|end|>", parse_special=False)
    assert plain[:3] == [257, 259, 256]
    assert 258 not in plain
    assert tokenizer.decode([257, 259, 258]) == "abc<tool>"
    assert tokenizer.decode([257, 259, 258], skip_special=False) == "abc<tool><|end|>"


def test_special_tokens_are_spelled_literally() -> None:
    names = small()["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer.from_gguf(small(tokens=[*names[:258], "<|éĠ|>", *names[259:]]))
    assert tokenizer.encode("a<|éĠ|>") == [ord("a") - 33, 258]
    assert tokenizer.token_bytes(258) == "<|éĠ|>".encode()


@pytest.mark.parametrize(
    ("family", "digits", "word"),
    [
        ("gpt-2", ["1234"], ["ab", "o"]),
        ("default", ["123", "4"], ["ab", "o"]),
        ("smollm", ["1", "2", "3", "4"], ["ab", "o"]),
        ("qwen2", ["1", "2", "3", "4"], ["ab", "o"]),
        ("llama-bpe", ["123", "4"], ["abo"]),
        ("dbrx", ["123", "4"], ["ab", "o"]),
        ("tekken", ["1", "2", "3", "4"], ["abo"]),
        ("gpt-4o", ["123", "4"], ["ab", "o"]),
        ("deepseek-v3", ["123", "4"], ["ab", "o"]),
    ],
)
def test_families_on_digits_and_on_words_without_merges(
    family: str, digits: list[str], word: list[str]
) -> None:
    changes = {
        "tokens": [*small()["tokenizer.ggml.tokens"][:256], "ab", "abo", "12", "123", "1234"],
        "merges": ["a b", "1 2", "12 3", "123 4"],
        "token_type": None,
    }
    tokenizer = Tokenizer.from_gguf(small(pre=family, **changes))
    assert list(map(tokenizer.token_text, tokenizer.encode("1234"))) == digits
    assert list(map(tokenizer.token_text, tokenizer.encode("abo"))) == word


def test_eos_ids_hold_every_way_to_end() -> None:
    assert Tokenizer.from_gguf(small()).eos_ids == {0, 258}
    assert Tokenizer.from_gguf(small(eot_token_id=7, eom_token_id=8)).eos_ids == {0, 7, 8, 258}
    assert Tokenizer.from_gguf(small(eos_token_id=None, token_type=None)).eos_ids == frozenset()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": None}, "'tokenizer.ggml.model' is ''; supported are byte-level BPE"),
        ({"model": "bert"}, "'tokenizer.ggml.model' is 'bert'; supported are byte-level BPE"),
        ({"pre": "klingon"}, "'tokenizer.ggml.pre' names 'klingon', which is not supported"),
        ({"pre": 3}, "'tokenizer.ggml.pre' is of type int, expected str"),
        ({"tokens": None}, "'tokenizer.ggml.tokens' holds no strings"),
        ({"tokens": [1, 2]}, "'tokenizer.ggml.tokens' holds no strings"),
        ({"merges": None}, "'tokenizer.ggml.merges' holds no strings"),
        ({"merges": ["a\u4e00 b"]}, "the vocabulary cannot be used"),
        ({"merges": ["ab"]}, "the vocabulary cannot be used"),
        ({"token_type": [1, 3]}, "has 2 entries for 261 tokens"),
        ({"eos_token_id": 261}, "'tokenizer.ggml.eos_token_id' is 261; the vocabulary has 261"),
        ({"bos_token_id": "1"}, "'tokenizer.ggml.bos_token_id' is of type str, expected int"),
        ({"add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' is of type int, expected bool"),
    ],
)
def test_files_that_do_not_fit(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf(small(**changes))


def test_a_vocabulary_loads_fast(demo_gguf: Path) -> None:
    def loading() -> float:
        start = time.perf_counter()
        Tokenizer.from_gguf(GGUFFile.open(demo_gguf).metadata)
        return time.perf_counter() - start

    # About 0.1 s on an idle core; ways in that cost several times as much must not slip in.
    assert min(loading() for _ in range(3)) < 0.3


def test_threads_share_a_tokenizer(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(metadata)
    corpus = lines()[:120]
    alone = Tokenizer.from_gguf(metadata)
    expected = [(alone.encode(line), alone.encode(line, parse_special=False)) for line in corpus]
    results: list[list[tuple[list[int], list[int]]]] = []

    def work() -> None:
        results.append(
            [
                (tokenizer.encode(line), tokenizer.encode(line, parse_special=False))
                for line in corpus
            ]
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4
