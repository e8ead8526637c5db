"""`treadle serve` with the scripted engine and a short grace: NAME [PORT [WINDOW]] [--option …]."""

from __future__ import annotations

import functools
import sys

from treadle.cli import main
from treadle.engine import crew

GRACE_S = "1"

if __name__ == "__main__":
    fake = functools.partial(crew.Crew, engine="tests.server.fake_engine")
    crew.Crew = fake  # type: ignore[misc,assignment]
    names = ("--served-model-name", "--port", "--max-model-len")
    given = sys.argv[1:]
    first = next((at for at, part in enumerate(given) if part.startswith("--")), len(given))
    values = [*given[:first], "0"] if first == 1 else given[:first]
    options = [part for pair in zip(names, values, strict=False) for part in pair]
    sys.exit(main.run(["serve", "--shutdown-timeout", GRACE_S, *options, *given[first:]]))
