"""From a model file to a Model: reads the card, packs the weights, gives the file's pages back.

Refuses a file whose tensors are not exactly those of its architecture, in one sentence that names
file and tensor. A further architecture is a module with these two functions and one entry below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.ops import (
    Backend,
    Buffer,
    FloatArray,
    Matrix,
    Program,
    RawTensor,
    Recorder,
    Vector,
    WeightType,
)
from treadle.models import llama
from treadle.models.card import Expected, ModelCard, TensorPlan, Weights, card_from_gguf
from treadle.models.gguf import GGUFFile


class Architecture(Protocol):
    """What the module of an architecture provides."""

    def tensor_plan(self, card: ModelCard) -> TensorPlan: ...

    def record(
        self, card: ModelCard, weights: Weights, recorder: Recorder, *, positions: int
    ) -> Buffer: ...


ARCHITECTURES: Mapping[str, Architecture] = {"llama": llama}


class Model:
    """A card and the packed weights that fit it. May be recorded more than once."""

    def __init__(self, card: ModelCard, weights: Weights, *, positions: int) -> None:
        self.card = card
        self.positions = positions
        self._weights = weights

    def record(self, recorder: Recorder) -> Program:
        """Take the forward pass down with a recorder of the backend that packed the weights."""
        architecture = ARCHITECTURES[self.card.architecture]
        logits = architecture.record(self.card, self._weights, recorder, positions=self.positions)
        return recorder.finish(logits)


def read_card(path: Path) -> ModelCard:
    """What a file says about its model, without loading it."""
    with closing(GGUFFile.open(path)) as file, _naming(path):
        return _card(file)


def load_model(path: Path, backend: Backend, *, positions: int | None = None) -> Model:
    """Load a model that can compute `positions` positions; by default all that it was made for."""
    with closing(GGUFFile.open(path)) as file, _naming(path):
        card = _card(file)
        plan = ARCHITECTURES[card.architecture].tensor_plan(card)
        _check_tensors(file.tensors, plan)
        weights = _Packer(file, backend).pack(plan)
    return Model(card, weights, positions=positions or card.max_positions)


def _card(file: GGUFFile) -> ModelCard:
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"metadata key 'general.architecture' is {architecture!r}; supported are "
            + ", ".join(ARCHITECTURES)
        )
    return card_from_gguf(file.metadata, file.tensors)


def _check_tensors(tensors: Mapping[str, RawTensor], plan: TensorPlan) -> None:
    expected = {tensor.name: tensor for tensor in plan.expected()}
    for name in tensors:
        if name not in expected:
            raise ModelFileError(f"tensor '{name}' is not part of this architecture")
    for tensor in expected.values():
        if tensor.name not in tensors:
            raise ModelFileError(f"tensor '{tensor.name}' is missing")
        shape = tensors[tensor.name].shape
        if shape != tensor.shape:
            raise ModelFileError(
                f"tensor '{tensor.name}' has shape {list(shape)}; expected {list(tensor.shape)}"
            )


class _Packer:
    """Hands tensors to the backend one weight at a time, so that the file and the packed weights
    are never both in memory as a whole."""

    def __init__(self, file: GGUFFile, backend: Backend) -> None:
        self._file = file
        self._backend = backend

    def pack(self, plan: TensorPlan) -> Weights:
        return Weights(
            {name: self._matrix(parts) for name, parts in plan.matrices.items()},
            {name: self._vector(tensor) for name, tensor in plan.vectors.items()},
            {name: self._constant(tensor) for name, tensor in plan.constants.items()},
        )

    def _matrix(self, parts: tuple[Expected, ...]) -> Matrix:
        matrix = self._backend.matrix([self._file.tensors[part.name] for part in parts])
        for part in parts:
            self._file.drop(part.name)
        return matrix

    def _vector(self, tensor: Expected) -> Vector:
        vector = self._backend.vector(self._file.tensors[tensor.name])
        self._file.drop(tensor.name)
        return vector

    def _constant(self, tensor: Expected) -> FloatArray:
        raw = self._file.tensors[tensor.name]
        if raw.type is not WeightType.F32:
            raise ModelFileError(f"tensor '{tensor.name}' is {raw.type}; expected f32")
        numbers: FloatArray = np.array(raw.data).view(np.float32)
        if not (np.isfinite(numbers) & (numbers > 0)).all():
            raise ModelFileError(f"tensor '{tensor.name}' holds numbers that are not above 0")
        return numbers


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of errors that know only the field or tensor."""
    try:
        yield
    except ModelFileError as error:
        if error.message.startswith(str(path)):
            raise
        raise ModelFileError(f"{path}: {error.message}") from None
