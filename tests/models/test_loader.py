"""Loading: what is refused and how it is named, and that the file's pages are given back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.models.parity import our_logits
from tests.tiny import VOCAB_SIZE, TinyLlama, tiny_llama, write_tiny
from treadle.errors import ModelFileError
from treadle.kernels.native.backend import NativeBackend
from treadle.kernels.ops import Backend
from treadle.kernels.torch.backend import TorchBackend
from treadle.models.gguf import GGUFFile
from treadle.models.loader import load_model, read_card

Tensors = dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("loader"))


@pytest.fixture
def torch_backend() -> TorchBackend:
    return TorchBackend(threads=1)


@pytest.fixture
def rewritten(tiny: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the tiny model again, after `change` of its tensors and with other metadata."""

    def rewrite(change: Callable[[Tensors], object], **metadata: str) -> Path:
        reader = gguf.GGUFReader(tiny)
        tensors = {t.name: (np.array(t.data), t.tensor_type) for t in reader.tensors}
        change(tensors)
        path = tmp_path / "changed.gguf"
        writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
        for key, field in reader.fields.items():
            if not key.startswith(("GGUF.", "general.architecture")):
                element = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(key, field.contents(), field.types[0], element)
        for name, (data, kind) in tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return rewrite


def refusal(path: Path, backend: Backend) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(path, backend)
    message = caught.value.message
    assert message.startswith(f"{path}: ")
    assert message.count(str(path)) == 1
    assert "\n" not in message
    return message


def test_an_unchanged_copy_loads(rewritten: Callable[..., Path], torch_backend: Backend) -> None:
    assert load_model(rewritten(lambda _: None), torch_backend).card.vocab_size == VOCAB_SIZE


@pytest.mark.parametrize(
    "name", ["blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "output_norm.weight"]
)
def test_missing_tensor(rewritten: Callable[..., Path], torch_backend: Backend, name: str) -> None:
    path = rewritten(lambda tensors: tensors.pop(name))
    assert f"tensor '{name}' is missing" in refusal(path, torch_backend)


@pytest.mark.parametrize("name", ["blk.2.attn_k.weight", "blk.0.attn_q.bias", "lora"])
def test_surplus_tensor(rewritten: Callable[..., Path], torch_backend: Backend, name: str) -> None:
    path = rewritten(
        lambda tensors: tensors.update(
            {name: (np.ones(4, np.float32), gguf.GGMLQuantizationType.F32)}
        )
    )
    assert f"tensor '{name}'" in refusal(path, torch_backend)


def test_shape(rewritten: Callable[..., Path], torch_backend: Backend) -> None:
    def cut(tensors: Tensors) -> None:
        data, kind = tensors["blk.1.ffn_up.weight"]
        tensors["blk.1.ffn_up.weight"] = data[:-1], kind

    message = refusal(rewritten(cut), torch_backend)
    assert "tensor 'blk.1.ffn_up.weight' has shape [95, 64]; expected [96, 64]" in message


@pytest.mark.parametrize(
    "name", ["blk.1.ffn_down.weight", "token_embd.weight", "output_norm.weight"]
)
@pytest.mark.parametrize("kind", ["torch", "native"])
def test_a_number_that_is_none(rewritten: Callable[..., Path], kind: str, name: str) -> None:
    def spoil(tensors: Tensors) -> None:
        data, kind = tensors[name]
        spoiled = data.copy()
        if kind == gguf.GGMLQuantizationType.Q8_0:
            spoiled[-1, -34:-32] = np.array([np.nan], np.float16).view(np.uint8)
        else:
            spoiled[-1] = np.nan
        tensors[name] = spoiled, kind

    backend = TorchBackend(threads=1) if kind == "torch" else NativeBackend(threads=2)
    try:
        message = refusal(rewritten(spoil), backend)
    finally:
        backend.close()
    assert f"tensor '{name}' holds a number that is infinite or not a number at all" in message


def test_unsupported_type(rewritten: Callable[..., Path], torch_backend: Backend) -> None:
    def convert(tensors: Tensors) -> None:
        values = np.ones((VOCAB_SIZE, 64), np.int8)
        tensors["output.weight"] = values, gguf.GGMLQuantizationType.I8

    message = refusal(rewritten(convert), torch_backend)
    assert "'output.weight'" in message
    assert "i8" in message


def test_quantised_norm(rewritten: Callable[..., Path], torch_backend: Backend) -> None:
    def quantise(tensors: Tensors) -> None:
        kind = gguf.GGMLQuantizationType.Q8_0
        data = gguf.quants.quantize(np.ones((1, 64), np.float32), kind)[0]
        tensors["blk.0.attn_norm.weight"] = data, kind

    assert "blk.0.attn_norm.weight" in refusal(rewritten(quantise), torch_backend)


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_rope_factors_that_cannot_be(
    rewritten: Callable[..., Path], torch_backend: Backend, value: float
) -> None:
    factors = np.array([1] * 7 + [value], np.float32)
    path = rewritten(
        lambda tensors: tensors.update(
            {"rope_freqs.weight": (factors, gguf.GGMLQuantizationType.F32)}
        )
    )
    assert "rope_freqs.weight" in refusal(path, torch_backend)


def test_unknown_architecture(rewritten: Callable[..., Path], torch_backend: Backend) -> None:
    path = rewritten(lambda _: None, architecture="mamba")
    message = refusal(path, torch_backend)
    assert "'mamba'" in message
    assert "llama" in message


def test_missing_file(tmp_path: Path, torch_backend: Backend) -> None:
    refusal(tmp_path / "nowhere.gguf", torch_backend)


def test_every_tensors_pages_are_given_back(
    tiny: Path, torch_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(GGUFFile, "drop", lambda self, name: dropped.append(name))
    load_model(tiny, torch_backend)
    assert sorted(dropped) == sorted(tensor.name for tensor in gguf.GGUFReader(tiny).tensors)


def test_a_model_outlives_its_file(tmp_path: Path, backend: Backend) -> None:
    """The weights are copies: nothing reads the file after loading."""
    path = write_tiny(TinyLlama("q4_1"), tmp_path)
    model = load_model(path, backend)
    before = our_logits(backend, model, range(20))
    path.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    np.testing.assert_array_equal(our_logits(backend, model, range(20)), before)


def test_read_card(tiny: Path) -> None:
    card = read_card(tiny)
    assert (card.architecture, card.name, card.eos_ids) == ("llama", "tiny llama", (2,))
    assert (card.hidden, card.max_positions, card.tied_head) == (64, 512, False)


def test_positions_bound_the_rope_table(tiny: Path, torch_backend: Backend) -> None:
    assert load_model(tiny, torch_backend).positions == 512
    assert load_model(tiny, torch_backend, positions=40).positions == 40
