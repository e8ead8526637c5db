"""Mixtures of experts against a loop over tokens in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from treadle.kernels.ops import Buffer, Matrix, RawTensor, Recorder, Routing, Rows, WeightType

F32 = WeightType.F32


def softmax(logits: np.ndarray) -> np.ndarray:
    """As the op is defined: in float32, whose rounding makes ties."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum(dtype=np.float32), np.float32)


def choose(logits: np.ndarray, routing: Routing) -> tuple[np.ndarray, np.ndarray]:
    """(experts, weights) of one token."""
    p = softmax(logits)
    experts = np.sort(np.argsort(-p, kind="stable")[: routing.top_k])
    weights = p[experts].astype(np.float64)
    return experts, weights / weights.sum() if routing.renormalise else weights


def as_q8(x: np.ndarray) -> np.ndarray:
    """A row as form Q8 holds it."""
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    return np.asarray(np.rint(blocks / scale) * scale).reshape(-1)


@dataclasses.dataclass
class Experts:
    """Experts of small random weights, [gate_up, down] of each as the file holds them."""

    bench: Any
    tensors: list[tuple[RawTensor, RawTensor]]

    @classmethod
    def make(cls, bench: Any, kinds: Sequence[WeightType], width: int, hidden: int) -> Experts:
        rng = np.random.default_rng(len(kinds) + width)
        shapes = (2 * hidden, width), (width, hidden)
        return cls(
            bench,
            [
                (
                    bench.raw(rng.normal(size=shapes[0]) / 4, kind),
                    bench.raw(rng.normal(size=shapes[1]) / 4, kinds[-1 - index]),
                )
                for index, kind in enumerate(kinds)
            ],
        )

    def matrices(self, which: int) -> list[Matrix]:
        return [self.bench.backend.matrix([pair[which]]) for pair in self.tensors]

    def run(self, x: np.ndarray, logits: np.ndarray, routing: Routing) -> np.ndarray:
        """The sum of what was in out before, 3 * x, and the experts."""
        width, count = x.shape[1], logits.shape[1]
        picks = np.eye(width + count)
        source_x, router = self.bench.dense(picks[:width]), self.bench.dense(picks[width:])
        triple = self.bench.dense(picks[:width] * 3)
        gate_up, down = self.matrices(0), self.matrices(1)
        parts = [pair[0] for pair in self.tensors]
        every_form = self.bench.backend.matrix(parts)

        def op(recorder: Recorder, source: Buffer, out: Buffer) -> None:
            plain = recorder.buffer(Rows.TOKENS, width)
            operand = recorder.operand(Rows.TOKENS, every_form)
            logits = recorder.buffer(Rows.TOKENS, count)
            recorder.linear(source, source_x, plain)
            recorder.copy(plain, operand)
            recorder.linear(source, router, logits)
            recorder.linear(source, triple, out)
            recorder.experts(
                operand, logits, gate_up, down, out, routing=routing, activation="silu"
            )

        result: np.ndarray = self.bench.apply(
            np.concatenate([x, logits], axis=1).astype(np.float32), width, op
        )
        return result

    def expected(self, x: np.ndarray, logits: np.ndarray, routing: Routing) -> np.ndarray:
        out = 3 * x.astype(np.float64)
        for token, row in enumerate(x):
            for expert, weight in zip(*choose(logits[token], routing), strict=True):
                out[token] += weight * self._expert(expert, row)
        return out

    def _expert(self, expert: int, row: np.ndarray) -> np.ndarray:
        first, second = self.tensors[expert]
        row = row.astype(np.float64)
        both = self.bench.dequantised(first) @ (as_q8(row) if first.type.quantised else row)
        gate, up = np.split(both, 2)
        hidden = gate * np.exp(-np.logaddexp(0, -gate)) * up
        hidden = as_q8(hidden) if second.type.quantised else hidden
        return np.asarray(self.bench.dequantised(second) @ hidden)


