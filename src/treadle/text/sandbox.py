"""The sandbox that chat templates run in: jinja2's, with limits on work and output.

Offers what templates are written for: the filters, functions and tags of transformers. A template
that runs away ends in an InvalidRequest; the limits are far beyond what a conversation that fits a
window needs. What an operation may cost is known to `costs`; here, in `checked_code` and in
`checked_filters` is where each one asks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from treadle.errors import InvalidRequest
from treadle.text.checked_code import CheckedCode, prepare
from treadle.text.checked_filters import limited_filter, limited_test, to_json
from treadle.text.costs import (
    check_keys,
    check_method,
    check_number,
    is_giant,
    operation_size,
    result_size,
)
from treadle.text.limits import MAX_CHARS, Budget, weight

_MAX_SOURCE = 1 << 17
"""Characters of a template; those of known models have fewer than 50,000."""

_MAX_REASON = 2000
"""Characters of a template's complaint that are passed on."""

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
        if len(source) > _MAX_SOURCE:
            raise InvalidRequest(
                f"this model's chat template has {len(source)} characters; the limit is "
                f"{_MAX_SOURCE}"
            )
        self._environment = _Environment()
        try:
            tree = self._environment.parse(source)
            prepare(tree)
            self._code = self._environment.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequest(
                f"this model's chat template is broken at line {error.lineno}: {error.message}"
            ) from None
        # Nested deeper than Python compiles, or larger than a limit.
        except (SecurityError, RecursionError, SyntaxError, MemoryError, ValueError) as error:
            reason = _short(error)
            raise InvalidRequest(f"this model's chat template cannot be used: {reason}") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises InvalidRequest whatever goes wrong inside the template."""
        try:
            return self._render(variables)
        except _Refusal as refusal:
            raise InvalidRequest(
                f"the chat template refuses this conversation: {_short(refusal)}", param="messages"
            ) from None
        except Exception as error:  # it is the template's code, so anything can go wrong
            raise InvalidRequest(
                f"the chat template fails on this conversation: {_short(error)}", param="messages"
            ) from None

    def _render(self, variables: Mapping[str, Any]) -> str:
        environment = self._environment.with_budget(Budget())
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


def _short(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


class _Namespace(Namespace):
    """Does not show what it holds: two that hold each other twice would show it without end."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained to say; for rendering it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox for one rendering, in which operations spend a budget."""

    intercepted_binops = frozenset({"*", "**", "+", "-", "/", "//", "%"})
    code_generator_class = CheckedCode

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # or filters would run while it compiles
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.budget = Budget()
        self.finalize = self._before_output
        self.filters["tojson"] = to_json
        self.filters = {name: limited_filter(name, of) for name, of in self.filters.items()}
        self.tests = {name: limited_test(name, of) for name, of in self.tests.items()}
        del self.globals["lipsum"]  # as much text as it is asked for, and wanted by nobody
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = strftime_now

    def with_budget(self, budget: Budget) -> _Environment:
        other = copy.copy(self)
        other.budget = budget
        other.finalize = other._before_output
        return other

    def spend_step(self) -> bool:
        self.budget.step()
        return True

    def timed(self, value: Any) -> Any:
        self.budget.look()
        return value

    def held(self, value: Any) -> Any:
        self.budget.hold(value, "a list")
        return value

    def join_texts(self, *parts: object) -> str:
        return self.concat(str(self._before_output(part)) for part in parts)

    def concat(self, parts: Iterable[str]) -> str:
        """Also what a macro or a block makes is joined here."""
        texts = list(parts)
        self.budget.make(sum(map(len, texts)), "~")
        return "".join(texts)

    def _before_output(self, value: object) -> object:
        """What is no text yet becomes one as a whole."""
        self.budget.look()
        if not isinstance(value, str):
            self.budget.make(weight(value), "str")
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Also what filters get by an attribute's path comes from here."""
        self.budget.look()
        return super().getitem(obj, argument)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.look()
        name = getattr(called, "__name__", None)
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if isinstance(called, Macro):
            if called.catch_varargs or called.catch_kwargs:
                self.held([*args, *kwargs.values()])
            return super().call(context, called, *args, **kwargs)
        if owner is not None or isinstance(called, type):
            args = tuple(self._listed(argument) for argument in args)
        if called is dict or called is _Namespace:
            check_keys(args)
        elif called is Cycler:
            self.held(args)
        elif isinstance(name, str):
            arguments = [*args, *kwargs.values()]
            check_method(name, owner, arguments)
            if name in _EXPANDING_CALLS:
                value = arguments.pop(0) if owner is None and arguments else owner
                self.budget.make(result_size(name, value, arguments), name)
        return self.checked(super().call(context, called, *args, **kwargs), name or "a call")

    def _listed(self, argument: Any) -> Any:
        return self.budget.draw(argument) if isinstance(argument, Iterator) else argument

    def checked(self, result: Any, name: str) -> Any:
        if isinstance(result, int):
            check_number(result, name)
        elif isinstance(result, list | tuple | dict | set | frozenset):
            self.budget.hold(result, name)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is type(right) is str:
            self.budget.make(len(left) + len(right), "+")
            return left + right
        self.budget.look()
        if operator in ("*", "**") and is_giant(operator, left, right):
            raise SecurityError(f"the result of '{operator}' is too large")
        if operator == "-" and isinstance(left, Set):  # keys of dictionaries
            raise SecurityError("keys cannot be taken from keys")
        if isinstance(left, str | bytes | list | tuple):
            self.budget.make(operation_size(operator, left, right), operator)
        elif isinstance(right, str | bytes | list | tuple):
            self.budget.make(operation_size(operator, right, left), operator)
        return self.checked(super().call_binop(context, operator, left, right), operator)


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by name
    return datetime.now().strftime(format)
