"""Models by their id on the Hugging Face hub: the files that are needed, in the hub's own cache.

Downloads are the huggingface_hub library's, so its cache, tokens, mirrors and offline switch work
as everywhere. Never runs a repository's code, and never fetches formats that are not read.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

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

_WEIGHTS = "model*.safetensors"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ID = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?(?::(?P<gguf>[\w./-]+))?")

_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")
"""What the names of a split model's parts end with."""


@dataclasses.dataclass(frozen=True)
class HubId:
    """A model on the hub, spelled 'org/name', 'org/name@revision', 'org/name:gguf' or with both."""

    repo: str
    revision: str | None = None
    """A branch, tag or commit; the main branch if None."""
    gguf: str | None = None
    """Which of the repository's GGUF files is meant: its name, or its quantisation."""


class Hub(Protocol):
    """What is asked of the hub; both may raise anything."""

    def files(self, model: HubId) -> list[str]:
        """The repository's files; where it cannot be reached, those in the cache."""
        ...

    def download(self, model: HubId, patterns: Sequence[str], *, progress: bool) -> Path:
        """The directory with all files that fit the patterns."""
        ...


def hub_id(name: str) -> HubId | None:
    """None unless `name` is spelled like a model on the hub."""
    found = _ID.fullmatch(name)
    if found is None or found["repo"].endswith(".gguf"):
        return None
    return HubId(**found.groupdict())


def hub_path(model: HubId, *, progress: bool, hub: Hub | None = None) -> Path:
    """The model's directory or GGUF file, downloaded where the hub's cache lacks it."""
    hub = hub or _LibraryHub()
    try:
        files = hub.files(model)
        if model.gguf is None and CONFIG in files and fnmatch.filter(files, _WEIGHTS):
            return hub.download(model, FILES, progress=progress)
        parts = _choose(model, files)
        patterns = [glob.escape(part) for part in parts]
        return hub.download(model, patterns, progress=progress) / parts[0]
    except StartError:
        raise
    except Exception as error:  # the library's, its HTTP client's and the file system's
        reason = _why(error, model)
        raise StartError(f"cannot get {model.repo} from the Hugging Face hub: {reason}") from None


def hub_config(model: HubId, *, hub: Hub | None = None) -> Path:
    """The directory with the model's config.json, which alone is downloaded where it is not there.
    The model may be there already, and then its files are too."""
    try:
        folder = (hub or _LibraryHub()).download(model, [CONFIG], progress=False)
    except Exception as error:  # as in hub_path
        reason = _why(error, model)
        raise StartError(f"cannot get {model.repo} from the Hugging Face hub: {reason}") from None
    if not (folder / CONFIG).is_file():
        raise StartError(f"{model.repo} on the Hugging Face hub has no {CONFIG}")
    return folder


def _choose(model: HubId, files: Sequence[str]) -> list[str]:
    """The one GGUF file that is meant, or all parts of it."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        path = Path(file)
        # Projectors of images stand beside models, and are none.
        if path.suffix == ".gguf" and not path.name.startswith("mmproj"):
            models.setdefault(_NUMBER.sub("", file.removesuffix(".gguf")), []).append(file)
    fitting = [
        parts
        for name, parts in models.items()
        if model.gguf is None or _is_meant(model.gguf, name, parts)
    ]
    if len(fitting) == 1:
        return fitting[0]
    place = f"{model.repo} on the Hugging Face hub has"
    if not models:
        raise StartError(f"{place} no model in safetensors with {CONFIG}, and no GGUF file")
    names = ", ".join(parts[0] for parts in fitting or models.values())
    if not fitting:
        raise StartError(f"{place} no GGUF file '{model.gguf}'; it has {names}")
    raise StartError(f"{place} several GGUF files, so name one as in {model.repo}:FILE: {names}")


def _is_meant(wanted: str, name: str, parts: Sequence[str]) -> bool:
    """By a file's path or name, or by how its name ends: 'q4_k_m' is any x-Q4_K_M.gguf."""
    if wanted.endswith(".gguf"):
        return any(wanted in (part, Path(part).name) for part in parts)
    ending = rf"(^|[-._/]){re.escape(wanted)}$"
    return re.search(ending, name, re.IGNORECASE) is not None


class _LibraryHub:
    """The hub through its own library, which takes longer to import than a local model's header to
    read, so only where a model is on the hub."""

    def files(self, model: HubId) -> list[str]:
        from huggingface_hub import HfApi, snapshot_download

        try:
            # The library's call of that name would try for half a minute where the hub is down.
            found = HfApi().model_info(model.repo, revision=model.revision).siblings
            return [file.rfilename for file in found or []]
        except Exception as error:  # as in hub_path
            if _kinds(error) & {"RepositoryNotFoundError", "RevisionNotFoundError"}:
                raise
        kept = Path(
            snapshot_download(
                model.repo, revision=model.revision, allow_patterns=[], local_files_only=True
            )
        )
        return [str(path.relative_to(kept)) for path in kept.rglob("*")]

    def download(self, model: HubId, patterns: Sequence[str], *, progress: bool) -> Path:
        from huggingface_hub import snapshot_download
        from tqdm.auto import tqdm

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *args: object, **kwargs: object) -> None:
                super().__init__(*args, **{**kwargs, "disable": not progress})

        folder = snapshot_download(
            model.repo, revision=model.revision, allow_patterns=list(patterns), tqdm_class=Bar
        )
        return Path(folder)


def _kinds(error: Exception) -> set[str]:
    """By class name, because the library's errors come and go with its versions."""
    return {kind.__name__ for kind in type(error).__mro__}


def _why(error: Exception, model: HubId) -> str:
    """One sentence."""
    kinds = _kinds(error)
    if "GatedRepoError" in kinds:
        return "its owner asks for terms to be accepted on its page first, then for 'hf auth login'"
    if "RepositoryNotFoundError" in kinds:
        return "there is no such model, or none that you may see"
    if "RevisionNotFoundError" in kinds:
        return f"it has no revision '{model.revision}'"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError"}:
        return "it cannot be reached, and the model is not in its cache"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
