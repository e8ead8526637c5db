"""What a server says on standard error: one line a thought, all in one form.

Imports next to nothing: the first line is written before the engine's process is even started.
"""

from __future__ import annotations

import contextlib
import logging
import sys


def say(text: str) -> None:
    """A line that cannot be written is lost: a full disk or a reader that is gone must not end a
    server."""
    line = " ".join(text.splitlines()) if text.count("\n") == 1 else text
    with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or none at all
        sys.stderr.write(f"treadle: {line}\n")
        sys.stderr.flush()


def adopt_libraries() -> None:
    """Have uvicorn's and asyncio's warnings look like our lines, with a traceback where one is."""
    handler = _Lines(logging.WARNING)
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Without a formatter of its own a record brings its traceback along.
        say(logging.Formatter().format(record).rstrip())
