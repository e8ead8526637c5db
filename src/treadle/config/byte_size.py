"""Amounts of memory as people write and read them: "80GB" is 80·10⁹ bytes, "80GiB" is 80·2³⁰.

Text only; what an amount is good for is decided elsewhere.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from treadle.errors import StartError

GIB = 2**30
MIB = 2**20

_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_PREFIXES = ("", "k", "m", "g", "t")


def parse_bytes(text: str, name: str) -> int:
    """Bytes that the text says, rounded down; `name` is what an error calls it."""
    matched = _AMOUNT.fullmatch(text)
    if matched is None or (matched[3] and not matched[2]):
        raise StartError(f"{name} is {text!r}; write an amount such as 80GB, 79.6GiB or 512MiB")
    unit: int = (1024 if matched[3] else 1000) ** _PREFIXES.index(matched[2].lower())
    # Decimal fractions are exact here: 33.35GB is 33,350,000,000 bytes, not one less.
    return math.floor(Fraction(matched[1]) * unit)


def binary(num_bytes: int) -> str:
    """In the binary unit that suits it: "80 KiB", "1.50 GiB"."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{_trimmed(size)} {unit}"


def gigabytes(num_bytes: float) -> str:
    """In units of 10⁹ bytes, to the megabyte and without zeros at the end: "35.25 GB"."""
    return f"{_trimmed(num_bytes / 10**9, 3)} GB"


def _trimmed(size: float, digits: int = 2) -> str:
    text = f"{size:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
