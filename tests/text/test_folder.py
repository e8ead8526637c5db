"""Model directories: against transformers on the same files, and against files that do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.text.corpus import UNSPELLABLE, generated, lines
from tests.text.vocabularies import ADDED_TEXTS, byte_level_json, sentencepiece_json
from treadle.errors import InvalidRequest, ModelFileError
from treadle.text.detokenizer import Detokenizer
from treadle.text.load import load_text
from treadle.text.tokenizer import Tokenizer

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|begin|>",
    "eos_token": {"content": "<|end|>", "__type": "AddedToken"},
}
VOCABULARIES = {
    "byte-level": byte_level_json,
    "prepend": lambda: sentencepiece_json("prepend"),
    "metaspace": lambda: sentencepiece_json("metaspace"),
    "gemma": lambda: sentencepiece_json("gemma"),
}
CORPUS = [*lines(), *UNSPELLABLE, *generated(1200, ADDED_TEXTS)]


def write(folder: Path, tokenizer: str, **files: Any) -> Path:
    """A directory; `files` are JSON by stem, or text for names with another suffix."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer)
    for stem, content in {"tokenizer_config": CONFIG, "config": {}, **files}.items():
        if isinstance(content, str):
            (folder / stem.replace("__", ".")).write_text(content)
        elif content is not None:
            (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def once(ids: list[int], bos: int | None) -> list[int]:
    """Without the second BOS that transformers puts before a text that begins with one."""
    return ids[1:] if ids[:2] == [bos, bos] else ids


@pytest.mark.parametrize("name", VOCABULARIES)
def test_against_transformers(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / name, VOCABULARIES[name]())
    tokenizer = Tokenizer.from_folder(folder)
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.bos_id == oracle.bos_token_id
    assert tokenizer.add_bos
    assert tokenizer.vocab_size == len(oracle)
    for line in CORPUS:
        ids = tokenizer.encode(line)
        assert ids == once(oracle.encode(line), tokenizer.bos_id), repr(line)
        bare = tokenizer.encode(line, add_special=False)
        assert bare == oracle.encode(line, add_special_tokens=False)
        plain = tokenizer.encode(line, add_special=False, parse_special=False)
        assert plain == oracle.encode(line, add_special_tokens=False, split_special_tokens=True), (
            repr(line)
        )
        for skip in (False, True):
            assert tokenizer.decode(ids, skip_special=skip) == oracle.decode(
                ids, skip_special_tokens=skip
            ), repr(line)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_incremental_decoding_equals_decoding_at_once(tmp_path: Path, name: str) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path / name, VOCABULARIES[name]()))
    for line in CORPUS[::7]:
        ids = [*tokenizer.encode("x", add_special=False), *tokenizer.encode(line)]
        detokenizer = Detokenizer(tokenizer, skip_special=False)
        text = "".join(detokenizer.feed([token]) for token in ids) + detokenizer.finish()
        assert text == b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
        whole = tokenizer.decode(ids, skip_special=False)
        assert whole == (text.removeprefix(" ") if name in ("prepend", "metaspace") else text)


def test_tokens_that_only_the_configuration_calls_special(tmp_path: Path) -> None:
    config = {**CONFIG, "additional_special_tokens": ["ing", "<tool>", "no such token"]}
    folder = write(tmp_path, byte_level_json(), tokenizer_config=config)
    tokenizer = Tokenizer.from_folder(folder)
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    text = "aingb<tool>"
    ids = tokenizer.encode(text, add_special=False)
    assert ids == oracle.encode(text, add_special_tokens=False)
    assert list(map(tokenizer.is_special, ids)) == [False, True, False, False]
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True) == "ab<tool>"
    assert max(tokenizer.encode("no such token")) < tokenizer.vocab_size


def test_the_special_tokens_map_counts_where_the_configuration_is_silent(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        byte_level_json(),
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"},
        special_tokens_map={"bos_token": {"content": "<|begin|>"}, "eos_token": "<tool>"},
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.token_text(tokenizer.bos_id or 0) == "<|begin|>"
    assert "<|end|>" in map(tokenizer.token_text, tokenizer.eos_ids)


def test_eos_ids_hold_every_way_to_end(tmp_path: Path) -> None:
    def ends(**files: Any) -> set[str]:
        tokenizer = Tokenizer.from_folder(write(tmp_path, byte_level_json(), **files))
        return set(map(tokenizer.token_text, tokenizer.eos_ids))

    always = {"<|end|>", "<|eot_id|>"}  # of the configuration, and known by its spelling
    tokenizer = Tokenizer.from_folder(write(tmp_path, byte_level_json()))
    a, b = tokenizer.encode("a b", add_special=False)
    names = [tokenizer.token_text(token) for token in (a, b)]
    assert ends() == always
    assert ends(config={"eos_token_id": a}) == {*always, names[0]}
    assert ends(generation_config={"eos_token_id": [a, b]}) == {*always, *names[:2]}
    (tmp_path / "generation_config.json").unlink()
    assert ends(config={"text_config": {"eos_token_id": b}}) == {*always, names[1]}
    assert ends(config={"text_config": "?"}) == always
    for wrong in (10**6, -1, "2", True):
        with pytest.raises(ModelFileError, match=r"'eos_token_id' is .*; the vocabulary has"):
            ends(config={"eos_token_id": wrong})


def test_bos_of_the_configuration_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_json(), tokenizer_config=None, config={"bos_token_id": 5})
    assert Tokenizer.from_folder(folder).bos_id == 5


