"""The sandbox that chat templates run in: jinja2's, with limits on work and output.

Offers what templates are written for: the filters, functions and tags of transformers. A template
that runs away ends in an InvalidRequest; the limits are far beyond what a conversation that fits a
window needs. What an operation may cost is known to `limits`; here is where each one asks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from treadle.errors import InvalidRequest
from treadle.text.limits import MAX_CHARS, Budget, result_size, weight

_MAX_BITS = 4096

_EXPANDING = frozenset(
    {
        *("batch", "center", "format", "indent", "join", "list", "pprint", "replace", "slice"),
        *("string", "striptags", "sum", "title", "tojson", "urlize", "wordwrap", "xmlattr"),
    }
)
"""Filters that make more of a value than it was, or take long."""

_EXPANDING_CALLS = frozenset(
    {
        *("center", "expandtabs", "format", "format_map", "join", "ljust", "replace", "rjust"),
        *("rsplit", "split", "splitlines", "to_bytes", "translate", "zfill"),
        "strftime_now",
    }
)
"""Methods and functions that do."""


class CompiledTemplate:
    """A template as code. Rendering changes nothing in it."""

    def __init__(self, source: str) -> None:
        environment = _Environment(Budget())
        try:
            tree = environment.parse(source)
            _count_steps(tree)
            tree = _Joins().visit(tree)
            self._code = environment.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequest(
                f"this model's chat template is broken at line {error.lineno}: {error.message}"
            ) from None
        except (RecursionError, SyntaxError) as error:  # nested deeper than Python compiles
            raise InvalidRequest(f"this model's chat template cannot be used: {error}") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises InvalidRequest whatever goes wrong inside the template."""
        try:
            return self._render(variables)
        except _Refusal as refusal:
            raise InvalidRequest(
                f"the chat template refuses this conversation: {refusal.message}", param="messages"
            ) from None
        except Exception as error:  # it is the template's code, so anything can go wrong
            reason = str(error) or type(error).__name__
            raise InvalidRequest(
                f"the chat template fails on this conversation: {reason}", param="messages"
            ) from None

    def _render(self, variables: Mapping[str, Any]) -> str:
        environment = _Environment(Budget())
        template = environment.template_class.from_code(
            environment, self._code, environment.make_globals(None)
        )
        parts, num_chars = [], 0
        for part in template.generate(variables):
            num_chars += len(part)
            if num_chars > MAX_CHARS:
                raise SecurityError(f"its output is longer than {MAX_CHARS} characters")
            parts.append(part)
        return "".join(parts)


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


def _count_steps(tree: nodes.Template) -> None:
    """Make every pass through a loop's or macro's body spend a step first."""
    bodies = [
        *(node.body for node in tree.find_all(nodes.For)),
        *(node.body for node in tree.find_all(nodes.Macro)),
        *(node.body for node in tree.find_all(nodes.CallBlock)),
    ]
    for body in bodies:
        spend = nodes.Call(nodes.EnvironmentAttribute("spend_step"), [], [], None, None)
        body.insert(0, nodes.ExprStmt(spend))


class _Joins(NodeTransformer):
    """Makes calls of the operator `~`, which jinja2 hands to nobody."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802 - jinja2's name
        parts = [self.visit(part) for part in node.nodes]
        join = nodes.EnvironmentAttribute("join_texts")
        return nodes.Call(join, parts, [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained to say; for rendering it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox for one rendering, in which operations spend a budget."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._budget = budget
        self.spend_step = budget.step
        self.finalize = self._before_output
        self.filters["tojson"] = _to_json
        for name in _EXPANDING:
            self.filters[name] = self._limited(name, self.filters[name])
        del self.globals["lipsum"]  # as much text as it is asked for, and wanted by nobody
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = strftime_now

    def join_texts(self, *parts: object) -> str:
        return self.concat(str(self._before_output(part)) for part in parts)

    def concat(self, parts: Iterable[str]) -> str:
        """Also what a macro or a block makes is joined here."""
        texts = list(parts)
        self._budget.make(sum(map(len, texts)), "~")
        return "".join(texts)

    def _before_output(self, value: object) -> object:
        """What is no text yet becomes one as a whole."""
        if not isinstance(value, str):
            self._budget.make(weight(value), "str")
        return value

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        name = getattr(called, "__name__", None)
        if name in _EXPANDING_CALLS:
            owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
            arguments = [*args, *kwargs.values()]
            value = arguments.pop(0) if owner is None and arguments else owner
            self._budget.make(result_size(name, value, arguments), name)
        return super().call(context, called, *args, **kwargs)

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # A filter may want the environment or the like before its value.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            value, *more = args[first:]
            if isinstance(value, Iterator):
                value = list(value)
            self._budget.make(result_size(name, value, [*more, *kwargs.values()]), name)
            return function(*args[:first], value, *more, **kwargs)

        return limited

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is type(right) is str:
            self._budget.make(len(left) + len(right), "+")
            return left + right
        if operator in ("*", "**") and _is_giant(operator, left, right):
            raise SecurityError(f"the result of '{operator}' is too large")
        if isinstance(left, str | bytes | list | tuple):
            self._budget.make(_size(operator, left, right), operator)
        elif isinstance(right, str | bytes | list | tuple):
            self._budget.make(_size(operator, right, left), operator)
        return super().call_binop(context, operator, left, right)


def _is_giant(operator: str, left: Any, right: Any) -> bool:
    if operator == "**":
        whole = isinstance(left, int) and isinstance(right, int)
        return whole and left.bit_length() * right > _MAX_BITS
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length() > _MAX_BITS
    if isinstance(left, int):
        left, right = right, left
    return isinstance(right, int) and hasattr(left, "__len__") and len(left) * right > MAX_CHARS


def _size(operator: str, value: Any, other: Any) -> int:
    """Of the sum, the product or the formatted text, in characters or items."""
    if operator == "%":
        return result_size("%", value, other if isinstance(other, tuple) else [other])
    if operator == "*":
        return len(value) * other if isinstance(other, int) else 0
    return len(value) + len(other) if hasattr(other, "__len__") else 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own would escape HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by name
    return datetime.now().strftime(format)
