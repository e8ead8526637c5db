"""`treadle serve` with the scripted engine and a short grace:
NAME [PORT [WINDOW [OPTION...]]]."""

from __future__ import annotations

import functools
import sys

from treadle.cli import main
from treadle.engine import process
from treadle.server import serve

GRACE_S = 1.0

if __name__ == "__main__":
    fake = functools.partial(process.EngineProcess, "tests.server.fake_engine")
    process.EngineProcess = fake  # type: ignore[misc,assignment]
    serve.Launch = functools.partial(serve.Launch, grace_s=GRACE_S)  # type: ignore[misc,assignment]
    names = ("--served-model-name", "--port", "--max-model-len")
    options = [part for pair in zip(names, sys.argv[1:], strict=False) for part in pair]
    sys.exit(main.run(["serve", *options, *sys.argv[4:]]))