def tokens(count: int, width: int, experts: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    x, logits = rng.normal(size=(count, width)), 2 * rng.normal(size=(count, experts))
    return x.astype(np.float32), logits.astype(np.float32)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("count", "experts", "top_k"), [(1, 4, 2), (9, 4, 1), (70, 33, 8)])
def test_experts(bench: Any, count: int, experts: int, top_k: int, renormalise: bool) -> None:
    made = Experts.make(bench, [F32] * experts, 24, 40)
    x, logits = tokens(count, 24, experts)
    routing = Routing(top_k, renormalise)
    np.testing.assert_allclose(
        made.run(x, logits, routing), made.expected(x, logits, routing), rtol=1e-4, atol=2e-5
    )


@pytest.mark.parametrize("count", [1, 40])
def test_experts_of_several_types(bench: Any, count: int) -> None:
    """Each reads the form of the input, and leaves the form between its products, that it needs."""
    kinds = [WeightType.Q8_0, F32, WeightType.Q4_0, WeightType.BF16, WeightType.Q4_1]
    made = Experts.make(bench, kinds, 64, 96)
    x, logits = tokens(count, 64, len(kinds))
    routing = Routing(3, renormalise=True)
    result = made.run(x, logits, routing)
    # A value between two steps of form Q8 may go either way.
    np.testing.assert_allclose(result, made.expected(x, logits, routing), atol=0.05)


def test_ties_go_to_the_lowest_expert(bench: Any) -> None:
    made = Experts.make(bench, [F32] * 6, 16, 16)
    x, _ = tokens(4, 16, 6)
    logits = np.array(
        [
            [0, 0, 0, 0, 0, 0],
            [1, 2, 2, 2, 0, 2],
            [-200, -300, 0, -300, -300, -300],
            [5, 1, 5, 1, 1, 5],
        ],
        np.float32,
    )
    routing = Routing(2, renormalise=True)
    experts = [choose(row, routing)[0].tolist() for row in logits]
    assert experts == [[0, 1], [1, 2], [0, 2], [0, 2]]
    np.testing.assert_allclose(
        made.run(x, logits, routing), made.expected(x, logits, routing), rtol=1e-4, atol=1e-5
    )


def test_experts_that_nobody_chose_are_not_read(bench: Any) -> None:
    """Weights of NaN show in no result; a token may choose all others."""
    made = Experts.make(bench, [F32] * 5, 16, 16)
    x, logits = tokens(20, 16, 5)
    logits[:, 3] = -1e4
    routing = Routing(4, renormalise=False)
    expected = made.expected(x, logits, routing)
    for which in (0, 1):
        tensor = made.tensors[3][which]
        bad = np.full(tensor.shape, np.nan, np.float32).view(np.uint8).reshape(-1)
        pair = list(made.tensors[3])
        pair[which] = dataclasses.replace(tensor, data=bad)
        made.tensors[3] = (pair[0], pair[1])
    np.testing.assert_allclose(made.run(x, logits, routing), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("favoured", [True, False])
def test_more_choices_than_pass_at_once(bench: Any, favoured: bool) -> None:
    """Steps of some thousand choices, spread over the experts or all for one of them."""
    made = Experts.make(bench, [F32, WeightType.Q8_0, F32, F32, F32], 32, 32)
    x, logits = tokens(1500, 32, 5)
    if favoured:
        logits[:, 2] = 9
    routing = Routing(2, renormalise=True)
    result, expected = made.run(x, logits, routing), made.expected(x, logits, routing)
    np.testing.assert_allclose(result, expected, atol=0.05)
    # Of the experts 1 and 3 a matrix each is quantised.
    exact = [i for i, row in enumerate(logits) if not {1, 3} & {*choose(row, routing)[0]}]
    assert len(exact) > 300
    np.testing.assert_allclose(result[exact], expected[exact], rtol=1e-4, atol=2e-5)
