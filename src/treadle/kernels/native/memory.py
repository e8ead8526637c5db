"""Memory the kernels work in: anonymous pages, zero and unbacked until touched.

Owns no layout. Pages go back when the last array over them is gone.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from treadle.errors import StartError

Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64
"""A cache line, and a vector of the widest variant."""

_HUGE_PAGE = 2 << 20
_CHUNK = 32 << 20


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def pages(num_bytes: int) -> Bytes:
    """Page-aligned zero bytes; large areas are aligned for huge pages and ask for them."""
    huge = num_bytes >= _HUGE_PAGE
    spare = _HUGE_PAGE if huge else 0
    try:
        area = mmap.mmap(-1, max(num_bytes, 1) + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise StartError(
            f"the machine does not give {num_bytes / 2**30:.1f} GiB of memory"
        ) from error
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages is slower, not wrong.
        with contextlib.suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE if huge else 0
    return whole[start : start + num_bytes]


class Arena:
    """Hands out aligned memory that is never given back singly, so that many small weights share
    huge pages. Each array keeps its chunk alive."""

    def __init__(self) -> None:
        self._chunk: Bytes = np.empty(0, np.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> Bytes:
        size = round_up(num_bytes, ALIGNMENT)
        if self._used + size > self._chunk.size:
            self._chunk = pages(max(size, _CHUNK))
            self._used = 0
        taken = self._chunk[self._used : self._used + num_bytes]
        self._used += size
        return taken
