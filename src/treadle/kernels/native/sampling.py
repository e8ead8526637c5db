"""Sampling on the native backend: checks shapes, then one native call per op."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from treadle.kernels.native import _native
from treadle.kernels.ops import (
    FloatArray,
    IntArray,
    LogitEdits,
    MaskArray,
    SampleRows,
    TopLogprobs,
)

_BUCKET_BYTES = 8 * ((0x3F800000 >> 15) + 1)
"""A double for each of the native sampler's buckets."""


class NativeSampling:
    """Implements `SamplingOps`. Arrays live only for the call, except logits edited in place."""

    def __init__(self, backend: _native.Backend) -> None:
        self._backend = backend

    def edit(self, logits: FloatArray, edits: LogitEdits) -> None:
        count = len(edits.rows)
        rows, tokens = _ints(edits.rows, count), _ints(edits.tokens, count)
        _check_range(rows, logits.shape[0], "edits name a row that the logits do not have")
        _check_range(tokens, logits.shape[1], "edits name a token outside the vocabulary")
        arrays = [
            rows,
            tokens,
            _floats(edits.add, count),
            _floats(edits.repetition, count),
            _floats(edits.subtract, count),
        ]
        _native.edit(_place(logits), count, [array.ctypes.data for array in arrays])

    def mask(self, logits: FloatArray, rows: IntArray, allowed: MaskArray) -> None:
        count, words = len(rows), -(-logits.shape[1] // 32)
        wanted = _ints(rows, count)
        _check_range(wanted, logits.shape[0], "a mask for a row that there is not")
        bits = np.ascontiguousarray(allowed, np.uint32)
        if bits.shape != (count, words):
            raise ValueError(f"masks of shape {bits.shape} where {(count, words)} is due")
        _native.mask(_place(logits), count, wanted.ctypes.data, bits.ctypes.data)

    def top_logprobs(self, logits: FloatArray, rows: IntArray, num_top: int) -> TopLogprobs:
        count = len(rows)
        wanted = _ints(rows, count)
        _check_range(wanted, logits.shape[0], "log-probabilities of a row that there is not")
        if not 0 <= num_top <= logits.shape[1]:
            raise ValueError(f"num_top is {num_top}, the vocabulary has {logits.shape[1]}")
        top = TopLogprobs(
            np.empty(count, np.float32),
            np.empty((count, num_top), np.int32),
            np.empty((count, num_top), np.float32),
        )
        _native.top_logprobs(
            self._backend,
            _place(logits),
            wanted.ctypes.data,
            count,
            num_top,
            [top.log_sum_exp.ctypes.data, top.tokens.ctypes.data, top.logits.ctypes.data],
        )
        return top

    def memory_bytes(self, vocab_size: int) -> int:
        """Each thread has for every token a weight, an id and a key to sort by, and a sum for each
        bucket of weights."""
        return self._backend.threads * (vocab_size * (4 + 4 + 8) + _BUCKET_BYTES)

    def sample(self, logits: FloatArray, rows: SampleRows) -> IntArray:
        count = logits.shape[0]
        arrays = [
            _floats(rows.temperature, count),
            _ints(rows.top_k, count),
            _floats(rows.top_p, count),
            _floats(rows.min_p, count),
            _array(rows.uniform, count, np.float64),
        ]
        chosen = np.empty(count, np.int32)
        _native.sample(
            self._backend,
            _place(logits),
            [array.ctypes.data for array in arrays],
            chosen.ctypes.data,
        )
        return chosen


def _place(logits: FloatArray) -> _native.Logits:
    if logits.dtype != np.float32 or logits.ndim != 2 or logits.strides[1] != logits.itemsize:
        raise ValueError("logits must be a float32 matrix of contiguous rows")
    rows, vocabulary = logits.shape
    if vocabulary == 0:
        raise ValueError("logits of an empty vocabulary")
    return _native.Logits(logits.ctypes.data, rows, vocabulary, logits.strides[0] // 4)


def _array(
    values: npt.NDArray[np.generic], count: int, dtype: type[np.generic]
) -> npt.NDArray[np.generic]:
    array = np.ascontiguousarray(values, dtype)
    if array.shape != (count,):
        raise ValueError(f"an array of shape {array.shape} where {count} values are due")
    return array


def _ints(values: IntArray, count: int) -> npt.NDArray[np.generic]:
    return _array(values, count, np.int32)


def _floats(values: FloatArray, count: int) -> npt.NDArray[np.generic]:
    return _array(values, count, np.float32)


def _check_range(values: npt.NDArray[np.generic], end: int, message: str) -> None:
    if values.size and not (values.min() >= 0 and values.max() < end):
        raise ValueError(message)
