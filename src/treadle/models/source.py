"""From what a user calls a model to its place on disk. Never reads more of it than its magic."""

from __future__ import annotations

import re
from pathlib import Path

from treadle.errors import ModelFileError
from treadle.models.demo import KNOWN_MODELS, known_path
from treadle.models.gguf import MAGIC
from treadle.models.hub import Hub, hub_id, hub_path
from treadle.models.safetensors import CONFIG

_NAMES = ", ".join(f"'{name}'" for name in KNOWN_MODELS)


def resolve_model(name: str, progress: bool = True, *, hub: Hub | None = None) -> Path:
    """The .gguf file or the model directory that `name` means.

    It is the name of a known model, a path, or an id on the Hugging Face hub. What exists on disk
    wins over an id that is spelled alike.
    """
    if name in KNOWN_MODELS:
        return known_path(name, progress)
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _check_folder(path)
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError:
        if model := hub_id(name):
            return hub_path(model, progress=progress, hub=hub)
        raise ModelFileError(
            f"{path}: no such file; name a .gguf file, a model's directory, its id on the Hugging "
            f"Face hub (org/name, or org/name:Q4_K_M for a GGUF file there), or one of {_NAMES}"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from None
    if magic != MAGIC:
        raise ModelFileError(
            f"{path}: not a GGUF file: it does not start with 'GGUF'"
            + ("; name the directory it is in" if path.suffix == ".safetensors" else "")
        )
    return path


def model_name(name: str) -> str:
    """What to call the model that `name` means, known before it is there."""
    if name in KNOWN_MODELS:
        return Path(KNOWN_MODELS[name].file_name).stem
    if not Path(name).exists() and (model := hub_id(name)):
        name = model.repo if model.gguf is None else f"{model.repo}:{Path(model.gguf).name}"
    return name_of_path(Path(name))


def name_of_path(path: Path) -> str:
    """A file's stem, without the number of a part, or a directory's name: the dots in
    'Qwen2.5-0.5B' begin no suffix."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path.name) or path.resolve().name


def _check_folder(path: Path) -> Path:
    if (path / CONFIG).is_file():
        return path
    raise ModelFileError(
        f"{path}: is a directory without {CONFIG}; name the .gguf file in it, or a directory as "
        "Hugging Face publishes models"
    )
