"""docs/models.md says what the tests check."""

from __future__ import annotations

from tests.models.table import BEGIN, DOCUMENT, END, with_table
from tests.tiny_gguf import NOT_IN_GGUF, gguf_architecture
from tests.tiny_models import MODELS, model_type
from treadle.models.families import CONFIG_FAMILIES, GGUF_FAMILIES


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert with_table(text) == text


def test_every_architecture_is_checked() -> None:
    assert {model_type(name) for name in MODELS} == set(CONFIG_FAMILIES)
    written = {gguf_architecture(model_type(n)) for n in MODELS if n not in NOT_IN_GGUF}
    assert written == set(GGUF_FAMILIES)
