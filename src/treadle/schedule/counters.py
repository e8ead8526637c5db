"""What a scheduler has done since the start."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Counters:
    """Only ever grows."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    computed_tokens: int = 0
