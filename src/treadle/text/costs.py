"""What an operation in a chat template may cost, and which ones are refused beforehand.

A C function holds the interpreter until it ends, so one that takes longer than its arguments are
long must be known here. Never runs any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any

from jinja2.exceptions import SecurityError

from treadle.text.limits import ITEM, MAX_BITS, MAX_CHARS, MAX_KEYS, weight

_FORMATS = frozenset({"%", "format", "format_map", "strftime_now"})

_STRIPS = frozenset({"strip", "lstrip", "rstrip"})
_BACKWARD = frozenset({"rfind", "rindex", "rpartition", "rsplit"})
_MAX_PRODUCT = 1 << 27
"""Each looks for every character in the other text; the search from the end is a naive one."""

_SHORT = frozenset({"pprint", "striptags", "unescape", "urlize", "wordwrap", "xmlattr"})
_MAX_SHORT = 1 << 14
"""Characters, for what may take time by their square."""

_NUMBERS = frozenset({"int", "float", "round", "filesizeformat"})
_MAX_DIGITS = 4300
"""As Python has it where it keeps to it."""

_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1", "strict", "ignore", "replace")
_MAKE_KEYS = frozenset({"fromkeys"})

_PER_FIELD = 256

_SPLITS = frozenset({"split", "rsplit", "splitlines"})
_PER_SPLIT_CHAR = 8
_PER_PART = 2 * ITEM

_SLOW = frozenset({"title", "urlencode", "wordcount"})
_PER_SLOW_CHAR = 32


def result_size(name: str, value: object, arguments: Sequence[object]) -> int:
    """No less than what comes of `value` by the operation: padding to a width, or putting a text
    between others, multiplies."""
    if name in _FORMATS and isinstance(value, str):
        return _formatted_size(value, arguments)
    if name == "list":
        return ITEM * len(value) if isinstance(value, Sized) else ITEM
    if name == "replace" and isinstance(value, str):
        return _replaced_size(value, *map(str, arguments[:2]))
    size = weight(value) * (_PER_SLOW_CHAR if name in _SLOW else 1)
    if name in _SPLITS:
        return _split_size(value, arguments)
    more = sum(weight(argument, numbers=True) for argument in arguments)
    if name == "sum" and not all(isinstance(argument, int | str) for argument in arguments):
        more = size  # adding lists one after the other copies the first ones again and again
    return size * (1 + more)


def _split_size(value: object, arguments: Sequence[object]) -> int:
    separators = [item for item in arguments if isinstance(item, str) and item]
    if isinstance(value, str) and separators:
        return len(value) + value.count(separators[0]) * _PER_PART
    return weight(value) * _PER_SPLIT_CHAR


def _replaced_size(text: str, old: str = "", new: str = "") -> int:
    return len(text) + text.count(old) * len(new)


def _formatted_size(form: str, arguments: Sequence[object]) -> int:
    """A width stands in the format, or is an argument where the format asks for one."""
    asks = re.search(r"\*|:[^}]*\{", form) is not None
    widest = max((int(digits) for digits in re.findall(r"\d+", form)), default=0)
    widest += sum(weight(argument, numbers=asks) for argument in arguments)
    return len(form) + (form.count("%") + form.count("{")) * (_PER_FIELD + widest)


def is_giant(operator: str, left: Any, right: Any) -> bool:
    if operator == "**":
        whole = isinstance(left, int) and isinstance(right, int)
        return whole and left.bit_length() * right > MAX_BITS
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length() > MAX_BITS
    if isinstance(left, int):
        left, right = right, left
    return isinstance(right, int) and hasattr(left, "__len__") and len(left) * right > MAX_CHARS


def operation_size(operator: str, value: Any, other: Any) -> int:
    """Of the sum, the product or the formatted text, in characters or items."""
    if operator == "%":
        return result_size("%", value, other if isinstance(other, tuple) else [other])
    if operator == "*":
        return weight(value) * other if isinstance(other, int) else 0
    return len(value) + len(other) if hasattr(other, "__len__") else 0


def check_method(name: str, owner: object, arguments: Sequence[object]) -> None:
    """Refuses a method whose time is no multiple of the lengths it is given."""
    if name in _MAKE_KEYS:
        check_keys(arguments)
    if not isinstance(owner, str | bytes):
        return
    if name in _STRIPS or name in _BACKWARD:
        _check_product(name, owner, arguments)
    elif name in _SHORT and len(owner) > _MAX_SHORT:
        raise SecurityError(f"the text for '{name}' is too large: {len(owner)} characters")
    elif name in ("encode", "decode") and any(
        str(argument).lower() not in _ENCODINGS for argument in arguments
    ):
        raise SecurityError(f"'{name}' takes none but {', '.join(_ENCODINGS)}")


def check_filter(name: str, value: object, arguments: Sequence[object]) -> None:
    """The same for filters."""
    if name == "trim" and arguments:
        _check_product(name, value if isinstance(value, str) else str(value), arguments)
    elif name in _SHORT:
        size = weight(value)
        if size > _MAX_SHORT:
            raise SecurityError(f"the text for '{name}' is too large: {size} characters")
    elif name in _NUMBERS:
        if isinstance(value, str | bytes) and len(value) > _MAX_DIGITS:
            raise SecurityError(f"'{name}' takes no text of {len(value)} characters for a number")
        digits = arguments if name == "round" else ()
        if any(isinstance(item, int | float) and abs(item) > MAX_BITS for item in digits):
            raise SecurityError(f"'{name}' takes a precision of at most {MAX_BITS}")


def check_test(name: str, value: object) -> None:
    """A text has no remainder: Python would format it."""
    if name in ("odd", "even", "divisibleby") and isinstance(value, str | bytes):
        raise SecurityError(f"a text is not '{name}'")


def check_number(value: object, what: str) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError(f"the result of '{what}' is too large")


def check_keys(arguments: Sequence[object]) -> None:
    """Of a dictionary made of pairs or of keys."""
    for argument in arguments[:1]:
        if isinstance(argument, Mapping):
            continue
        if isinstance(argument, Sized) and len(argument) > MAX_KEYS:
            raise SecurityError(f"a dictionary of more than {MAX_KEYS} keys is too large")


def _check_product(name: str, text: str | bytes, arguments: Sequence[object]) -> None:
    for argument in arguments:
        if isinstance(argument, str | bytes) and len(text) * len(argument) > _MAX_PRODUCT:
            raise SecurityError(
                f"'{name}' of {len(text)} characters by {len(argument)} is too slow"
            )
