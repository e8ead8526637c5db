"""From a setting's name to the backend: the only place that knows them all.

Each is a file of its own, imported when a backend is made; so is the library behind it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

from treadle.errors import InvalidRequest, StartError
from treadle.grammars.ports import GrammarBackend
from treadle.grammars.tokens import TokenTable

NONE = "none"
"""The name of having none: requests with constraints are refused."""


class _Library(NamedTuple):
    package: str
    """Its name for imports."""
    extra: str
    """treadle's extra that installs it; empty for what always is."""
    module: str
    maker: str


_LIBRARIES = {
    "llguidance": _Library("llguidance", "", "treadle.grammars.llguidance", "LLGuidance"),
    "xgrammar": _Library("xgrammar", "xgrammar", "treadle.grammars.xgrammar", "XGrammar"),
    "outlines": _Library("outlines_core", "outlines", "treadle.grammars.outlines", "Outlines"),
    "lm-format-enforcer": _Library(
        "lmformatenforcer",
        "lm-format-enforcer",
        "treadle.grammars.lm_format_enforcer",
        "LMFormatEnforcer",
    ),
}


def check_backend(name: str) -> None:
    """Raise StartError for a backend whose library is not installed; nothing is imported."""
    library = _LIBRARIES.get(name)
    if library is not None and importlib.util.find_spec(library.package) is None:
        raise StartError(
            f"--grammar-backend {name} needs the library {library.package}; "
            f"pip install 'treadle[{library.extra}]' brings it"
        )


def make_backend(name: str, table: TokenTable) -> GrammarBackend:
    """Imports the library and shows it the vocabulary: some tenths of a second. Raises
    InvalidRequest, as it is a request that wants it, where no answer could ever end."""
    if not table.eos_ids:
        raise InvalidRequest(
            "this model has no end token, so an answer held to a grammar could not end"
        )
    library = _LIBRARIES[name]
    maker: Callable[[TokenTable], GrammarBackend] = getattr(
        importlib.import_module(library.module), library.maker
    )
    return maker(table)


def refuse_none() -> InvalidRequest:
    """Of a request with a constraint where there is no backend."""
    return InvalidRequest(
        "this server holds no answers to grammars: --grammar-backend none; auto turns it on"
    )
