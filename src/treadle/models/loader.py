"""From a model file or folder to a Model: reads the card, packs the weights, gives pages back.

Refuses a file whose tensors are not exactly those of its architecture, in one sentence that names
file and tensor. Knows no architecture: cards and tables of names do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from treadle.errors import ModelFileError
from treadle.kernels.ops import Backend, Matrix, Program, RawTensor, Recorder, Vector
from treadle.models.card import ModelCard
from treadle.models.config_card import card_from_config, config_family, folder_names
from treadle.models.decoder import record
from treadle.models.gguf import GGUFFile
from treadle.models.gguf_card import card_from_gguf, gguf_family
from treadle.models.rope import rope_table
from treadle.models.safetensors import SafetensorsFolder
from treadle.models.tensors import Expected, TensorNames, TensorPlan, Weights, tensor_plan
from treadle.models.transforms import concatenated


class ModelFile(Protocol):
    """An open file or folder of tensors."""

    @property
    def tensors(self) -> Mapping[str, RawTensor]: ...

    def drop(self, name: str) -> None:
        """Take the tensor's pages out of memory; the next read brings them back."""
        ...

    def close(self) -> None: ...


class Model:
    """A card and the packed weights that fit it. May be recorded more than once."""

    def __init__(self, card: ModelCard, weights: Weights, *, positions: int) -> None:
        self.card = card
        self.positions = positions
        # Tables for a long window take longer than the rest of a recording.
        self._ropes = [rope_table(rope, positions) for rope in card.ropes]
        self._weights = weights

    def record(self, recorder: Recorder, *, write_and_attend: bool = False) -> Program:
        """Take the forward pass down with a recorder of the backend that packed the weights."""
        logits = record(
            self.card, self._weights, recorder, self._ropes, write_and_attend=write_and_attend
        )
        return recorder.finish(logits)


class OpenModel:
    """A file or folder whose header has been read, which takes a while where vocabularies are
    large. Good until `open_model` ends."""

    def __init__(self, file: GGUFFile | SafetensorsFolder) -> None:
        self._file = file
        self.card, self._names = _card(file)

    def load(self, backend: Backend, *, positions: int | None = None) -> Model:
        """Load a model that can compute `positions` positions; by default all that it was made
        for."""
        tensors = self._file.tensors
        plan = tensor_plan(self.card, self._names, tensors)
        _check_tensors(tensors, plan, self._names, self.card)
        weights = _Packer(self._file, backend).pack(plan)
        return Model(self.card, weights, positions=positions or self.card.max_positions)


@contextmanager
def open_model(path: Path) -> Iterator[OpenModel]:
    with _naming(path), closing(_open(path)) as file:
        yield OpenModel(file)


def read_card(path: Path) -> ModelCard:
    """What a file or folder says about its model, without loading it."""
    with open_model(path) as opened:
        return opened.card


def load_model(path: Path, backend: Backend, *, positions: int | None = None) -> Model:
    """See OpenModel.load."""
    with open_model(path) as opened:
        return opened.load(backend, positions=positions)


def _open(path: Path) -> GGUFFile | SafetensorsFolder:
    return SafetensorsFolder.open(path) if path.is_dir() else GGUFFile.open(path)


def _card(file: GGUFFile | SafetensorsFolder) -> tuple[ModelCard, TensorNames]:
    """The card, and what the file calls its tensors."""
    if isinstance(file, GGUFFile):
        return card_from_gguf(file.metadata, file.tensors), gguf_family(file.metadata).gguf
    card = card_from_config(
        file.config, file.generation_config, file.tensors, name=file.path.resolve().name
    )
    return card, folder_names(config_family(file.config), file.tensors)


def _check_tensors(
    tensors: Mapping[str, RawTensor], plan: TensorPlan, names: TensorNames, card: ModelCard
) -> None:
    expected = {tensor.name: tensor for tensor in plan.expected()}
    unread = names.roles["head"] if card.tied_head else None
    for name in tensors:
        if name not in expected and name != unread and not names.ignores(name):
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
    are never both in memory as a whole. A tensor's pages are given back after its last use."""

    def __init__(self, file: ModelFile, backend: Backend) -> None:
        self._file = file
        self._backend = backend
        self._uses: Counter[str] = Counter()

    def pack(self, plan: TensorPlan) -> Weights:
        self._uses = Counter(tensor.name for tensor in plan.expected())
        return Weights(
            {name: self._matrix(parts) for name, parts in plan.matrices.items()},
            {name: self._vector(parts) for name, parts in plan.vectors.items()},
        )

    def _matrix(self, parts: tuple[Expected, ...]) -> Matrix:
        matrix = self._backend.matrix([self._read(part) for part in parts])
        self._used(parts)
        _check_numbers(matrix)
        return matrix

    def _vector(self, parts: tuple[Expected, ...]) -> Vector:
        vector = self._backend.vector(concatenated([self._read(part) for part in parts]))
        self._used(parts)
        _check_numbers(vector)
        return vector

    def _read(self, part: Expected) -> RawTensor:
        return part.transform.apply(self._file.tensors[part.name])

    def _used(self, parts: tuple[Expected, ...]) -> None:
        for part in parts:
            self._uses[part.name] -= 1
            if not self._uses[part.name]:
                self._file.drop(part.name)


def _check_numbers(weight: Matrix | Vector) -> None:
    """What is no number would not show later: attention and the choice of experts pass over NaN,
    and rounding activations makes some number of it."""
    for name in weight.flawed:
        raise ModelFileError(
            f"tensor '{name}' holds a number that is infinite or not a number at all; the file is "
            "damaged"
        )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of errors that know only the field or tensor."""
    try:
        yield
    except ModelFileError as error:
        if error.message.startswith(str(path)):
            raise
        raise ModelFileError(f"{path}: {error.message}") from None
