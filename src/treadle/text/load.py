"""From a model file or directory to what the text side needs of it: tokenizer, chat template, name,
and the sampling that its makers suggest."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.errors import InvalidRequest, ModelFileError, StartError
from treadle.models.gguf import GGUFFile
from treadle.models.safetensors import GENERATION_CONFIG, read_optional_json_object
from treadle.models.source import name_of_path
from treadle.text.chat import ChatTemplate
from treadle.text.from_folder import TOKENIZER_CONFIG, special_texts
from treadle.text.tokenizer import Tokenizer
from treadle.wire.sampling_params import SamplingParams

_TEMPLATE_FILE = "chat_template.jinja"

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_GGUF_SAMPLING = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
"""Names under `general.sampling` that differ."""

_LARGEST = 2**53


@dataclasses.dataclass(frozen=True)
class ModelText:
    """The text side of one model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None when the model has none: it takes prompts only."""
    name: str
    """The file's stem, or the directory's name."""
    sampling_defaults: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Fields of SamplingParams for requests that leave them open; empty if the model's makers
    suggest nothing."""

    def require_template(self) -> ChatTemplate:
        """The template; raises InvalidRequest for a model that cannot chat."""
        if self.template is None:
            raise InvalidRequest("this model has no chat template: it takes prompts, not messages")
        return self.template

    def template_of(self, source: str) -> ChatTemplate:
        """A caller's own template for this model."""
        if self.template is not None:
            return self.template.with_source(source)
        bos, eos = self.tokenizer.bos_id, min(self.tokenizer.eos_ids, default=None)
        bos_token, eos_token = (
            "" if token is None else self.tokenizer.token_text(token) for token in (bos, eos)
        )
        return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token)


def load_text(
    path: Path, *, with_defaults: bool = True, chat_template: str | None = None
) -> ModelText:
    """Read the text side of a GGUF file or a model directory; no weights are touched.

    `with_defaults` says whether the model's own sampling defaults are wanted; `chat_template`, a
    file or a template itself, takes the place of the model's.
    """
    text = _load(path)
    if not with_defaults:
        text = dataclasses.replace(text, sampling_defaults={})
    if chat_template is not None:
        template = text.template_of(_given_template(chat_template))
        text = dataclasses.replace(text, template=template)
    return text


def _load(path: Path) -> ModelText:
    try:
        return _load_folder(path) if path.is_dir() else _load_gguf(path)
    except ModelFileError as error:
        if error.message.startswith(str(path)):
            raise
        raise ModelFileError(f"{path}: {error.message}") from None


def _given_template(given: str) -> str:
    """A template has an expression or a statement, and a file's name seldom a brace (vLLM's
    rule)."""
    if "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartError(f"the chat template {given} cannot be read: {reason}") from None


def _load_gguf(path: Path) -> ModelText:
    with contextlib.closing(GGUFFile.open(path)) as file:
        metadata = file.metadata
        tokenizer = Tokenizer.from_gguf(metadata)
        source = metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            raise ModelFileError("metadata key 'tokenizer.chat_template' is not text")
        eos = metadata.get("tokenizer.ggml.eos_token_id")
        texts = {
            "bos_token": "" if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
            "eos_token": "" if eos is None else tokenizer.token_text(eos),
        }
        keys = {name: f"general.sampling.{_GGUF_SAMPLING.get(name, name)}" for name in _SAMPLING}
        sampling = _sampling({name: metadata.get(key) for name, key in keys.items()})
    return ModelText(tokenizer, _template(source, texts), name_of_path(path), sampling)


def _load_folder(path: Path) -> ModelText:
    tokenizer = Tokenizer.from_folder(path)
    template = _template(_folder_template(path), special_texts(path))
    suggested = read_optional_json_object(path / GENERATION_CONFIG)
    try:
        sampling = _sampling(suggested)
    except ModelFileError as error:
        raise ModelFileError(f"{path / GENERATION_CONFIG}: {error.message}") from None
    return ModelText(tokenizer, template, name_of_path(path), sampling)


def _folder_template(path: Path) -> str | None:
    """A file of its own counts before the entry in the tokenizer's configuration, which is one
    template or a list of named ones."""
    try:
        return (path / _TEMPLATE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path / _TEMPLATE_FILE}: cannot be read: {error}") from None
    source = read_optional_json_object(path / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(source, list):
        named = (item for item in source if isinstance(item, dict))
        source = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if source is not None and not isinstance(source, str):
        raise ModelFileError(f"{path / TOKENIZER_CONFIG}: 'chat_template' is not text")
    return source


def _template(source: str | None, texts: Mapping[str, str]) -> ChatTemplate | None:
    if source is None:
        return None
    return ChatTemplate(
        source, bos_token=texts.get("bos_token", ""), eos_token=texts.get("eos_token", "")
    )


def _sampling(suggested: Mapping[str, Any]) -> dict[str, float]:
    """The suggestions that are there, checked like a request's."""
    found: dict[str, float] = {}
    for name in _SAMPLING:
        value = suggested.get(name)
        if value is None:
            continue
        whole = name == "top_k"
        fits = isinstance(value, int if whole else int | float) and abs(value) < _LARGEST
        if isinstance(value, bool) or not fits:
            raise ModelFileError(f"'{name}' is {value!r}, not a {'whole ' * whole}number")
        # GGUF holds single precision; what was meant is the shortest number that gives it.
        found[name] = value if whole else float(f"{value:.7g}")
    try:
        SamplingParams(**found).check(vocab_size=0)  # type: ignore[arg-type]
    except InvalidRequest as error:
        raise ModelFileError(f"the suggested {error.message}") from None
    return found
