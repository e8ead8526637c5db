"""Filters and tests of chat templates, each within the budget of the rendering that it runs in.

What a filter would yield one by one is drawn at once: filters upon filters would otherwise work
where nobody counts, and be undone by recursion. Knows what an operation costs from `costs` alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

from jinja2.runtime import Context
from jinja2.utils import pass_context

from treadle.text.costs import check_filter, check_number, check_test, result_size
from treadle.text.limits import Budget, weight

_EXPANDING = frozenset(
    {
        *("batch", "center", "format", "indent", "join", "list", "replace", "slice", "string"),
        *("sum", "title", "tojson", "urlencode", "wordcount"),
    }
)
"""Filters that make more of a value than it was, or take long."""

_DRAWN = frozenset({"batch", "join", "list", "slice", "sum"})
"""Filters whose cost is known only when their items are."""

_PAIRING = frozenset({"batch", "groupby", "map", "slice", "sum"})
"""Filters that make lists of lists, or may put one value into many places."""

_OF_TEXT = frozenset(
    {
        *("capitalize", "e", "escape", "forceescape", "lower", "trim", "truncate", "upper"),
        *("int", "float"),
    }
)
"""Filters, and tests, that write a value out before they look at it."""


def limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, within the budget of the rendering that it is called in."""
    wanted = getattr(function, "jinja_pass_arg", None)
    wanted_name = None if wanted is None else wanted.name

    @pass_context
    @functools.wraps(function)
    def limited(context: Context, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        environment: Any = context.environment
        budget: Budget = environment.budget
        budget.look()
        if name in _DRAWN and isinstance(value, Iterator):
            value = budget.draw(value)
        named = [kwargs[key] for key in ("old", "new") if key in kwargs]  # in order, for replace
        arguments = [*args, *named, *kwargs.values()]
        check_filter(name, value, arguments)
        if name in _EXPANDING:
            budget.make(result_size(name, value, arguments), name)
        elif name in _OF_TEXT and not isinstance(value, str):
            budget.make(weight(value), name)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": environment}
        before = () if wanted_name is None else (first[wanted_name],)
        result = function(*before, value, *args, **kwargs)
        drawn = budget.draw(result) if isinstance(result, GeneratorType) else None
        if name in _PAIRING:
            environment.checked(result if drawn is None else drawn, name)
        elif isinstance(result, int):
            check_number(result, name)
        return result if drawn is None else iter(drawn)

    return limited


def limited_test(name: str, function: Any) -> Callable[..., Any]:
    """The test likewise."""
    wanted = hasattr(function, "jinja_pass_arg")

    @pass_context
    @functools.wraps(function)
    def limited(context: Context, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        environment: Any = context.environment
        environment.budget.look()
        check_test(name, value)
        if name in _OF_TEXT and not isinstance(value, str):
            environment.budget.make(weight(value), name)
        before = (environment,) if wanted else ()
        return function(*before, value, *args, **kwargs)

    return limited


def to_json(
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
