"""Templates as code in which every operation that could take long asks the environment first.

Changes jinja2's compiler where it writes such an operation out as Python's own. Never runs a
template; nothing of one is computed while it is compiled either.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError

from treadle.text.costs import check_number
from treadle.text.limits import MAX_KEYS

_LITERALS = (nodes.Const, nodes.TemplateData)


def prepare(tree: nodes.Template) -> None:
    """Makes every pass through a loop's or macro's body spend a step first, and every look at an
    item that a loop may leave out. Raises SecurityError where a literal is too large."""
    for body in [
        *(node.body for node in tree.find_all(nodes.For)),
        *(node.body for node in tree.find_all(nodes.Macro)),
        *(node.body for node in tree.find_all(nodes.CallBlock)),
    ]:
        body.insert(0, nodes.ExprStmt(_step()))
    for loop in tree.find_all(nodes.For):
        if loop.test is not None:
            loop.test = nodes.And(_step(), loop.test)
    for const in tree.find_all(nodes.Const):
        check_number(const.value, "a number")
    for literal in tree.find_all(nodes.Dict):
        if len(literal.items) > MAX_KEYS:
            raise SecurityError(f"a dictionary of more than {MAX_KEYS} keys is too large")


def _step() -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute("spend_step"), [], [], None, None)


class CheckedCode(CodeGenerator):
    """What is made passes through `held`, what may take long through `timed`."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.environment.timed(None)  # type: ignore[attr-defined]
        return super().visit(node, *args, **kwargs)

    def _output_child_to_const(self, node: nodes.Expr, frame: Any, finalize: Any) -> str:
        if not isinstance(node, _LITERALS):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_Tuple(self, node: nodes.Tuple, frame: Any) -> None:  # noqa: N802 - jinja2's name
        if node.ctx == "load":
            self._literal(node, node.items, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_List(self, node: nodes.List, frame: Any) -> None:  # noqa: N802
        self._literal(node, node.items, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:  # noqa: N802
        items = [part for pair in node.items for part in (pair.key, pair.value)]
        self._literal(node, items, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802
        self.write("environment.join_texts(")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Any) -> None:  # noqa: N802
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if len(sides) == 2 and node.ops[0].op in ("eq", "ne"):
            quick = any(isinstance(side, nodes.Const) for side in sides)
        else:
            quick = False
        self._timed(super().visit_Compare, node, frame, quick=quick)

    def visit_Getitem(self, node: nodes.Getitem, frame: Any) -> None:  # noqa: N802
        quick = not isinstance(node.arg, nodes.Slice)  # else the environment is asked anyway
        self._timed(super().visit_Getitem, node, frame, quick=quick)

    def visit_Call(self, node: nodes.Call, frame: Any, forward_caller: bool = False) -> None:  # noqa: N802
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write(f"environment.{node.node.name}()")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def _timed(self, visit: Any, node: nodes.Expr, frame: Any, *, quick: bool) -> None:
        if not quick:
            self.write("environment.timed(")
        visit(node, frame)
        if not quick:
            self.write(")")

    def _literal(self, node: nodes.Expr, items: list[nodes.Expr], frame: Any) -> None:
        fixed = all(isinstance(item, nodes.Const) for item in items)
        if not fixed:
            self.write("environment.held(")
        getattr(super(), f"visit_{type(node).__name__}")(node, frame)
        if not fixed:
            self.write(")")
