"""What a scheduler has done since the start."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Counters:
    """Only ever grows."""

    preemptions: int = 0
    """Requests that gave way, in whatever manner."""
    retractions: int = 0
    """Of them, those that left nothing in the cache and queued up anew."""
    displacements: int = 0
    """Of them, those that a more important waiting request took the place of."""
    pauses: int = 0
    """Times a running request found no blocks, and kept its own until there were some."""
    chunks: int = 0
    """Parts of prompts, or of what is computed again, that did not reach its end."""
    postponements: int = 0
    """Times a waiting request was passed over for what another was about to compute."""
    prefix_queries: int = 0
    prefix_hits: int = 0
    computed_tokens: int = 0
    prefilled: int = 0
    """Of the computed tokens, those that are no decode: prompts, and what was computed again."""
