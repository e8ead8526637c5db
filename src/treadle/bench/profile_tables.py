"""A profile as text: ops summed by kind and by layer, and the parts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from treadle.bench.profile import Op, ProfileReport
from treadle.bench.report import end_of, heading, lines_of, table

Row = list[float | int | str | None]


class Sum(msgspec.Struct):
    """Several ops together."""

    count: int = 0
    seconds: float = 0.0
    floor_s: float = 0.0
    read_bytes: int = 0
    """Weights and KV: what comes from memory."""
    operations: int = 0

    def add(self, op: Op) -> None:
        self.count += 1
        self.seconds += op.seconds
        self.floor_s += op.floor_s
        self.read_bytes += op.weight_bytes + op.kv_bytes
        self.operations += op.operations


def sums_by_kind(ops: Iterable[Op]) -> dict[tuple[str, str], Sum]:
    """(kind, kernel) → all layers together, in the order of a layer."""
    sums: dict[tuple[str, str], Sum] = {}
    for op in ops:
        sums.setdefault((op.kind, op.kernel), Sum()).add(op)
    return sums


def sums_by_layer(ops: Iterable[Op]) -> dict[int | None, Sum]:
    """None stands for what is in no layer."""
    sums: dict[int | None, Sum] = {}
    for op in ops:
        sums.setdefault(op.layer, Sum()).add(op)
    return sums


def show_profile(report: ProfileReport, *, layers: bool) -> list[str]:
    shape, machine = report.shape, report.machine
    facts: list[tuple[str, float | int | str]] = [
        ("Model", end_of(report.model)),
        ("Kernels", report.kernels),
        ("Rows, context of each", f"{shape.batch_size}, {shape.context}"),
        ("Tokens computed", report.num_tokens),
        ("Passes", shape.passes),
        ("Temperature, top-p", f"{report.temperature:g}, {report.top_p:g}"),
        ("Read bandwidth (GB/s)", machine.read_bytes_per_s / 1e9),
        ("Peak of bytes (Gop/s)", machine.byte_operations_per_s / 1e9),
        ("Peak of floats (Gop/s)", machine.float_operations_per_s / 1e9),
    ]
    return [
        heading("Profile"),
        *lines_of(facts),
        "",
        *_ops_table("op", _kind_rows(report.ops), report.ops),
        "",
        *(_layer_lines(report.ops) if layers else []),
        *_step_lines(report),
    ]


def _layer_lines(ops: Sequence[Op]) -> list[str]:
    return [*_ops_table("layer", sums_by_layer(ops).items(), ops), ""]


def _kind_rows(ops: Sequence[Op]) -> list[tuple[str, Sum]]:
    """An op's kernel is named where the kind does not tell it."""
    sums = sums_by_kind(ops)
    kinds = [kind for kind, _ in sums]
    return [
        (f"{kind} {kernel}" if kinds.count(kind) > 1 else kind, whole)
        for (kind, kernel), whole in sums.items()
    ]


def _ops_table(
    title: str, sums: Iterable[tuple[str | int | None, Sum]], ops: Sequence[Op]
) -> list[str]:
    whole = Sum()
    for op in ops:
        whole.add(op)
    rows = [_row("none" if name is None else str(name), each, whole) for name, each in sums]
    columns = [title, "ops", "µs", "%", "MB", "GB/s", "Mop", "Gop/s", "floor"]
    return table(columns, [*rows, _row("all", whole, whole)])


def _row(name: str, each: Sum, whole: Sum) -> Row:
    seconds = max(each.seconds, 1e-9)
    return [
        name,
        each.count,
        round(each.seconds * 1e6),
        f"{each.seconds / max(whole.seconds, 1e-9):.0%}",
        each.read_bytes / 1e6,
        each.read_bytes / seconds / 1e9,
        each.operations / 1e6,
        each.operations / seconds / 1e9,
        f"{each.floor_s / seconds:.0%}",
    ]


def _step_lines(report: ProfileReport) -> list[str]:
    step = report.step
    parts = [
        ("plan", step.plan_s),
        ("fill inputs", step.fill_s),
        ("forward call", step.forward_s),
        ("  the same, profiled", report.pass_s),
        ("sample", step.sample_s),
        ("settle", step.settle_s),
        ("whole step", step.step_s),
        ("detokenise (text side)", report.detokenise_s),
    ]
    rows: list[Row] = [
        [name, seconds * 1e6, f"{seconds / step.step_s:.1%}"] for name, seconds in parts
    ]
    return table(["part of a step", "µs", "of the step"], rows)
