"""From a model file to what the text side needs of it: tokenizer, chat template, name."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.errors import InvalidRequest, ModelFileError
from treadle.models.gguf import GGUFFile
from treadle.text.chat import ChatTemplate
from treadle.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ModelText:
    """The text side of one model file."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None when the file has none: such a model takes prompts only."""
    name: str
    """The file's stem."""

    def require_template(self) -> ChatTemplate:
        """The template; raises InvalidRequest for a model that cannot chat."""
        if self.template is None:
            raise InvalidRequest("this model has no chat template: it takes prompts, not messages")
        return self.template


def load_text(path: Path) -> ModelText:
    """Read the text side of a GGUF file; none of its weights are touched."""
    with contextlib.closing(GGUFFile.open(path)) as file:
        try:
            tokenizer = Tokenizer.from_gguf(file.metadata)
            template = _template(file.metadata, tokenizer)
        except ModelFileError as error:
            if error.message.startswith(str(path)):
                raise
            raise ModelFileError(f"{path}: {error.message}") from None
    return ModelText(tokenizer, template, path.stem)


def _template(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError("metadata key 'tokenizer.chat_template' is not text")
    bos, eos = tokenizer.bos_id, metadata.get("tokenizer.ggml.eos_token_id")
    return ChatTemplate(
        source,
        bos_token="" if bos is None else tokenizer.token_text(bos),
        eos_token="" if eos is None else tokenizer.token_text(eos),
    )