# Chat templates and sampling.


def text_of(folder: Path, **files: Any) -> Any:
    return load_text(write(folder, byte_level_json(), **files))


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    def source(folder: str, **files: Any) -> str | None:
        template = text_of(tmp_path / folder, **files).template
        return None if template is None else template.source

    named: list[Any] = [{"name": "tool_use", "template": "T"}, "?", {"name": []}]
    named.append({"name": "default", "template": "D"})
    assert source("none") is None
    assert source("one", tokenizer_config={**CONFIG, "chat_template": "X"}) == "X"
    assert source("list", tokenizer_config={**CONFIG, "chat_template": named}) == "D"
    assert source("other", tokenizer_config={**CONFIG, "chat_template": named[:3]}) is None
    both = {"tokenizer_config": {**CONFIG, "chat_template": "X"}, "chat_template__jinja": "F"}
    assert source("both", **both) == "F"
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: 'chat_template' is not"):
        source("wrong", tokenizer_config={**CONFIG, "chat_template": 5})
    (tmp_path / "both" / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja: cannot be read"):
        load_text(tmp_path / "both")


CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_one_bos_in_front_of_chats_and_completions(tmp_path: Path, name: str) -> None:
    config = {**CONFIG, "chat_template": CHAT}
    folder = write(tmp_path, VOCABULARIES[name](), tokenizer_config=config)
    text = load_text(folder)
    tokenizer, bos = text.tokenizer, text.tokenizer.bos_id
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi there"}]
    prompt = text.require_template().render(messages)
    expected = oracle.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokenizer.encode(prompt, add_special=False) == expected
    # A client that asks for special tokens on top still gets one.
    for ids in (expected, tokenizer.encode(prompt)):
        assert (ids[0], ids.count(bos)) == (bos, 1)
    for completion in ("hi", "<|begin|>hi"):
        ids = tokenizer.encode(completion)
        assert (ids[0], ids.count(bos)) == (bos, 1)
    assert bos not in tokenizer.encode("hi", add_special=False)


def test_a_template_without_bos_gets_none(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_json(), chat_template__jinja="{{ messages[0].content }}")
    text, oracle = load_text(folder), transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi"}]
    ids = text.tokenizer.encode(text.require_template().render(messages), add_special=False)
    assert ids == oracle.apply_chat_template(messages)["input_ids"]
    assert text.tokenizer.bos_id not in ids


def test_suggested_sampling(tmp_path: Path) -> None:
    def sampling(**fields: Any) -> Mapping[str, float]:
        found: Mapping[str, float] = text_of(tmp_path, generation_config=fields).sampling_defaults
        return found

    assert text_of(tmp_path).sampling_defaults == {}
    assert sampling(eos_token_id=3, do_sample=True, max_length=20) == {}
    assert sampling(temperature=0.6, top_p=0.95, top_k=20, min_p=0, repetition_penalty=1.05) == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
    }
    assert sampling(temperature=None, top_k=50) == {"top_k": 50}
    for name, value, problem in (
        ("temperature", "hot", "'temperature' is 'hot', not a number"),
        ("temperature", True, "'temperature' is True, not a number"),
        ("temperature", 10**400, ", not a number"),
        ("temperature", float("nan"), "'temperature' is nan, not a number"),
        ("temperature", -1, "the suggested temperature is -1.0; it must be at least 0"),
        ("top_p", 1.5, "the suggested top_p is 1.5"),
        ("top_k", 1.5, "'top_k' is 1.5, not a whole number"),
    ):
        with pytest.raises(ModelFileError) as refused:
            sampling(**{name: value})
        assert refused.value.message.startswith(f"{tmp_path / 'generation_config.json'}: ")
        assert problem in refused.value.message


def test_the_name_is_the_directory(tmp_path: Path) -> None:
    assert text_of(tmp_path / "Model-2.5").name == "Model-2.5"


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(byte_level_json()), **fields})


@pytest.mark.parametrize(
    ("tokenizer", "problem"),
    [
        ("{", "the vocabulary cannot be used"),
        ("{}", "the vocabulary cannot be used"),
        (changed(model={"type": "BPE", "vocab": {}, "merges": ["a b"]}), "cannot be used"),
        (changed(decoder=None), "'decoder' is of type null; supported are byte-level"),
        (changed(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "WordPiece"),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path: Path, tokenizer: str, problem: str) -> None:
    with pytest.raises(ModelFileError, match=rf"tokenizer\.json: .*{problem}"):
        Tokenizer.from_folder(write(tmp_path, tokenizer))


def test_files_that_are_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: cannot be read: No such file"):
        load_text(tmp_path)
    for file in ("tokenizer_config", "special_tokens_map", "generation_config", "config"):
        folder = tmp_path / file
        write(folder, byte_level_json())
        (folder / f"{file}.json").write_text("[]")
        with pytest.raises(ModelFileError, match=rf"{file}\.json: holds no JSON object"):
            load_text(folder)


def test_lone_surrogates_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path, byte_level_json()))
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tokenizer.encode("\ud800")
