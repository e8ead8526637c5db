"""What a constraint may cost: numbers, each with its reason."""

from __future__ import annotations

import dataclasses

WHITESPACE = r"( |\n {0,16})?"
"""Between the tokens of JSON, unless a request says otherwise: a model that leans towards blanks is
made to go on, one that indents may do so eight levels of two deep."""

LONGEST_WHITESPACE = 17
"""Of these; for libraries that count characters and take no regex."""


@dataclasses.dataclass(frozen=True)
class CompilerLimits:
    """Of a GrammarCompiler. A refusal counts and is kept like a grammar."""

    num_threads: int = 2
    """Libraries let go of the interpreter while they compile; more would take the cores from the
    forward pass."""
    max_waiting: int = 256
    """Different constraints that are compiled or wait for it."""
    max_compile_s: float = 10.0
    """A compilation that takes longer is refused; libraries' own limits end it sooner or later."""
    max_cached: int = 1024
    max_cached_bytes: int = 256 * 2**20
    """Least recently wanted first out; what requests wait for stays."""


LLGUIDANCE = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 400_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
}
"""Of llguidance, per grammar: what a compilation and one mask may cost. A lexer state is 1 to 2 kB,
so a grammar stays below 100 MB; fuel is about 50 to the microsecond when compiling, 14 after."""

AUTOMATON_REGEX_CHARS = 5_000
AUTOMATON_REPEATS = 1_000
"""For libraries without limits of their own that build a whole automaton."""
