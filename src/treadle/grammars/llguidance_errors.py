"""What llguidance reports, as one sentence for the caller whose constraint it is about."""

from __future__ import annotations

import re

from treadle.errors import InvalidRequest
from treadle.wire.constraint import Constraint

_NAMES = {
    "json_schema": "JSON schema",
    "json_object": "JSON schema",
    "structural_tag": "structural tag",
    "choice": "list of choices",
}

_SENTENCES = (
    (
        r"oneOf constraints are not supported",
        "the keyword 'oneOf' has alternatives that do not visibly exclude each other; use 'anyOf'",
    ),
    (r"Unimplemented keys: \[(.*)\]", r"the keywords \1 are not enforced"),
    (r"Unsatisfiable schema: (.*)", r"nothing fits it: \1"),
    (r"(?s).*regex parse error:\n(.*?)\n( *)\^.*?\nerror: ([^\n]*).*", None),
    (r"(?s).*lookarounds not supported yet; (\w+) in regex.*", r"\1 is not supported there"),
    (r"(?s).*initial lexer configuration \(grammar\) too big.*", "it is too large for its lexer"),
)

_LIMITS = {
    "lexer error: too many": "the grammar's regexes have become too large to go on",
    "ParserTooComplex": "the grammar is too ambiguous to go on",
    "LexerTooComplex": "the grammar's regexes have become too large to go on",
    "NoExtension": "no token of the vocabulary can come next",
    "NoExtensionBias": "no token of the vocabulary can come next",
}


def refusal(error: str, constraint: Constraint) -> InvalidRequest:
    """Of a constraint that does not compile."""
    error = error.strip()
    name = _NAMES.get(constraint.kind, constraint.kind)
    for pattern, told in _SENTENCES:
        found = re.search(pattern, error)
        if found is None:
            continue
        reason = found.expand(told) if told is not None else _regex_reason(found)
        return InvalidRequest(f"the {name} cannot be compiled: {reason}")
    first = error.splitlines()[0] if error else "no reason is known"
    return InvalidRequest(f"the {name} cannot be compiled: {first:.300}")


def _regex_reason(found: re.Match[str]) -> str:
    """The library draws a pattern, four spaces in, and arrows below the place at fault."""
    pattern, arrows, reason = found.groups()
    lines = [line.removeprefix("    ") for line in pattern.splitlines()]
    at = max(len(arrows) - 4, 0) + 1
    return f"in the regex {lines[0]!r:.200}, at character {at}: {reason}"


def stuck(error: str) -> str:
    """Why a matcher can go no further."""
    first = error.strip().splitlines()[0] if error.strip() else "NoExtension"
    for word, sentence in _LIMITS.items():
        if first.startswith(word):
            return sentence
    return f"the grammar can go no further: {first:.200}"
