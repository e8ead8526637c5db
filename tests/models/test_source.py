"""What a model's name means: known models, files, directories, ids on the hub. No network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from treadle.errors import ModelFileError, StartError
from treadle.models.hub import FILES, HubId, hub_id, hub_path
from treadle.models.source import model_name, name_of_path, resolve_model


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


class NoHub:
    """Must not be asked, or fails as it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or AssertionError("the hub must not be asked")

    def files(self, model: HubId) -> Sequence[str]:
        raise self.error

    def download(self, model: HubId, patterns: Sequence[str], *, progress: bool) -> Path:
        raise self.error


def test_a_gguf_path(tmp_path: Path) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF")
    assert resolve_model(str(path)) == path


def test_a_model_directory(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("folder", r"is a directory without config\.json"),
        ("missing.gguf", "no such file; name a .gguf file, .* or one of 'demo', 'gemma'"),
        ("a/missing.gguf", "no such file"),
        ("model.safetensors", "not a GGUF file: .* name the directory it is in"),
        ("empty.gguf", "not a GGUF file: it does not start with 'GGUF'$"),
        ("nul\0.gguf", "cannot be read"),
    ],
)
def test_names_that_are_no_model(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match=problem):
        resolve_model(str(tmp_path / name), hub=NoHub())


def test_a_local_directory_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "org" / "name")
    assert resolve_model("org/name", hub=NoHub()) == Path("org/name")
    (tmp_path / "org" / "file").write_bytes(b"GGUF")
    assert resolve_model("org/file", hub=NoHub()) == Path("org/file")


def test_what_is_spelled_like_a_hub_id() -> None:
    for name in ("org/name", "HuggingFaceTB/SmolLM2-135M", "a_b/c.d-e"):
        assert hub_id(name) == HubId(name)
    assert hub_id("org/name@refs/pr/1") == HubId("org/name", "refs/pr/1")
    assert hub_id("org/name:Q4_K_M") == HubId("org/name", gguf="Q4_K_M")
    assert hub_id("org/name@v1:a/b-Q8_0.gguf") == HubId("org/name", "v1", "a/b-Q8_0.gguf")
    wrong = ["name", "/org/name", "org/name/x", "./name", "../name", "~/name", "org/", "org/m.gguf"]
    wrong += ["org/name:", "org/name@", "org/name:a b", "name:Q4_K_M", "org/m.gguf:Q4_K_M"]
    assert not any(map(hub_id, wrong))


def test_only_needed_files_are_asked_for() -> None:
    def wanted(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in FILES)

    assert wanted("model.safetensors")
    assert wanted("model-00001-of-00163.safetensors")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "modeling_x.py", "README.md"):
        assert not wanted(name)


def hub_error(name: str, message: str = "") -> Exception:
    """An error of the library's, which takes a whole HTTP response to be made."""
    import huggingface_hub.errors

    kind = getattr(huggingface_hub.errors, name)
    error: Exception = kind.__new__(kind)
    error.args = (message,)
    return error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (hub_error("GatedRepoError"), "asks for terms to be accepted"),
        (hub_error("RepositoryNotFoundError"), "there is no such model"),
        (hub_error("RevisionNotFoundError"), "it has no revision 'v1'"),
        (hub_error("LocalEntryNotFoundError"), "it cannot be reached, and the model is not in"),
        (hub_error("OfflineModeIsEnabled"), "it cannot be reached, and the model is not in"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("first line\nsecond line"), "first line$"),
        (RuntimeError(), "RuntimeError$"),
    ],
)
def test_failures_are_one_sentence(error: Exception, why: str) -> None:
    with pytest.raises(
        StartError, match=f"^cannot get org/name from the .* hub: .*{why}"
    ) as failed:
        hub_path(HubId("org/name", "v1"), progress=False, hub=NoHub(error))
    assert "\n" not in failed.value.message


def test_the_library_itself_without_a_network() -> None:
    """Its offline switch is read at import, so this takes a process of its own."""
    script = (
        "from treadle.models.source import resolve_model\n"
        "resolve_model('no-such-org/no-such-model')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent"},
    )
    assert "it cannot be reached, and the model is not in its cache" in done.stderr


def test_what_a_model_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_name("demo") == "SmolLM2-135M-Instruct.Q4_1"
    assert model_name("gemma") == "gemma-3-270m-q4_k_m"
    assert model_name("Qwen/Qwen2.5-0.5B") == model_name("Qwen/Qwen2.5-0.5B@v1") == "Qwen2.5-0.5B"
    assert model_name("org/x-GGUF@v1:Q4_K_M") == "x-GGUF:Q4_K_M"
    assert model_name("org/x-GGUF:a/y-Q4_0.gguf") == "x-GGUF:y-Q4_0"
    assert model_name("/x/y.Q4_0.gguf") == "y.Q4_0"
    assert model_name("y-Q4_0-00002-of-00003.gguf") == "y-Q4_0"
    folder = tmp_path / "here.v2"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert name_of_path(Path()) == "here.v2"
