"""The examples of docs/python.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example(number: int, demo_gguf: Path) -> None:
    del demo_gguf  # it is there
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_there_is_one_for_each_class() -> None:
    assert [re.findall(r"(\w+)\(", text)[0] for text in EXAMPLES] == ["LLM", "main", "Engine"]
