"""Constraints as llguidance reads them: Lark with JSON schemas inside.

Lexemes are greedy there, and a parser of lexemes does not go back; so what can be one regular
expression becomes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from treadle.errors import InvalidRequest
from treadle.grammars.tags import (
    AnyText,
    ConstString,
    Elements,
    EmbeddedGrammar,
    Format,
    JsonSchema,
    Or,
    Regex,
    Tag,
    TagsWithSeparator,
    TriggeredTags,
)

_ANY = r"/(.|\n)*/"


def choice_regex(choices: Sequence[str]) -> str:
    """One of the texts."""
    return "|".join(map(literal_regex, choices))


def literal_regex(text: str) -> str:
    """A text and nothing else; Rust's regexes know no escapes for letters that need none."""
    return re.sub(r"[][\\.+*?()|{}^$#&~/\-]", r"\\\g<0>", text).replace("\n", r"\n")


def is_gbnf(grammar: str) -> bool:
    """Whether rules are written as GBNF has them; all else is Lark."""
    return re.search(r"^\s*[\w-]+\s*::=", grammar, re.MULTILINE) is not None


def refuse_end_tokens(grammar: str, ends: Collection[str]) -> None:
    """Lark may name control tokens, as `<|tool|>`; not those that end an answer, which the engine
    takes for its end, nor tokens by number, which may be them."""
    for quoted, named in _LARK_PARTS.findall(grammar):
        if not quoted and (named in ends or named.startswith("<[")):
            raise InvalidRequest(
                f"the grammar is wrong: it names the token {named:.60}; an answer ends where the "
                "grammar does, and tokens go by their names"
            )


_LARK_PARTS = re.compile(r"""("(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)*/)|(<[^<>\s]+>)""")


def spelled_out(grammar: str) -> str:
    """GBNF with the letters that escapes by number stand for."""
    return re.sub(
        r"\\\\|\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})", _letter, grammar
    )


def _letter(found: re.Match[str]) -> str:
    """What would mean something else as it is stays an escape."""
    digits = found[1] or found[2] or found[3]
    if not digits or int(digits, 16) < 0x80 or int(digits, 16) > 0x10FFFF:
        return found[0] if not digits or found[1] else f"\\x{int(digits, 16):02x}"
    return chr(int(digits, 16))


def tag_lark(
    tree: Format,
    schema: Callable[[Any], str],
    grammar: Callable[[str], str],
    regex: Callable[[str], str],
) -> dict[str, Any]:
    """A structural tag as llguidance's JSON form of grammars.

    `schema` turns a JSON schema into the text that follows `%json`, `grammar` an embedded grammar
    into Lark, `regex` a pattern into a lexeme; they check them.
    """
    writer = _Writer(schema, grammar, regex)
    start = writer.rule(tree, None)
    rules = "\n".join(["%llguidance {}", f"start: {start}", *writer.rules])
    return {"grammars": [{"name": "tag", "lark_grammar": rules}, *writer.grammars]}


