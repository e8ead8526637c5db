"""Tensors of model files that are mapped into memory: found by name, and viewed in place.

Shared by the readers of GGUF and safetensors, which find out where a tensor lies; this module only
looks there. Never parses a file and never copies a tensor's bytes.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.ops import RawTensor, WeightType


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor lies; `num_bytes` is 0 for types whose layout is not known here."""

    type_name: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def map_file(path: Path, format_name: str) -> mmap.mmap:
    """The file as read-only memory."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # mmap refuses to map nothing
        raise ModelFileError(f"{path}: not a {format_name} file: it is empty") from None


class MappedTensors(Mapping[str, RawTensor]):
    """The tensors of one file by name, in file order. Every extent lies inside the file. Tensors
    of unsupported types are listed, and refused on access."""

    def __init__(
        self,
        path: Path,
        mapping: mmap.mmap,
        extents: Mapping[str, Extent],
        types: Mapping[str, WeightType],
    ) -> None:
        self.path = path
        self._mapping = mapping
        self._extents = extents
        self._types = types
        self._closed = False

    def __getitem__(self, name: str) -> RawTensor:
        extent = self._extent(name)
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        data = np.frombuffer(self._mapping, np.uint8, extent.num_bytes, extent.start)
        return RawTensor(name, self._types[extent.type_name], extent.shape, data)

    def __contains__(self, name: object) -> bool:
        return name in self._extents

    def __iter__(self) -> Iterator[str]:
        return iter(self._extents)

    def __len__(self) -> int:
        return len(self._extents)

    def extents(self) -> Mapping[str, Extent]:
        """Where all tensors lie, those of unsupported types too."""
        return self._extents

    def drop(self, name: str) -> None:
        """Take the tensor's pages out of this process's memory; the next read brings them back."""
        extent = self._extent(name)
        if not extent.num_bytes:  # and perhaps at the very end of the file
            return
        # Outward to whole pages: a neighbour's share of an edge page is simply read again.
        lead = extent.start % mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_DONTNEED, extent.start - lead, extent.num_bytes + lead)

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of a tensor if there still is one."""
        self._closed = True
        try:
            self._mapping.close()
        except BufferError:
            return

    def _extent(self, name: str) -> Extent:
        extent = self._extents[name]
        if extent.type_name not in self._types:
            raise ModelFileError(
                f"{self.path}: tensor '{name}' has type {extent.type_name}; supported are "
                + ", ".join(self._types)
            )
        return extent


class JoinedTensors(Mapping[str, RawTensor]):
    """The tensors of several files as if they lay in one; no name occurs in two of them."""

    def __init__(self, files: Sequence[MappedTensors]) -> None:
        self._files = files
        self._homes: dict[str, MappedTensors] = {}
        for file in files:
            for name in file:
                home = self._homes.setdefault(name, file)
                if home is not file:
                    raise ModelFileError(
                        f"{file.path}: tensor '{name}' occurs a second time; "
                        f"{home.path.name} has it too"
                    )

    def __getitem__(self, name: str) -> RawTensor:
        return self._homes[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def extents(self) -> Mapping[str, Extent]:
        """Where all tensors lie, each in its file."""
        return {name: extent for file in self._files for name, extent in file.extents().items()}

    def home(self, name: str) -> Path:
        """The file that holds the tensor."""
        return self._homes[name].path

    def drop(self, name: str) -> None:
        self._homes[name].drop(name)

    def close(self) -> None:
        for file in self._files:
            file.close()
