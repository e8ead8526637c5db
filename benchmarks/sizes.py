"""What an engine takes on disk: run with that engine's own Python, prints bytes and version.

    PYTHON sizes.py DISTRIBUTION…

Counts the distributions and all they require without extras, by their lists of files.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path


def closure(names: list[str]) -> set[str]:
    """Requirements whose markers do not hold are not installed, and so drop out."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        current = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if current in found:
            continue
        try:
            requires = importlib.metadata.requires(current) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(current)
        for line in requires:
            required = re.match(r"[\w.-]+", line)
            if required and "extra ==" not in line:
                waiting.append(required[0])
    return found


def size(name: str) -> int:
    files = importlib.metadata.files(name) or []
    paths = (Path(str(file.locate())) for file in files)
    return sum(path.stat().st_size for path in paths if path.exists())


if __name__ == "__main__":
    print(sum(map(size, closure(sys.argv[1:]))), importlib.metadata.version(sys.argv[1]))
