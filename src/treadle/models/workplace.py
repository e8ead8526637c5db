"""Folders in a cache that something is made in before it gets its place there.

A process that is killed leaves its folder behind; the next one that looks takes it away. Never
touches what a living process works in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".fetch-"


@dataclasses.dataclass(frozen=True)
class Workplace:
    """A folder that is alive while any process has `lock` open."""

    folder: Path
    lock: int
    """For child processes that work there too, and may outlive their parent."""


@contextlib.contextmanager
def workplace(cache: Path) -> Iterator[Workplace]:
    """A folder of one's own in `cache`, on the same file system, gone with its content in the end.
    What dead processes left there is removed first."""
    with _locked(cache):
        _sweep(cache)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=cache))
        alive = contextlib.ExitStack()
        lock = alive.enter_context(_locked(folder))
    with alive:
        try:
            yield Workplace(folder, lock)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(cache: Path) -> None:
    """Remove what dead processes left in `cache`, if it can be."""
    if any(cache.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError), _locked(cache):
            _sweep(cache)


def _sweep(cache: Path) -> None:
    """Under the cache's lock, so that no folder is seen between being made and being locked."""
    for folder in cache.glob(f"{_PREFIX}*"):
        try:
            with _locked(folder, wait=False):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # somebody works there, or this file system cannot tell
            continue


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[int]:
    """The folder, opened and locked; a lock ends with the last process that has it open."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if wait:
            # Where the file system has no locks, nobody can sweep either.
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_EX)
        else:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield opened
    finally:
        os.close(opened)
