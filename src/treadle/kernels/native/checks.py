"""What must hold of an op's operands. Errors here are a model's, not a user's."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernels.ops import (
    Buffer,
    Form,
    KVSpec,
    Masking,
    Matrix,
    QKNorm,
    RopeTable,
    Routing,
    Vector,
)


def check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def check_rows(x: Buffer, out: Buffer) -> None:
    check(x.rows is out.rows, f"input has a row per {x.rows.value}, output per {out.rows.value}")


def check_blocks(num_blocks: int, *blocks: int) -> None:
    for block in blocks:
        check(0 <= block < num_blocks, f"there is no block {block} in a pool of {num_blocks}")


def check_qkv(qkv: Buffer, heads: int, spec: KVSpec) -> None:
    width = (heads + 2 * spec.kv_heads) * spec.head_dim
    check(qkv.forms == {Form.F32}, "q, k and v are read from float32 alone")
    check(
        heads > 0 and qkv.width == width,
        f"{heads} heads and {spec.kv_heads} KV heads of {spec.head_dim} need width {width}, "
        f"the buffer has {qkv.width}",
    )


def check_norm(x: Buffer, weight: Vector, bias: Vector | None, out: Buffer) -> None:
    check_rows(x, out)
    check(Form.F32 in x.forms, "a norm reads float32, which its input does not hold")
    check(
        x.width == weight.n == out.width,
        f"a norm of width {x.width} with {weight.n} weights into width {out.width}",
    )
    check(bias is None or bias.n == weight.n, "a norm's bias has not one value per weight")


def check_linear(x: Buffer, matrix: Matrix, bias: Vector | None, out: Buffer) -> None:
    check_rows(x, out)
    check(
        matrix.forms <= x.forms,
        "linear reads a form of its input that the buffer does not hold",
    )
    check(out.forms == {Form.F32}, "linear writes float32 alone, but its output holds Q8")
    check(x is not out, "linear cannot write over its input")
    check(
        x.width == matrix.k and out.width == matrix.n,
        f"linear [{matrix.n}, {matrix.k}] from width {x.width} to width {out.width}",
    )
    check(bias is None or bias.n == matrix.n, "linear's bias has not one value per output")


def check_rope(rope: RopeTable, spec: KVSpec) -> None:
    check(
        rope.cos.shape == rope.sin.shape and rope.cos.ndim == 2,
        f"rope has cos {rope.cos.shape} and sin {rope.sin.shape}",
    )
    dims = 2 * rope.cos.shape[1]
    check(dims <= spec.head_dim, f"rope turns {dims} of {spec.head_dim} dimensions")


def check_qk_norm(norm: QKNorm, heads: int, spec: KVSpec) -> None:
    for name, vector, count in ("q", norm.q, heads), ("k", norm.k, spec.kv_heads):
        check(
            vector.n in (spec.head_dim, count * spec.head_dim),
            f"the norm of {name} has {vector.n} weights for {count} heads of {spec.head_dim}",
        )


def check_masking(masking: Masking) -> None:
    check(
        masking.window is None or masking.window > 0, f"a window of {masking.window} sees nothing"
    )
    check(masking.softcap is None or masking.softcap > 0, f"scores capped at {masking.softcap}")


def check_activation(x: Buffer, out: Buffer, width: int) -> None:
    check_rows(x, out)
    check(Form.F32 in x.forms, "an activation reads float32, which its input does not hold")
    check(x.width == width, f"an activation of width {x.width} into a buffer of width {out.width}")


def check_experts(
    x: Buffer,
    router: Buffer,
    gate_up: Sequence[Matrix],
    down: Sequence[Matrix],
    out: Buffer,
    routing: Routing,
) -> None:
    check_rows(x, out)
    check_rows(router, out)
    check(
        len(gate_up) == len(down) == router.width,
        f"{router.width} router logits for {len(gate_up)} and {len(down)} matrices of experts",
    )
    check(
        0 < routing.top_k <= router.width,
        f"a token cannot choose {routing.top_k} of {router.width} experts",
    )
    check(Form.F32 in router.forms, "router logits are read as float32")
    check(out.forms == {Form.F32}, "experts write float32 alone, but their output holds Q8")
    check(out is not x and out is not router, "experts cannot write over their input")
    for first, second in zip(gate_up, down, strict=True):
        check(
            first.forms <= x.forms,
            "an expert reads a form of its input that the buffer does not hold",
        )
        check(
            (first.k, first.n, second.n) == (x.width, 2 * second.k, out.width)
            and second.k == down[0].k,
            f"an expert [{first.n}, {first.k}] and [{second.n}, {second.k}] "
            f"from width {x.width} to width {out.width}",
        )
