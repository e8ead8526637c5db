"""Vocabularies for grammars: one of each kind, small; and the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.grammars.walks import table_of
from tests.text.vocabularies import byte_level_json, sentencepiece
from treadle.grammars.llguidance import LLGuidance
from treadle.grammars.tokens import TokenTable
from treadle.text.load import load_text
from treadle.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def folder_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level BPE from tokenizer.json."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "tokenizer.json").write_text(byte_level_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="session", params=["byte-level", "llama", "gemma"])
def tokenizer(request: pytest.FixtureRequest, folder_tokenizer: Tokenizer) -> Tokenizer:
    """Of each kind."""
    if request.param == "byte-level":
        return folder_tokenizer
    return Tokenizer.from_gguf(sentencepiece(gemma=request.param == "gemma"))


@pytest.fixture(scope="session")
def table(folder_tokenizer: Tokenizer) -> TokenTable:
    return table_of(folder_tokenizer)


@pytest.fixture(scope="session")
def backend(table: TokenTable) -> LLGuidance:
    return LLGuidance(table)


@pytest.fixture(scope="session")
def demo_table(demo_gguf: Path) -> TokenTable:
    return table_of(load_text(demo_gguf).tokenizer)


@pytest.fixture(scope="session")
def gemma_table(gemma_gguf: Path) -> TokenTable:
    return table_of(load_text(gemma_gguf).tokenizer)
