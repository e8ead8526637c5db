"""The sandbox that chat templates run in: jinja2's, with limits on work and output.

Offers what templates are written for: the filters, functions and tags of transformers. A template
that runs away ends in an InvalidRequest; the limits are far beyond what a conversation that fits a
window needs. They hold loops, macros and repeated text; they are no defence against a model file
made to exhaust memory in a single filter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from treadle.errors import InvalidRequest

MAX_STEPS = 1_000_000
"""Passes through loop bodies and macros in one rendering."""

MAX_CHARS = 1 << 25
"""Characters in a rendered prompt, and in any text made by repetition."""

_MAX_BITS = 4096

_BUDGET = " budget"
"""Name of a variable that no template can spell."""


class CompiledTemplate:
    """A template as code. Rendering changes nothing in it."""

    def __init__(self, source: str) -> None:
        environment = _Environment()
        try:
            tree = environment.parse(source)
            _count_steps(tree)
            code = environment.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequest(
                f"this model's chat template is broken at line {error.lineno}: {error.message}"
            ) from None
        except (RecursionError, SyntaxError) as error:  # nested deeper than Python compiles
            raise InvalidRequest(f"this model's chat template cannot be used: {error}") from None
        self._template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises InvalidRequest whatever goes wrong inside the template."""
        try:
            return self._render({**variables, _BUDGET: _Budget()})
        except _Refusal as refusal:
            raise InvalidRequest(
                f"the chat template refuses this conversation: {refusal.message}", param="messages"
            ) from None
        except Exception as error:  # it is the template's code, so anything can go wrong
            raise InvalidRequest(
                f"the chat template fails on this conversation: {error}", param="messages"
            ) from None

    def _render(self, variables: dict[str, Any]) -> str:
        parts, num_chars = [], 0
        for part in self._template.generate(variables):
            num_chars += len(part)
            if num_chars > MAX_CHARS:
                raise SecurityError(f"its output is longer than {MAX_CHARS} characters")
            parts.append(part)
        return "".join(parts)


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


class _Budget:
    """Steps that one rendering has left."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"it loops more than {MAX_STEPS} times")


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


@jinja2.pass_context
def _spend_step(context: Context) -> None:
    budget: _Budget = context.parent[_BUDGET]
    budget.spend()


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained to say; for rendering it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which no single operator can make a giant of small operands."""

    intercepted_binops = frozenset({"*", "**"})
    spend_step = staticmethod(_spend_step)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _is_giant(operator, left, right):
            raise SecurityError(f"the result of '{operator}' is too large")
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


def _strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by name
    return datetime.now().strftime(format)
