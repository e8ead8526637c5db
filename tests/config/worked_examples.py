"""Worked examples of the three engines' arithmetic, by their names; the figures are not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXAMPLES: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "worked_examples.json").read_text()
)
GB = 10**9


def example(name: str) -> tuple[Any, Any]:
    """Its inputs and what they come to."""
    return EXAMPLES[name]["inputs"], EXAMPLES[name]["expected"]
