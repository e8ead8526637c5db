"""The safetensors reader: against the safetensors package, and against damaged directories."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from treadle.errors import ModelFileError
from treadle.kernels.ops import WeightType
from treadle.models.safetensors import SafetensorsFolder

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
TYPES = {"F32": WeightType.F32, "F16": WeightType.F16, "BF16": WeightType.BF16}


def sample_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(5, 6, generator=generator)
    return {
        "single": values.clone(),
        "half": values.to(torch.float16),
        "brain": values.to(torch.bfloat16),
        "vector": values[0].clone(),
        "cube": values.reshape(5, 2, 3).clone(),
        "scalar": values[0, 0].clone(),
        "ids": torch.arange(4),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "no rows": torch.empty(0, 7),
    }


def write_config(folder: Path, **fields: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **fields}))


def write_single(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(sample_tensors(), folder / "model.safetensors", {"format": "pt"})
    write_config(folder)
    return folder


def write_sharded(folder: Path, weight_map: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = sample_tensors()
    shards = [dict(list(tensors.items())[:4]), dict(list(tensors.items())[4:])]
    for name, shard in zip(SHARDS, shards, strict=True):
        save_file(shard, folder / name)
    if weight_map is None:
        weight_map = {
            key: file for file, shard in zip(SHARDS, shards, strict=True) for key in shard
        }
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_config(folder)
    return folder


def assert_same_tensors(folder: SafetensorsFolder, files: list[Path]) -> None:
    seen = []
    for file in files:
        with safetensors.safe_open(file, "pt") as oracle:
            for name in oracle.keys():  # noqa: SIM118 - it is no mapping
                seen.append(name)
                theirs = oracle.get_slice(name)
                if theirs.get_dtype() not in TYPES:
                    with pytest.raises(ModelFileError, match=f"{name}' has type"):
                        folder.tensors[name]
                    continue
                ours = folder.tensors[name]
                assert (ours.name, ours.type) == (name, TYPES[theirs.get_dtype()])
                assert ours.shape == tuple(theirs.get_shape())
                raw = oracle.get_tensor(name).contiguous().reshape(-1).view(torch.uint8)
                assert ours.data.tobytes() == raw.numpy().tobytes()
                assert not ours.data.flags.writeable
    assert sorted(folder.tensors) == sorted(seen)


def test_one_file_against_the_package(tmp_path: Path) -> None:
    folder = SafetensorsFolder.open(write_single(tmp_path))
    assert_same_tensors(folder, [tmp_path / "model.safetensors"])
    assert folder.path == tmp_path
    assert folder.config == {"model_type": "llama"}
    assert folder.generation_config == {}


def test_shards_against_the_package(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    folder = SafetensorsFolder.open(tmp_path)
    assert_same_tensors(folder, [tmp_path / name for name in SHARDS])
    assert folder.generation_config == {"temperature": 0.6}


def test_one_file_is_preferred_to_an_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / SHARDS[1]).unlink()
    write_single(tmp_path)
    assert len(SafetensorsFolder.open(tmp_path).tensors) == len(sample_tensors())


def test_unsupported_types_are_listed_and_refused_by_name(tmp_path: Path) -> None:
    folder = SafetensorsFolder.open(write_single(tmp_path))
    assert "ids" in folder.tensors
    with pytest.raises(ModelFileError, match=r"model\.safetensors: tensor 'ids' has type I64; sup"):
        folder.tensors["ids"]
    with pytest.raises(ModelFileError, match="I64"):
        folder.drop("ids")
    assert folder.tensors.get("no such tensor") is None


def test_dropped_and_closed(tmp_path: Path) -> None:
    folder = SafetensorsFolder.open(write_sharded(tmp_path))
    view = folder.tensors["single"].data
    before = view.tobytes()
    for name in ("single", "no rows"):
        folder.drop(name)
    assert view.tobytes() == before
    assert folder.tensors["no rows"].data.size == 0
    folder.close()
    assert view.tobytes() == before
    with pytest.raises(ValueError, match="is closed"):
        folder.tensors["single"]


# Damage.


def build(header: object, data: int = 64) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(data)


def entry(start: int = 0, end: int = 64, **changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - start) // 4], "data_offsets": [start, end], **changes}


DAMAGED = {
    "empty": (b"", "it is empty"),
    "short": (b"\1\2\3", "the header's length is cut off"),
    "huge header": (struct.pack("<Q", 2**63) + bytes(9), "would be 9223372036854775808 bytes"),
    "header outside": (struct.pack("<Q", 400) + bytes(9), "header ends at byte 408, but the file"),
    "json": (build(b"{nope"), "the header: is not valid JSON"),
    "json text": (build(b'{"a\xff": 1}'), "the header: is not valid JSON"),
    "json depth": (build(b"[" * 100_000), "the header: is not valid JSON"),
    "json list": (build([]), "the header: holds no JSON object"),
    "twice": (build(b'{"w": 1, "w": 2}'), "key 'w' occurs twice"),
    "no entry": (build({"w": 3}), "tensor 'w' has no description"),
    "no dtype": (build({"w": entry(dtype=None)}), "tensor 'w' has no 'dtype'"),
    "no shape": (build({"w": entry(shape="x")}), "tensor 'w' has no 'shape'"),
    "negative": (build({"w": entry(shape=[-16])}), "tensor 'w' has no 'shape'"),
    "bool": (build({"w": entry(shape=[True])}), "tensor 'w' has no 'shape'"),
    "no offsets": (build({"w": entry(data_offsets=[0])}), "tensor 'w' has no 'data_offsets'"),
    "backwards": (build({"w": entry(data_offsets=[8, 0])}), "tensor 'w' has no 'data_offsets'"),
    "bytes": (build({"w": entry(shape=[15])}), r"64 bytes, but shape \[15\] of F32 has 60"),
    "outside": (build({"w": entry(0, 68)}), "tensor 'w' ends at byte"),
    "far": (build({"w": entry(2**70, 2**70 + 4)}), "tensor 'w' ends at byte"),
    "overlap": (build({"v": entry(0, 40), "w": entry(36, 64)}), "tensor 'w' overlaps"),
    "same": (build({"v": entry(), "w": entry()}), "tensor 'w' overlaps"),
    "gap": (build({"v": entry(0, 32), "w": entry(36, 64)}), "tensor 'w' does not follow"),
    "tail": (build({"v": entry(0, 32)}), "32 bytes behind the last tensor"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_clear_sentence(tmp_path: Path, case: str) -> None:
    content, problem = DAMAGED[case]
    write_config(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=rf"model\.safetensors: .*{problem}"):
        SafetensorsFolder.open(tmp_path)
    with pytest.raises((safetensors.SafetensorError, OSError, ValueError)):
        safetensors.safe_open(path, "np")  # the package refuses all of these as well


def test_the_damaged_builder_builds_good_files(tmp_path: Path) -> None:
    write_config(tmp_path)
    header = {"w": entry(32, 64), "__metadata__": {"format": "pt"}, "v": entry(0, 32)}
    (tmp_path / "model.safetensors").write_bytes(build(header))
    tensors = SafetensorsFolder.open(tmp_path).tensors
    assert list(tensors) == ["v", "w"]
    assert tensors["w"].data.tobytes() == bytes(32)


def test_damaged_indices(tmp_path: Path) -> None:
    def refusal(**changes: Any) -> str:
        weight_map = {**good, **changes}
        write_sharded(tmp_path, {key: file for key, file in weight_map.items() if file != ""})
        with pytest.raises(ModelFileError) as refused:
            SafetensorsFolder.open(tmp_path)
        return refused.value.message.replace(str(tmp_path), "")

    names = list(sample_tensors())
    good = {name: SHARDS[index >= 4] for index, name in enumerate(names)}
    index = "/model.safetensors.index.json"
    assert refusal(ghost=SHARDS[0]) == (
        f"{index}: lists tensor 'ghost', which {SHARDS[0]} does not hold"
    )
    assert refusal(half=SHARDS[1]) == (
        f"{index}: lists tensor 'half' in {SHARDS[1]}; it is in {SHARDS[0]}"
    )
    assert refusal(ids="") == f"/{SHARDS[1]}: tensor 'ids' is not in model.safetensors.index.json"
    assert "no file name" in refusal(half="../model.safetensors")
    assert "no file name" in refusal(half=3)
    assert refusal(half="gone.safetensors").startswith("/gone.safetensors: cannot be read")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(ModelFileError, match="'weight_map' lists no tensors"):
        SafetensorsFolder.open(tmp_path)


def test_shards_that_do_not_fit(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    first, second = (tmp_path / name for name in SHARDS)
    content = second.read_bytes()
    for damage, problem in (
        (b"", "it is empty"),
        (content[:-1], "ends at byte"),
        (first.read_bytes(), "occurs a second time; model-00001-of-00002.safetensors has it too"),
    ):
        second.write_bytes(damage)
        with pytest.raises(ModelFileError, match=rf"{SHARDS[1]}: .*{problem}"):
            SafetensorsFolder.open(tmp_path)
    second.unlink()
    with pytest.raises(ModelFileError, match=rf"{SHARDS[1]}: cannot be read: No such file"):
        SafetensorsFolder.open(tmp_path)


def test_directories_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"model\.safetensors: cannot be read"):
        SafetensorsFolder.open(tmp_path)
    write_single(tmp_path)
    for content, problem in (("{", "not valid JSON"), ("[]", "no JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelFileError, match=rf"config\.json: .*{problem}"):
            SafetensorsFolder.open(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be read"):
        SafetensorsFolder.open(tmp_path)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_single(tmp_path_factory.mktemp("fuzzed"))


@pytest.fixture(scope="module")
def good_bytes(fuzzed: Path) -> bytes:
    return (fuzzed / "model.safetensors").read_bytes()


@given(
    cut=st.integers(0, 2000), flips=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 255)))
)
def test_what_we_read_the_package_reads_alike(
    fuzzed: Path, good_bytes: bytes, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(good_bytes)
    for at, bits in flips:
        content[at % len(content)] ^= bits
    del content[cut:]
    path = fuzzed / "model.safetensors"
    path.unlink()  # not rewritten in place: an earlier example may still map the old one
    path.write_bytes(content)
    try:
        folder = SafetensorsFolder.open(fuzzed)
    except ModelFileError as error:
        assert str(error).startswith(str(path))  # noqa: PT017 - either outcome is right
        return
    if set(folder.tensors) != set(sample_tensors()):
        return
    try:
        oracle = safetensors.safe_open(path, "np")
    except safetensors.SafetensorError:  # a type it does not know; we say so when it is asked for
        with pytest.raises(ModelFileError):
            list(folder.tensors.values())
        return
    with oracle:
        assert oracle.get_tensor("half").tobytes() == folder.tensors["half"].data.tobytes()
        np.testing.assert_equal(oracle.get_slice("cube").get_shape(), [5, 2, 3])
