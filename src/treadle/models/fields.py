"""Typed access to what a model file says about itself, under names of our own.

GGUF metadata and config.json call the same facts by different keys; `Fields` looks a fact up under
the keys of its source, and every error names the key as the file spells it. Never knows an
architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from treadle.errors import ModelFileError

LARGEST_COUNT = 2**31 - 1

Keys = Mapping[str, tuple[str, ...]]
"""A fact → the keys it may stand under; the first that is there counts."""


class Fields:
    """The facts of one file. A key that holds null counts as absent, except for `given`."""

    def __init__(
        self, values: Mapping[str, object], keys: Keys, kind: str, *, inside: str = ""
    ) -> None:
        self._values = values
        self._keys = keys
        self._kind = kind
        self._inside = inside

    def key(self, name: str) -> str:
        """The key under which a fact stands, or would stand."""
        keys = self._keys.get(name, (name,))
        return next((key for key in keys if self._values.get(key) is not None), keys[0])

    def value(self, name: str) -> object:
        return self._values.get(self.key(name))

    def given(self, name: str) -> bool:
        """Whether the file says anything, be it null."""
        return any(key in self._values for key in self._keys.get(name, (name,)))

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._or(name, default)
        if type(value) is int and 1 <= value <= LARGEST_COUNT:
            return value
        raise self.bad(name, "a whole number of at least 1")

    def whole(self, name: str, default: int) -> int:
        """A whole number of at least 0."""
        return self.count(name, default) if self.value(name) != 0 else 0

    def optional_count(self, name: str) -> int | None:
        """None also where 0 stands for "not at all"."""
        return self.count(name) if self.value(name) not in (None, 0) else None

    def positive(self, name: str, default: float | None = None) -> float:
        value = self._or(name, default)
        if _is_number(value) and value > 0:
            return float(value)
        raise self.bad(name, "a number above 0")

    def optional_positive(self, name: str, default: float | None = None) -> float | None:
        """None where null is given; the default only where nothing is."""
        if not self.given(name):
            return default
        return self.positive(name) if self.value(name) is not None else None

    def text(self, name: str, default: str | None = None) -> str:
        value = self._or(name, default)
        if isinstance(value, str):
            return value
        raise self.bad(name, "a string")

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """A value of `choices`, by its key in the file."""
        if self.value(name) is None:
            return default
        value = self.text(name)
        if value in choices:
            return choices[value]
        raise self.bad(name, "one of " + ", ".join(choices))

    def flag(self, name: str, default: bool) -> bool:
        value = self._or(name, default)
        if isinstance(value, bool):
            return value
        raise self.bad(name, "true or false")

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Numbers above 0."""
        value = self.value(name)
        if isinstance(value, Sequence) and len(value) == length:
            numbers = [float(v) for v in value if _is_number(v) and v > 0]
            if len(numbers) == length:
                return tuple(numbers)
        raise self.bad(name, f"a list of {length} numbers above 0")

    def whole_numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, or one by itself; empty where there is none."""
        value = self.value(name)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if all(type(v) is int for v in listed):
            return tuple(listed)
        raise self.bad(name, "a whole number or a list of them")

    def tokens(self, name: str, vocab_size: int) -> tuple[int, ...]:
        ids = self.whole_numbers(name)
        if all(0 <= token < vocab_size for token in ids):
            return ids
        raise self.bad(name, f"a token id from 0 to {vocab_size - 1}")

    def section(self, name: str) -> Fields | None:
        """An object inside the file's; its fields go by their own keys."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.bad(name, "an object")
        return Fields(value, {}, self._kind, inside=f"{self._inside}{self.key(name)}.")

    def bad(self, name: str, must_be: str) -> ModelFileError:
        key, value = self._inside + self.key(name), self.value(name)
        if value is None:
            return ModelFileError(f"{self._kind} '{key}' is missing")
        shown = repr(value)
        if len(shown) > 60:
            shown = shown[:57] + "..."
        return ModelFileError(f"{self._kind} '{key}' is {shown}; it must be {must_be}")

    def _or(self, name: str, default: object) -> object:
        value = self.value(name)
        return default if value is None else value


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
