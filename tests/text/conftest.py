"""The demo model's text side, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.text.load import ModelText, load_text
from treadle.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def model_text(demo_gguf: Path) -> ModelText:
    return load_text(demo_gguf)


@pytest.fixture(scope="session")
def tokenizer(model_text: ModelText) -> Tokenizer:
    return model_text.tokenizer
