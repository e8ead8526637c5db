"""The GGUF reader: against the gguf package's writer and reader, and against damaged files."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks import quantised
from treadle.errors import ModelFileError
from treadle.kernels.ops import WeightType
from treadle.models.gguf import GGUFFile

QUANTISED = {
    gguf.GGMLQuantizationType[kind.name]: kind for kind in WeightType if kind.quantised
} | {gguf.GGMLQuantizationType.BF16: WeightType.BF16}
UNSUPPORTED = gguf.GGMLQuantizationType.TQ2_0


def write_sample(path: Path) -> dict[str, Any]:
    """A file with every value type and every weight type; returns its metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "a.u8": 255,
        "a.i8": -128,
        "a.u16": 65535,
        "a.i16": -32768,
        "a.u32": 2**32 - 1,
        "a.i32": -(2**31),
        "a.u64": 2**64 - 1,
        "a.i64": -(2**63),
        "a.f32": 0.5,
        "a.f64": 0.1,
        "a.bool": True,
        "a.string": "größer 模型 \n",
    }
    for key, value in values.items():
        kind = key.removeprefix("a.")
        add = {
            "u8": writer.add_uint8,
            "i8": writer.add_int8,
            "u16": writer.add_uint16,
            "i16": writer.add_int16,
            "u32": writer.add_uint32,
            "i32": writer.add_int32,
            "u64": writer.add_uint64,
            "i64": writer.add_int64,
            "f32": writer.add_float32,
            "f64": writer.add_float64,
            "bool": writer.add_bool,
            "string": writer.add_string,
        }[kind]
        add(key, value)
    arrays: dict[str, list[Any]] = {
        "b.strings": ["", "a", "é" * 300, "\0"],
        "b.ints": [1, -2, 3],
        "b.floats": [0.5, -1.25],
        "b.bools": [True, False, True],
    }
    for key, array in arrays.items():
        writer.add_array(key, array)
    rng = np.random.default_rng(1)
    writer.add_tensor("vector", rng.normal(size=7).astype(np.float32))
    writer.add_tensor("half", rng.normal(size=(3, 5)).astype(np.float16))
    writer.add_tensor("cube", rng.normal(size=(2, 3, 4)).astype(np.float32))
    for kind, ours in QUANTISED.items():
        writer.add_tensor(kind.name, quantised(rng.normal(size=(6, 256)), ours), raw_dtype=kind)
    data = gguf.quants.quantize(rng.normal(size=(6, 256)).astype(np.float32), UNSUPPORTED)
    writer.add_tensor(UNSUPPORTED.name, data, raw_dtype=UNSUPPORTED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"general.architecture": "llama", **values, **arrays}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    write_sample(path)
    return path


def test_metadata_of_every_type(tmp_path: Path) -> None:
    expected = write_sample(tmp_path / "sample.gguf")
    file = GGUFFile.open(tmp_path / "sample.gguf")
    assert dict(file.metadata) == expected
    assert list(file.metadata) == list(expected)
    assert file.metadata["b.bools"] == [True, False, True]
    assert all(type(value) is bool for value in file.metadata["b.bools"])


def assert_same_tensors(file: GGUFFile, oracle: gguf.GGUFReader) -> None:
    for theirs in oracle.tensors:
        ours_has = theirs.tensor_type.name.lower() in {kind.value for kind in WeightType}
        assert theirs.name in file.tensors
        if not ours_has:
            continue
        ours = file.tensors[theirs.name]
        assert ours.name == theirs.name
        assert ours.type.value == theirs.tensor_type.name.lower()
        assert ours.shape == tuple(int(n) for n in reversed(theirs.shape))
        assert ours.data.tobytes() == theirs.data.tobytes()
        assert not ours.data.flags.writeable
    assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]


