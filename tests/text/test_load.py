"""The text side out of a model file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest

from treadle.errors import InvalidRequest, ModelFileError, StartError
from treadle.text.load import ModelText, load_text


def write(path: Path, **changes: Any) -> Path:
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + index) for index in range(68)]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*letters, "ab", "<s>", "</s>"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        **{f"tokenizer.{key.replace('ggml_', 'ggml.')}": value for key, value in changes.items()},
    }
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        match value:
            case None:
                continue
            case str():
                writer.add_string(key, value)
            case int():
                writer.add_uint32(key, value)
            case list():
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_demo_file(model_text: ModelText) -> None:
    assert model_text.name == "SmolLM2-135M-Instruct.Q4_1"
    assert model_text.require_template() is model_text.template


def test_a_small_file(tmp_path: Path) -> None:
    text = load_text(write(tmp_path / "tiny-model.gguf"))
    assert text.name == "tiny-model"
    prompt = text.require_template().render([{"role": "user", "content": "abc"}])
    assert prompt == "<s>abc</s>"
    assert text.tokenizer.encode(prompt) == [257, 256, ord("c") - 33, 258]


def sampling_of(path: Path, **values: float | str) -> Mapping[str, float]:
    """What a file with these `general.sampling` keys suggests."""
    writer = gguf.GGUFWriter(path, "llama")
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + index) for index in range(68)]
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "gpt-2")
    writer.add_array("tokenizer.ggml.tokens", [*letters, "ab"])
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    for name, value in values.items():
        key = f"general.sampling.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_int32(key, value)
        else:
            writer.add_float32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_text(path).sampling_defaults


def test_suggested_sampling(tmp_path: Path, model_text: ModelText) -> None:
    assert model_text.sampling_defaults == {}
    path = tmp_path / "m.gguf"
    assert sampling_of(path, temp=0.6, top_k=20, top_p=0.95, min_p=0.05, penalty_repeat=1.1) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }
    assert sampling_of(path, mirostat=2, temp=0.0) == {"temperature": 0.0}
    with pytest.raises(ModelFileError, match=r"m\.gguf: the suggested top_p is 1\.5"):
        sampling_of(path, top_p=1.5)
    with pytest.raises(ModelFileError, match=r"m\.gguf: 'top_k' is 'many', not a whole number"):
        sampling_of(path, top_k="many")


def test_special_texts_a_file_does_not_name_are_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", ggml_bos_token_id=None, ggml_eos_token_id=None)
    assert load_text(path).require_template().render([{"content": "abc"}]) == "abc"


def test_a_file_without_template_cannot_chat(tmp_path: Path) -> None:
    text = load_text(write(tmp_path / "base.gguf", chat_template=None))
    assert text.template is None
    with pytest.raises(InvalidRequest, match="this model has no chat template"):
        text.require_template()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ggml_model": "bert"}, "'tokenizer.ggml.model' is 'bert'"),
        ({"ggml_pre": "klingon"}, "'tokenizer.ggml.pre' names 'klingon'"),
        ({"ggml_merges": ["a b c"]}, "the vocabulary cannot be used"),
        ({"ggml_eos_token_id": 999}, "'tokenizer.ggml.eos_token_id' is 999"),
        ({"chat_template": 7}, "'tokenizer.chat_template' is not text"),
    ],
)
def test_errors_name_file_and_field(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError) as error:
        load_text(write(tmp_path / "bad.gguf", **changes))
    assert error.value.message.startswith(f"{tmp_path / 'bad.gguf'}: ")
    assert field in error.value.message


def test_a_template_in_place_of_the_models(tmp_path: Path) -> None:
    path = write(tmp_path / "base.gguf", chat_template=None)
    given = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    text = load_text(path, chat_template=given)
    plain = text.require_template().render([{"role": "user", "content": "a"}])
    file = tmp_path / "template.jinja"
    file.write_text(given)
    again = load_text(path, chat_template=str(file)).require_template()
    assert again.render([{"role": "user", "content": "a"}]) == plain
    assert plain.endswith("[a]")
    with pytest.raises(StartError, match=r"nowhere\.jinja cannot be read: No such file"):
        load_text(path, chat_template="nowhere.jinja")
