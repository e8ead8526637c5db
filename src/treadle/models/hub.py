"""Models by their id on the Hugging Face hub: the files that are needed, in the hub's own cache.

Downloads are the huggingface_hub library's, so its cache, tokens, mirrors and offline switch work
as everywhere. Never runs a repository's code, and never fetches formats that are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from treadle.errors import StartError
from treadle.models.safetensors import CONFIG

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""All that a model directory is read for."""

Downloader = Callable[[str, Sequence[str], bool], Path]
"""Repository, patterns of files, whether to show progress → the directory they are in."""


def is_hub_id(name: str) -> bool:
    """Whether `name` is spelled like 'org/name'."""
    part = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
    return re.fullmatch(f"{part}/{part}", name) is not None and not name.endswith(".gguf")


def hub_folder(name: str, *, progress: bool, download: Downloader | None = None) -> Path:
    """The directory with the model's files, downloaded where the hub's cache lacks them."""
    try:
        folder = (download or _download)(name, FILES, progress)
    except Exception as error:  # the library's, its HTTP client's and the file system's
        raise StartError(f"cannot get {name} from the Hugging Face hub: {_why(error)}") from None
    if not (folder / CONFIG).is_file():
        raise StartError(
            f"{name} on the Hugging Face hub has no {CONFIG}; only models in safetensors are read "
            "from there: download a .gguf file yourself and name it"
        )
    return folder


def _download(name: str, files: Sequence[str], progress: bool) -> Path:
    # Imported here: the library takes longer to import than a local model's header to read.
    from huggingface_hub import snapshot_download
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **{**kwargs, "disable": not progress})

    return Path(snapshot_download(name, allow_patterns=list(files), tqdm_class=Bar))


def _why(error: Exception) -> str:
    """One sentence. By class name, because the library's errors come and go with its versions."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return "its owner asks for terms to be accepted on its page first, then for 'hf auth login'"
    if "RepositoryNotFoundError" in kinds:
        return "there is no such model, or none that you may see"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError"}:
        return "it cannot be reached, and the model is not in its cache"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
