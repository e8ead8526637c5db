"""Row states that change single logits before the choice: bias, bad words, minimum length,
penalties.

Each keeps what it needs per row, is told when a row starts, ends or gets a token, and says which
logits to change. Their order is the order of the changes, vLLM's: bias and masks, then penalties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from treadle.kernels.ops import FloatArray, IntArray, LogitEdits
from treadle.wire.plan import RowJoin


class RowEdits(NamedTuple):
    """Changes to one row's logits, see `LogitEdits`; all arrays [n]."""

    tokens: IntArray
    add: FloatArray
    repetition: FloatArray
    subtract: FloatArray


class RowState(Protocol):
    """State of the rows that use one feature; rows that do not cost nothing."""

    def join(self, join: RowJoin) -> bool:
        """Whether the row uses the feature; nobody asks or tells anything of rows that do not."""
        ...

    def leave(self, row: int) -> None: ...
    def edits(self, row: int, output_index: int) -> RowEdits | None: ...
    def sampled(self, row: int, token: int) -> None: ...


class LogitBias:
    """Adds a constant per token id."""

    def __init__(self) -> None:
        self._rows: dict[int, RowEdits] = {}

    def join(self, join: RowJoin) -> bool:
        bias = join.params.logit_bias
        if bias:
            self._rows[join.row] = _additive(list(bias), list(bias.values()))
        return bool(bias)

    def leave(self, row: int) -> None:
        self._rows.pop(row, None)

    def edits(self, row: int, output_index: int) -> RowEdits | None:  # noqa: ARG002
        return self._rows.get(row)

    def sampled(self, row: int, token: int) -> None:
        """Bias does not depend on the output."""


class BadWords:
    """Forbids the token that would complete a sequence the answer must not hold."""

    def __init__(self) -> None:
        self._rows: dict[int, _Forbidden] = {}

    def join(self, join: RowJoin) -> bool:
        if join.bad_words:
            self._rows[join.row] = _Forbidden(join.bad_words, join.output or [])
        return bool(join.bad_words)

    def leave(self, row: int) -> None:
        self._rows.pop(row, None)

    def edits(self, row: int, output_index: int) -> RowEdits | None:  # noqa: ARG002
        forbidden = self._rows.get(row)
        return forbidden.edits() if forbidden else None

    def sampled(self, row: int, token: int) -> None:
        forbidden = self._rows.get(row)
        if forbidden:
            forbidden.append(token)


class _Forbidden:
    """One request's sequences, and as much of its answer as they reach back."""

    def __init__(self, sequences: Sequence[Sequence[int]], output: Sequence[int]) -> None:
        self._sequences = [(tuple(ids[:-1]), ids[-1]) for ids in sequences]
        longest = max(len(before) for before, _ in self._sequences)
        self._tail = deque(output[-longest:] if longest else (), maxlen=longest)

    def append(self, token: int) -> None:
        self._tail.append(token)

    def edits(self) -> RowEdits | None:
        tail = tuple(self._tail)
        banned = [
            last for before, last in self._sequences if not before or tail[-len(before) :] == before
        ]
        return _additive(banned, [-np.inf] * len(banned)) if banned else None


class MinTokens:
    """Forbids every token that would end the answer until it has `min_tokens` tokens."""

    def __init__(self, eos: Iterable[int]) -> None:
        self._eos = sorted(eos)
        self._rows: dict[int, tuple[int, RowEdits]] = {}

    def join(self, join: RowJoin) -> bool:
        params = join.params
        ending = sorted({*params.stop_token_ids, *([] if params.ignore_eos else self._eos)})
        if params.min_tokens == 0 or not ending:
            return False
        masks = [-np.inf] * len(ending)
        self._rows[join.row] = (params.min_tokens, _additive(ending, masks))
        return True

    def leave(self, row: int) -> None:
        self._rows.pop(row, None)

    def edits(self, row: int, output_index: int) -> RowEdits | None:
        min_tokens, masks = self._rows.get(row, (0, None))
        return masks if output_index < min_tokens else None

    def sampled(self, row: int, token: int) -> None:
        """The output index says all."""


class Penalties:
    """Repetition penalty over prompt and output, frequency and presence penalties over output."""

    def __init__(self) -> None:
        self._rows: dict[int, _History] = {}

    def join(self, join: RowJoin) -> bool:
        penalised = join.params.penalised
        if penalised:
            self._rows[join.row] = _History(join)
        return penalised

    def leave(self, row: int) -> None:
        self._rows.pop(row, None)

    def edits(self, row: int, output_index: int) -> RowEdits | None:  # noqa: ARG002
        history = self._rows.get(row)
        return history.edits() if history else None

    def sampled(self, row: int, token: int) -> None:
        history = self._rows.get(row)
        if history:
            history.append(token)


class _History:
    """The distinct tokens of one request's context, and how often each was generated."""

    def __init__(self, join: RowJoin) -> None:
        assert join.prompt is not None
        assert join.output is not None
        self._params = join.params
        distinct = dict.fromkeys(join.prompt)
        self._place = {token: place for place, token in enumerate(distinct)}
        capacity = 2 * len(distinct) + 64
        self._tokens = np.zeros(capacity, np.int32)
        self._tokens[: len(distinct)] = list(distinct)
        self._counts = np.zeros(capacity, np.float32)
        for token in join.output:
            self.append(token)

    def append(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[place] = token
        self._counts[place] += 1

    def edits(self) -> RowEdits:
        n = len(self._place)
        params, counts = self._params, self._counts[:n]
        presence = np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
        return RowEdits(
            tokens=self._tokens[:n],
            add=np.zeros(n, np.float32),
            repetition=np.full(n, params.repetition_penalty, np.float32),
            subtract=np.float32(params.frequency_penalty) * counts + presence,
        )


def collect(states: Sequence[RowState], rows: Sequence[tuple[int, int]]) -> LogitEdits | None:
    """Edits of all states for (row, output index) per row of logits; None when there are none."""
    found: list[tuple[int, RowEdits]] = []
    for state in states:
        for at, (row, output_index) in enumerate(rows):
            edits = state.edits(row, output_index)
            if edits is not None:
                found.append((at, edits))
    if not found:
        return None
    sizes = [len(edits.tokens) for _, edits in found]
    return LogitEdits(
        rows=np.repeat(np.array([at for at, _ in found], np.int32), sizes),
        tokens=np.concatenate([edits.tokens for _, edits in found]),
        add=np.concatenate([edits.add for _, edits in found]),
        repetition=np.concatenate([edits.repetition for _, edits in found]),
        subtract=np.concatenate([edits.subtract for _, edits in found]),
    )


def _additive(tokens: Sequence[int], values: Sequence[float]) -> RowEdits:
    n = len(tokens)
    return RowEdits(
        tokens=np.array(tokens, np.int32),
        add=np.array(values, np.float32),
        repetition=np.ones(n, np.float32),
        subtract=np.zeros(n, np.float32),
    )