class _Writer:
    """Rules so far. `rule` returns an expression that stands for a format."""

    def __init__(
        self,
        schema: Callable[[Any], str],
        grammar: Callable[[str], str],
        regex: Callable[[str], str],
    ) -> None:
        self._schema = schema
        self._grammar = grammar
        self._regex = regex
        self.rules: list[str] = []
        self.grammars: list[dict[str, str]] = []

    def _name(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def rule(self, tree: Format, end: str | None) -> str:
        """`end` is the text that follows and ends free text; None when the answer ends there."""
        match tree:
            case AnyText():
                made = self._any_text(end)
            case Or():
                made = self._name(" | ".join(self.rule(part, end) for part in tree.elements))
            case Elements():
                made = self._sequence(tree.elements, end)
            case Tag():
                made = self._tag(tree.begin, tree)
            case TriggeredTags():
                made = self._triggered(tree, end)
            case TagsWithSeparator():
                made = self._separated(tree)
            case _:
                made = self._leaf(tree)
        return made

    def _leaf(self, tree: ConstString | JsonSchema | Regex | EmbeddedGrammar) -> str:
        match tree:
            case ConstString():
                return _text(tree.value)
            case JsonSchema():
                return self._name(f"%json {self._schema(tree.json_schema)}")
            case Regex():
                return self._name(self._regex(tree.pattern))
            case EmbeddedGrammar():
                name = f"g{len(self.grammars)}"
                self.grammars.append({"name": name, "lark_grammar": self._grammar(tree.grammar)})
                return f"@{name}"

    def _any_text(self, end: str | None) -> str:
        if end is None:
            return self._name(_ANY)
        if not end:
            raise InvalidRequest(
                "the structural tag is wrong: nothing tells where any_text ends before what follows"
            )
        return self._name(f"{_ANY} {_text(end)}", "[lazy]")

    def _takes_end(self, tree: Format) -> bool:
        """Whether the format's rule holds the text that ends it already."""
        match tree:
            case AnyText():
                return True
            case Or():
                taken = {self._takes_end(part) for part in tree.elements}
                if len(taken) > 1:
                    raise InvalidRequest(
                        "the structural tag is wrong: 'or' has any_text beside other formats"
                    )
                return taken == {True}
            case Elements():
                return self._takes_end(tree.elements[-1])
            case TriggeredTags():
                return True
            case _:
                return False

    def _sequence(self, elements: Sequence[Format], end: str | None) -> str:
        parts: list[str] = []
        skip = False
        for at, part in enumerate(elements):
            if skip:
                skip = False
                continue
            last = at == len(elements) - 1
            if last or not self._takes_end(part):
                parts.append(self.rule(part, end))
                continue
            following = elements[at + 1]
            skip = isinstance(following, ConstString)
            begin = following.begin if isinstance(following, Tag) else ""
            if isinstance(following, ConstString):
                parts.append(self.rule(part, following.value))
            elif begin and isinstance(following, Tag):
                parts.append(self.rule(part, begin))
                parts.append(self._tag("", following))
                skip = True
            else:
                raise InvalidRequest(
                    "the structural tag is wrong: what follows free text in a sequence must be a "
                    "const_string or a tag, which tell where it ends"
                )
        return self._name(" ".join(parts))

    def _tag(self, begin: str, tag: Tag) -> str:
        """From `begin`, what is left to write of the tag's begin."""
        content = self.rule(tag.content, tag.end)
        end = "" if self._takes_end(tag.content) else _text(tag.end)
        return self._name(f"{_text(begin)} {content} {end}")

    def _triggered(self, tree: TriggeredTags, end: str | None) -> str:
        if end is not None:
            raise InvalidRequest(
                "the structural tag is wrong: triggered_tags must come last, and not within a tag"
            )
        tags = []
        for trigger in tree.triggers:
            head = self._name(f"{_ANY} {_text(trigger)}", "[lazy]")
            bodies = [
                self._tag(tag.begin.removeprefix(trigger), tag)
                for tag in tree.tags
                if tag.begin.startswith(trigger)
            ]
            tags.append(f"{head} ({' | '.join(bodies)})")
        some = self._name(" | ".join(tags))
        first = ""
        if tree.at_least_one:
            first = self._name(" | ".join(self._tag(tag.begin, tag) for tag in tree.tags))
        rest = self._name(_ANY)
        if tree.stop_after_first:
            return first or self._name(f"{some} | {rest}")
        return self._name(f"{first} {some}* {rest}")

    def _separated(self, tree: TagsWithSeparator) -> str:
        tag = self._name(" | ".join(self._tag(tag.begin, tag) for tag in tree.tags))
        more = "" if tree.stop_after_first else f" ({_text(tree.separator)} {tag})*"
        some = self._name(f"{tag}{more}")
        return some if tree.at_least_one else self._name(f'{some} | ""')


def _text(text: str) -> str:
    """A string of Lark; none for an empty one, which is no lexeme."""
    return json.dumps(text, ensure_ascii=False) if text else ""
