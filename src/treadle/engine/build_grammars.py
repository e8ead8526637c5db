"""From the setting to what compiles grammars. Nothing is loaded here: starting is to be quick, and
most servers never see a constraint."""

from __future__ import annotations

import threading
from pathlib import Path

from treadle.engine.compiling import Compiling
from treadle.grammars.backends import NONE, check_backend, make_backend
from treadle.grammars.compiler import GrammarCompiler
from treadle.grammars.ports import GrammarBackend
from treadle.grammars.tokens import TokenTable
from treadle.models.card import ModelCard


def build_compiling(name: str, path: Path, card: ModelCard, *, expected: bool) -> Compiling:
    """Raises StartError where the backend's library is not installed. Where constraints are
    expected, a server loads it once it is ready."""
    if name == NONE:
        return Compiling()
    check_backend(name)

    def make() -> GrammarBackend:
        from treadle.text.load import load_text

        tokenizer = load_text(path, with_defaults=False).tokenizer
        # The text side stops at what ends turns by its spelling, so grammars allow it as well.
        ends = {*card.eos_ids, *tokenizer.eos_ids}
        return make_backend(name, TokenTable.of(tokenizer, size=card.vocab_size, eos_ids=ends))

    news = threading.Event()
    return Compiling(GrammarCompiler(make, wake=news.set), news, expected=expected)