def test_tensors_against_the_gguf_package(sample: Path) -> None:
    file = GGUFFile.open(sample)
    assert_same_tensors(file, gguf.GGUFReader(sample))
    assert file.tensors["cube"].shape == (2, 3, 4)
    for kind, ours in QUANTISED.items():
        assert file.tensors[kind.name].type is ours
        assert file.tensors[kind.name].shape == (6, 256)


def test_the_demo_file_against_the_gguf_package(demo_gguf: Path) -> None:
    file = GGUFFile.open(demo_gguf)
    oracle = gguf.GGUFReader(demo_gguf)
    assert_same_tensors(file, oracle)
    theirs = {key: field for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert list(file.metadata) == list(theirs)
    for key, field in theirs.items():
        if len(field.data) < 10:
            assert file.metadata[key] == field.contents(), key
        else:
            # Decoding whole vocabularies takes the oracle seconds; every 97th entry will do.
            picks = range(0, len(field.data), 97)
            assert [file.metadata[key][i] for i in picks] == [field.contents(i) for i in picks]
            assert len(file.metadata[key]) == len(field.data)


def test_version_2_is_the_same_layout(sample: Path, tmp_path: Path) -> None:
    data = bytearray(sample.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    (tmp_path / "v2.gguf").write_bytes(data)
    assert dict(GGUFFile.open(tmp_path / "v2.gguf").metadata) == dict(
        GGUFFile.open(sample).metadata
    )


def test_alignment_of_the_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    for index in range(3):
        writer.add_tensor(f"t{index}", np.arange(5 + index, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(path)
    for index in range(3):
        values = file.tensors[f"t{index}"].data.view(np.float32)
        assert values.tolist() == list(range(5 + index))


def test_an_unsupported_type_is_refused_only_when_asked_for(sample: Path) -> None:
    file = GGUFFile.open(sample)
    assert "TQ2_0" in file.tensors
    with pytest.raises(ModelFileError, match=r"sample\.gguf: tensor 'TQ2_0' has type tq2_0"):
        file.tensors["TQ2_0"]
    with pytest.raises(ModelFileError, match="tq2_0"):
        file.tensors.get("TQ2_0")
    with pytest.raises(ModelFileError, match="tq2_0"):
        file.drop("TQ2_0")
    assert file.tensors.get("no such tensor") is None


def test_a_large_vocabulary_costs_little_to_open(demo_gguf: Path) -> None:
    def opening() -> float:
        start = time.perf_counter()
        GGUFFile.open(demo_gguf).close()
        return time.perf_counter() - start

    assert min(opening() for _ in range(5)) < 0.05


def resident_kib(path: Path) -> int:
    """Kilobytes of the file mapped and present in this process."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_drop_takes_pages_out_of_memory(demo_gguf: Path) -> None:
    file = GGUFFile.open(demo_gguf)
    tensor = file.tensors["token_embd.weight"]
    before = tensor.data.tobytes()
    resident = resident_kib(demo_gguf)
    file.drop("token_embd.weight")
    assert resident - resident_kib(demo_gguf) > 0.9 * tensor.data.nbytes / 1024
    assert tensor.data.tobytes() == before


def test_close(sample: Path) -> None:
    file = GGUFFile.open(sample)
    view = file.tensors["vector"].data
    kept = view.tobytes()
    file.close()
    assert view.tobytes() == kept
    with pytest.raises(ValueError, match="is closed"):
        file.tensors["vector"]
    del view
    other = GGUFFile.open(sample)
    assert resident_kib(sample) > 0
    other.close()
    del file
    assert resident_kib(sample) == 0


# Damage.

U32, U64 = struct.Struct("<I").pack, struct.Struct("<Q").pack


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return U64(len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + U32(kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + U32(len(dims)) + b"".join(map(U64, dims)) + U32(kind) + U64(offset)


def build(pairs: list[bytes], tensors: list[bytes], data: int = 4096) -> bytes:
    head = b"GGUF" + U32(3) + U64(len(tensors)) + U64(len(pairs))
    return head + b"".join(pairs) + b"".join(tensors) + bytes(data)


DAMAGED = {
    "empty": (b"", "it is empty"),
    "magic": (b"GGML" + bytes(40), "does not start with 'GGUF'"),
    "short": (b"GGUF\3\0", "the header is cut off"),
    "version": (b"GGUF" + U32(1) + bytes(40), "GGUF version 1"),
    "endian": (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
    "key count": (b"GGUF" + U32(3) + U64(0) + U64(2**63), "claims 9223372036854775808 metadata"),
    "tensor count": (b"GGUF" + U32(3) + U64(2**64 - 1) + U64(0), "tensors, more than the file"),
    "key length": (build([U64(2**64 - 1)], []), "metadata key 1 of 1 is cut off"),
    "key text": (build([pair("x", 4, U32(1)).replace(b"x", b"\xff")], []), "is not UTF-8"),
    "value type": (build([pair("x", 13, U32(1))], []), "key 'x' has unknown value type 13"),
    "value text": (build([pair("x", 8, text(b"\xc3"))], []), "key 'x' is not UTF-8"),
    "value length": (build([pair("x", 8, U64(2**40))], []), "key 'x' is cut off"),
    "array type": (build([pair("x", 9, U32(77) + U64(0))], []), "array of unknown value type 77"),
    "array of arrays": (build([pair("x", 9, U32(9) + U64(0))], []), "array of arrays"),
    "array length": (build([pair("x", 9, U32(4) + U64(2**62))], []), "key 'x' is cut off"),
    "string count": (build([pair("x", 9, U32(8) + U64(2**62))], []), "key 'x' claims"),
    "string length": (
        build([pair("x", 9, U32(8) + U64(2) + U64(2**64 - 1))], []),
        "key 'x' is cut off",
    ),
    "last string": (
        build([pair("x", 9, U32(8) + U64(1) + U64(5000))], []),
        "key 'x' is cut off",
    ),
    "key twice": (build([pair("x", 4, U32(1))] * 2, []), "metadata key 'x' occurs twice"),
    "tensor twice": (build([], [tensor("w", [4])] * 2), "tensor 'w' occurs twice"),
    "no dimension": (build([], [tensor("w", [])]), "'w' has 0 dimensions"),
    "dimensions": (build([], [tensor("w", [1] * 5)]), "'w' has 5 dimensions"),
    "empty dimension": (build([], [tensor("w", [4, 0])]), r"empty dimension: \[4, 0\]"),
    "tensor type": (build([], [tensor("w", [4], kind=99)]), "'w' has unknown type 99"),
    "ragged rows": (build([], [tensor("w", [40], kind=8)]), "'w' has rows of 40 values; q8_0"),
    "huge": (build([], [tensor("w", [2**63, 2**63])]), "tensor 'w' ends at byte"),
    "outside": (build([], [tensor("w", [4], offset=2**40)]), "tensor 'w' ends at byte"),
    "one byte short": (build([], [tensor("w", [4])], data=7 + 15), "tensor 'w' ends at byte"),
    "offset": (build([], [tensor("w", [4], offset=16)]), "offset 16, not a multiple of 32"),
    "alignment 0": (build([pair("general.alignment", 4, U32(0))], []), "not a power of two"),
    "alignment 24": (build([pair("general.alignment", 4, U32(24))], []), "not a power of two"),
    "alignment text": (build([pair("general.alignment", 8, text("x"))], []), "not a power of two"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_clear_sentence(tmp_path: Path, case: str) -> None:
    content, problem = DAMAGED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=rf"bad\.gguf: .*{problem}"):
        GGUFFile.open(path)


def test_the_damaged_builder_builds_good_files(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(build([pair("x", 4, U32(7))], [tensor("w", [4])], data=32 + 16))
    file = GGUFFile.open(path)
    assert dict(file.metadata) == {"x": 7}
    assert file.tensors["w"].data.tolist() == [0] * 16


def test_a_string_array_that_is_not_utf8_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(build([pair("words", 9, U32(8) + U64(1) + text(b"\xff"))], []))
    file = GGUFFile.open(path)
    with pytest.raises(ModelFileError, match=r"bad\.gguf: metadata key 'words' .* not UTF-8"):
        file.metadata["words"]


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        GGUFFile.open(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="cannot be read: Is a directory"):
        GGUFFile.open(tmp_path)


def read_everything(path: Path) -> None:
    file = GGUFFile.open(path)
    for key in file.metadata:
        file.metadata[key]
    for name in file.tensors:
        if name != UNSUPPORTED.name:
            file.tensors[name].data.sum()


@given(
    cut=st.integers(0, 4000), flips=st.lists(st.tuples(st.integers(0, 1700), st.integers(1, 255)))
)
def test_any_damage_parses_or_is_a_model_file_error(
    sample: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(sample.read_bytes())
    for at, bits in flips:
        content[at % len(content)] ^= bits
    if cut < len(content):
        del content[cut:]
    path = sample.with_name("fuzzed.gguf")
    path.write_bytes(content)
    try:
        read_everything(path)
    except ModelFileError as error:
        assert str(error).startswith(str(path))  # noqa: PT017 - either outcome is right


# Models split over several files.


def write_split(folder: Path, stem: str = "model") -> list[Path]:
    writer = gguf.GGUFWriter(folder / f"{stem}.gguf", "llama", split_max_tensors=3)
    writer.add_string("a.string", "first part only")
    rng = np.random.default_rng(2)
    for index in range(7):
        writer.add_tensor(f"t{index}", rng.normal(size=(2, 32)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(folder.glob(f"{stem}-*.gguf"))
    assert [path.name for path in paths] == [f"{stem}-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    return paths


def test_any_part_opens_the_whole_model(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    oracle = [tensor for path in paths for tensor in gguf.GGUFReader(path).tensors]
    assert len(oracle) == 7
    for path in paths:
        file = GGUFFile.open(path)
        assert file.path == paths[0]
        assert file.metadata["a.string"] == "first part only"
        assert list(file.tensors) == [tensor.name for tensor in oracle]
        for theirs in oracle:
            file.drop(theirs.name)
            assert file.tensors[theirs.name].data.tobytes() == theirs.data.tobytes()
        file.close()
        with pytest.raises(ValueError, match=r"00003-of-00003\.gguf is closed"):
            file.tensors["t6"]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[1].unlink()
    for path in (paths[0], paths[2]):
        with pytest.raises(ModelFileError, match=r"model-00002-of-00003\.gguf: cannot be read: No"):
            GGUFFile.open(path)
    assert resident_kib(paths[0]) == 0


def test_a_renamed_part_cannot_find_the_others(tmp_path: Path) -> None:
    (first, *_) = write_split(tmp_path)
    renamed = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match=r"name must end in -00001-of-00003\.gguf"):
        GGUFFile.open(renamed)


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    second = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: .*'split.no' is 2; by its"):
        GGUFFile.open(paths[0])
    paths[1].write_bytes(second.replace(b"t3", b"t2"))
    with pytest.raises(
        ModelFileError, match=r"00002-of-.*tensor 't2' occurs a second time; .*0000"
    ):
        GGUFFile.open(paths[0])
    first = paths[0].read_bytes()
    count = text("split.tensors.count") + U32(5)
    assert count in first
    paths[0].write_bytes(first.replace(count + U32(7), count + U32(8)))
    paths[1].write_bytes(second)
    with pytest.raises(ModelFileError, match=r"is 8, but the 3 parts hold 7 tensors"):
        GGUFFile.open(paths[0])
    paths[0].write_bytes(first.replace(text("split.no"), text("split.xx")))
    with pytest.raises(ModelFileError, match=r"'split.no' is None, not a count"):
        GGUFFile.open(paths[0])
