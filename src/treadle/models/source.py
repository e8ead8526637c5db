"""From what a user calls a model to a file on disk. Never reads more of the file than its magic."""

from __future__ import annotations

from pathlib import Path

from treadle.errors import ModelFileError
from treadle.models.demo import demo_path
from treadle.models.gguf import MAGIC


def resolve_model(name: str, progress: bool = True) -> Path:
    """The file of the model that `name` means: 'demo', or the path of a .gguf file."""
    if name == "demo":
        return demo_path(progress)
    path = Path(name).expanduser()
    if path.is_dir():
        raise ModelFileError(f"{path}: is a directory; name the .gguf file in it")
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; name a .gguf file, or 'demo'") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from None
    if magic != MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file: it does not start with 'GGUF'")
    return path
