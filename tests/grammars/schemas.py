"""Random schemas that have answers, of the keywords that people use."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

TEXTS = [
    "red",
    "green",
    "café",
    "日本",
    'a"b',
    "line\nbreak",
    "😀",
    "\\",
    "",
    "a/b",
    "tab\t",
    "\x7f",
]
PATTERNS = [
    "^[a-z]{1,4}$",
    "^\\d{2}-\\d{2}$",
    "ab",
    "^(x|yz)+$",
    '^"\\\\?$',
    "^[é日]{1,2}$",
    "^$|^a",
]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]
NAMES = ["a", "b", "name", "größe", 'q"', "list", "n 1"]


def schema(choose: random.Random, depth: int = 3) -> Schema:
    """The root holds definitions, which may be used anywhere."""
    made = _any(choose, depth)
    made["$defs"] = {
        "color": {"enum": choose.sample(TEXTS, 3)},
        "node": {
            "type": "object",
            "properties": {
                "v": _leaf(choose),
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        },
        "chain": {"$ref": "#/$defs/color"},
    }
    return made


def _any(choose: random.Random, depth: int) -> Schema:
    kinds = [_leaf, _leaf] if depth == 0 else [_leaf, _object, _object, _array, _joined]
    kind = choose.choice(kinds)
    return kind(choose) if kind is _leaf else kind(choose, depth - 1)  # type: ignore[operator]


def _leaf(choose: random.Random) -> Schema:
    return choose.choice([_integer, _number, _string, _string, _values, _reference, _plain])(choose)


def _plain(choose: random.Random) -> Schema:
    return {"type": choose.choice(["boolean", "null", ["boolean", "null"], "integer"])}


def _reference(choose: random.Random) -> Schema:
    return {"$ref": f"#/$defs/{choose.choice(['color', 'node', 'chain'])}"}


def _values(choose: random.Random) -> Schema:
    values = [*choose.sample(TEXTS, 2), choose.randint(-5, 5), None, True, 2.5, [1, "x"], {"k": []}]
    if choose.random() < 0.3:
        return {"const": choose.choice(values)}
    return {"enum": choose.sample(values, choose.randint(1, 5))}


def _integer(choose: random.Random) -> Schema:
    made: Schema = {"type": "integer"}
    low = choose.randint(-120, 120)
    if choose.random() < 0.6:
        made[choose.choice(["minimum", "exclusiveMinimum"])] = low
    if choose.random() < 0.6:
        made[choose.choice(["maximum", "exclusiveMaximum"])] = low + choose.randint(20, 900)
    if choose.random() < 0.3:
        made["multipleOf"] = choose.choice([2, 5, 7])
    return made


def _number(choose: random.Random) -> Schema:
    made: Schema = {"type": "number"}
    low = round(choose.uniform(-20, 20), choose.randint(0, 3))
    if choose.random() < 0.6:
        made[choose.choice(["minimum", "exclusiveMinimum"])] = low
    if choose.random() < 0.6:
        high = round(low + choose.uniform(1, 40), choose.randint(0, 2))
        made[choose.choice(["maximum", "exclusiveMaximum"])] = high
    return made


def _string(choose: random.Random) -> Schema:
    kind = choose.random()
    if kind < 0.3:
        return {"type": "string", "pattern": choose.choice(PATTERNS)}
    if kind < 0.5:
        return {"type": "string", "format": choose.choice(FORMATS)}
    low = choose.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + choose.randint(0, 5)}


def _object(choose: random.Random, depth: int) -> Schema:
    names = choose.sample(NAMES, choose.randint(0, 4))
    made: Schema = {"type": "object", "properties": {n: _any(choose, depth) for n in names}}
    made["required"] = [name for name in names if choose.random() < 0.6]
    kind = choose.random()
    if kind < 0.6:
        made["additionalProperties"] = False
    elif kind < 0.8:
        made["additionalProperties"] = _leaf(choose)
    if choose.random() < 0.2:
        made["patternProperties"] = {"^x[0-9]$": _leaf(choose)}
    return made


def _array(choose: random.Random, depth: int) -> Schema:
    made: Schema = {"type": "array", "items": _any(choose, depth)}
    low = choose.randint(0, 2)
    if choose.random() < 0.3:
        made["prefixItems"] = [_leaf(choose) for _ in range(choose.randint(1, 2))]
    made["minItems"] = low
    made["maxItems"] = low + choose.randint(0, 2)
    return made


def _joined(choose: random.Random, depth: int) -> Schema:
    kind = choose.random()
    if kind < 0.5:
        return {"anyOf": [_any(choose, depth) for _ in range(choose.randint(1, 3))]}
    if kind < 0.7:
        return {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}, {"const": None}]}
    first, second = ({"properties": {n: _leaf(choose)}, "required": [n]} for n in ("p", "q"))
    return {"type": "object", "allOf": [first, second]}
